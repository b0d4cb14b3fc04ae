"""Reads of the control plane on a real streaming replica, and what is then said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import psycopg
import pytest
from click.testing import Result
from late_spark.export import Source, export
from typer.testing import CliRunner

import late
from late import config
from late.api.replica_metrics import replica_job
from late.api.server import Server
from late.api.settings import ServeSettings
from late.cli.main import app as command
from late.control import Control
from late.control.replica import ReplicaReads
from late.control.status.snapshot import Snapshot, look
from late.control.verify.verify import Verified
from late.errors import ConfigError
from late.observability.metrics import Registry
from late.schema import migrate
from late.schema.engine import shown
from late.testing.servers.postgres import PostgresServer, find_binaries
from tests import servers
from tests.integration import postgres_kit
from tests.integration.lake_kit import exports, in_lake, until
from tests.spark.kit import done, settled, write


class Pair(NamedTuple):
    primary: PostgresServer
    replica: PostgresServer
    url: str
    """Of the database on the primary."""

    @property
    def read_url(self) -> str:
        return self.replica.url_of("late")

    def reads(self, control: Control, max_lag_s: float = 3_600.0) -> ReplicaReads:
        return ReplicaReads(control, self.read_url, max_lag_s=max_lag_s, alarm_s=600.0)

    def replay(self, verb: str) -> None:
        """`pause` what the replica replays, or `resume` it."""
        with psycopg.connect(self.read_url, autocommit=True) as connection:
            connection.execute(f"select pg_wal_replay_{verb}()")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    if find_binaries() is None:
        pytest.skip("no PostgreSQL: binaries are needed to start a server of one's own")
    with servers.own_server({}) as primary:
        with psycopg.connect(primary.url, autocommit=True) as connection:
            connection.execute("create database late")
        url = primary.url_of("late")
        migrate.upgrade(url)
        replica = PostgresServer(initdb=False)
        try:
            replica.clone_of(primary)
            replica.start()
            yield Pair(primary, replica, url)
        finally:
            replica.close()


def waiting(seen: Snapshot) -> int:
    return sum(queue.depth.n for queue in seen.status.queues)


def on_replica(control: Control) -> bool:
    return control.status.replayed().bytes is not None


def until_near(reads: ReplicaReads) -> None:
    """Wait until the replica has all; a read waits for that for a tenth of a second at most."""
    deadline = time.monotonic() + 60
    while not reads.read(on_replica, fresh=True):
        assert time.monotonic() < deadline


def test_the_look_of_the_page_is_served_by_the_replica_while_it_is_near(pair: Pair) -> None:
    with Control(pair.url) as control, closing(pair.reads(control)) as reads:
        reads.check()
        until_near(reads)
        before = waiting(look(control, reads=reads))
        pair.replay("pause")
        try:
            with postgres_kit.producer(pair.url) as tx:
                postgres_kit.enqueue(tx)
            assert waiting(look(control, reads=reads)) == before, "the replica has not heard of it"
            assert waiting(look(control, reads=reads, fresh=True)) == before + 1
            with closing(pair.reads(control, max_lag_s=0.001)) as strict:
                assert not strict.read(on_replica)
                assert waiting(look(control, reads=strict)) == before + 1
        finally:
            pair.replay("resume")
        until_near(reads)
        assert waiting(look(control, reads=reads)) == before + 1


def test_how_near_the_replica_is_is_told(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATE_READ_URL", pair.read_url)

    def has_all() -> bool:
        near = look(control, reads=reads).freshness
        return near is not None and near.lag_s == 0.0

    with Control(pair.url) as control, closing(pair.reads(control)) as reads:
        until_near(reads)
        # The server writes to its log by itself now and then; the replica has it a moment later.
        until(has_all)
        assert reads.freshness.trouble is None
        pair.replay("pause")
        try:
            with postgres_kit.producer(pair.url) as tx:
                postgres_kit.enqueue(tx)
            behind = look(control, reads=reads).freshness
            assert behind is not None
            assert behind.trouble is None
            assert behind.lag_s is not None
            assert behind.lag_s > 0
            with closing(pair.reads(control, max_lag_s=0.001)) as strict:
                late_one = look(control, reads=strict).freshness
            assert late_one is not None
            assert late_one.trouble == "it is over 0.001 s behind"
            told = CliRunner().invoke(command, ["status", "--url", pair.url])
            assert "answered by the database, not by its replica: it is over 2 s" in told.stderr
            checked = CliRunner().invoke(command, ["doctor", "--url", pair.url])
            assert "WARNING  replica" in checked.stdout
        finally:
            pair.replay("resume")
        until_near(reads)
        told = CliRunner().invoke(command, ["status", "--url", pair.url])
        assert "looks of the page are answered by a replica" in told.stderr


def test_a_replica_that_is_away_costs_nothing_but_the_replica(pair: Pair) -> None:
    with Control(pair.url) as control, closing(pair.reads(control)) as reads:
        pair.replica.stop()
        try:
            assert not reads.read(on_replica)
            assert reads.freshness.trouble == "it does not answer"
            assert waiting(look(control, reads=reads)) >= 0
        finally:
            pair.replica.start()


def test_a_url_of_the_primary_or_of_another_server_is_refused(pair: Pair) -> None:
    with (
        Control(pair.url) as control,
        closing(ReplicaReads(control, pair.url, max_lag_s=2.0, alarm_s=600.0)) as reads,
        pytest.raises(ConfigError, match="is no replica of"),
    ):
        reads.check()
    with (
        Control(postgres_kit.admin_url()) as control,
        closing(pair.reads(control)) as reads,
        pytest.raises(ConfigError, match="is no replica of"),
    ):
        reads.check()


async def test_serve_refuses_a_wrong_replica_at_its_start(pair: Pair) -> None:
    settings = config.load({}, read_url=pair.url)
    listen = ServeSettings(http_port=0, roles=("web",))
    server = Server(late.App(pair.url), listen, settings=settings)
    with pytest.raises(ConfigError, match="is no replica of"):
        await server.start()


def test_metrics_say_whether_the_replica_is_read_and_how_far_behind_it_is(pair: Pair) -> None:
    registry = Registry()

    def values(reads: ReplicaReads) -> dict[str, Any]:
        job = replica_job(reads, registry)
        with suppress(ConfigError):
            asyncio.run(cast("Coroutine[Any, Any, object]", job.run()))
        return {sample.metric.name: sample.values[0][1] for sample in registry.samples()}

    with Control(pair.url) as control, closing(pair.reads(control)) as reads:
        near = {"late_read_replica_used": 1.0, "late_read_replica_lag_seconds": 0.0}
        until(lambda: values(reads) == near)
        pair.replay("pause")
        try:
            with postgres_kit.producer(pair.url) as tx:
                postgres_kit.enqueue(tx)
            behind = values(reads)
            assert behind["late_read_replica_used"] == 1.0
            assert behind["late_read_replica_lag_seconds"] > 0
            with closing(pair.reads(control, max_lag_s=0.001)) as strict:
                assert values(strict)["late_read_replica_used"] == 0.0
        finally:
            pair.replay("resume")
        until(lambda: values(reads) == near)
        with closing(ReplicaReads(control, pair.url, max_lag_s=2.0, alarm_s=600.0)) as wrong:
            assert values(wrong) == {"late_read_replica_used": 0.0}


def test_verify_reads_from_the_replica_while_it_is_near(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    verify = Control.verify

    def seen(control: Control, **given: Any) -> Verified:
        asked.append(control.url)
        return verify(control, **given)

    def run() -> Result:
        ran = CliRunner().invoke(command, ["verify", "--url", pair.url])
        assert ran.exit_code == 0, ran.output
        return ran

    monkeypatch.setattr(Control, "verify", seen)
    monkeypatch.setenv("LATE_READ_URL", pair.read_url)
    monkeypatch.setenv("LATE_READ_LAG_S", "0.001")
    pair.replay("pause")
    try:
        with postgres_kit.producer(pair.url) as tx:
            postgres_kit.enqueue(tx)
        behind = run()
        assert "answered by the database, not by its replica" in behind.stderr
        assert asked.pop() == shown(pair.url)
    finally:
        pair.replay("resume")
    until(lambda: "answered by a replica" in run().stderr)
    assert asked.pop() == shown(pair.read_url)
    monkeypatch.setenv("LATE_READ_URL", pair.url)
    wrong = run()
    assert "answered by the database: read_url=" in wrong.stderr
    assert "is no replica of" in wrong.stderr
    assert asked.pop() == shown(pair.url)


async def test_serve_has_the_metrics_of_its_replica(pair: Pair) -> None:
    settings = config.load({}, read_url=pair.read_url)
    server = Server(
        late.App(pair.url), ServeSettings(http_port=0, roles=("web",)), settings=settings
    )
    await server.start()
    try:
        [job] = [each for each in server._jobs if each.name == "replica"]
        await job.run()
        assert b"\nlate_read_replica_used " in await server._metrics()
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["status", "--owners"], ["verify"], ["group", "list"], ["dead", "list"]],
)
def test_commands_that_only_read_take_the_url_of_a_replica(
    pair: Pair, arguments: list[str]
) -> None:
    ran = CliRunner().invoke(command, [*arguments, "--url", pair.read_url])
    assert ran.exit_code == 0, ran.output


def test_an_export_reads_from_the_replica_and_loses_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(pair.primary.url, autocommit=True) as connection:
        connection.execute("create database exported")
    url, folder = pair.primary.url_of("exported"), tmp_path / "lake"
    migrate.upgrade(url)
    write(url, [settled(1, [done(1)])])
    monkeypatch.setenv("LATE_READ_URL", pair.replica.url_of("exported"))
    monkeypatch.setenv("LATE_READ_LAG_S", "2.5")
    until(lambda: "read from postgresql://" in exports(url, folder)[1])
    assert in_lake(folder) == [1]

    pair.replay("pause")
    try:
        write(url, [settled(2, [done(2)])])
        source, said = Source(pair.replica.url_of("exported")), list[str]()
        assert export(url, folder, say=said.append, near=source).settlements == 0
        assert said[-1] == f"read from {shown(source.url)}", "the replica has not heard of it"
        assert export(url, folder).settlements == 1
        write(url, [settled(3, [done(3)])])
        assert export(url, folder, say=said.append, near=source).settlements == 1
        assert "it is behind the last export" in said[-2]
        assert said[-2].startswith("read from the database, not from postgresql://")
        monkeypatch.setenv("LATE_READ_LAG_S", "0.001")
        assert "by the database, not by its replica: it is over 0.001 s" in exports(url, folder)[1]
    finally:
        pair.replay("resume")
    assert in_lake(folder) == [1, 2, 3]


def test_what_a_replica_cannot_answer_the_database_does(pair: Pair, tmp_path: Path) -> None:
    """A replica that ends in the middle: what was committed until then counts."""
    said: list[str] = []
    gone = Source("postgresql://late@127.0.0.1:1/late?connect_timeout=1")
    assert export(pair.url, tmp_path / "lake", say=said.append, near=gone).settlements == 0
    assert said[0].startswith("read from the database, not from postgresql://late@127.0.0.1:1/late")
