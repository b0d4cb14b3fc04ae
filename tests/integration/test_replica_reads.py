"""Reads of the control plane on a real streaming replica, and stale ones on the wire to Spanner."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import psycopg
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from google.cloud.spanner_v1.types import transaction as messages
from late_spark import export as exporting
from late_spark import lake, live
from late_spark.export import Source, export
from late_spark.fetch import Moment
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
from tests.integration import postgres_kit, spanner_kit
from tests.integration.grpc_proxy import GrpcProxy, Rule
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
    with PostgresServer() as primary:
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


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
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
    with Control(pair.url) as control, closing(pair.reads(control)) as reads:
        until_near(reads)
        (near,) = [look(control, reads=reads).freshness]
        assert near is not None
        assert (near.lag_s, near.trouble) == (0.0, None)
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


def exports(url: str, folder: Path) -> tuple[int, str]:
    """Export once; (new settlements, what it said)."""
    ran = CliRunner().invoke(command, ["lake", "export", str(folder), "--url", url, "--json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)["settlements"], ran.stderr


def in_lake(folder: Path) -> list[int]:
    """The settlements in a lake, each as often as it is there."""
    manifest = lake.load(folder)
    assert manifest is not None
    tables = [pq.ParquetFile(folder / each.path).read() for each in manifest.files]
    return sorted(seq for table in tables for seq in table["seq"].to_pylist())


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


@pytest.fixture(scope="module")
def spanner() -> Iterator[tuple[str, GrpcProxy]]:
    """A database of the emulator, and what is in front of it from now on."""
    with spanner_kit.emulator() as host, spanner_kit.environment(host):
        url = spanner_kit.fresh()
        migrate.upgrade(url)
        with GrpcProxy(host) as proxy, spanner_kit.environment(proxy.host):
            yield url, proxy


class Read(NamedTuple):
    """A read-only transaction on the wire."""

    age_s: float | None
    """The `exact_staleness` that it asked for."""
    asked_us: int | None
    """The `read_timestamp` that it asked for."""
    at_us: int
    """The moment that it was given."""
    statements: list[Any]


def micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


def reads_of(proxy: GrpcProxy) -> list[Read]:
    """The read-only transactions since the proxy last forgot."""
    found: dict[bytes, Read] = {}
    for each in proxy.heard:
        if each.method == "BeginTransaction" and each.answers:
            begun = messages.Transaction.deserialize(each.answers[0])
            asked = each.request.options.read_only
            age = asked.exact_staleness if "exact_staleness" in asked else None
            chosen = asked.read_timestamp if "read_timestamp" in asked else None
            at = begun.read_timestamp
            if at is not None:
                found[begun.id] = Read(
                    age and age.total_seconds(), chosen and micros(chosen), micros(at), []
                )
        elif each.method == "ExecuteStreamingSql" and each.request.transaction.id in found:
            found[each.request.transaction.id].statements.append(each.request)
    return list(found.values())


def test_a_stale_read_of_spanner_asks_for_its_age_and_judges_by_it(
    spanner: tuple[str, GrpcProxy],
) -> None:
    url, proxy = spanner
    proxy.heard.clear()
    with (
        Control(url) as control,
        closing(ReplicaReads(control, url, max_lag_s=15.0, alarm_s=600.0)) as reads,
    ):
        before_us = control.now()
        assert before_us <= reads.read(Control.now, fresh=True)
        hold = Rule("ExecuteStreamingSql", hold_s=0.2)
        proxy.add(hold)
        stale_us = reads.read(Control.now)
        assert before_us <= stale_us + 15_000_000 <= control.now()
        assert (reads.freshness.lag_s, reads.freshness.bound_s) == (15.0, 15.0)
        near, lag_s = reads.check()
        assert near
        assert lag_s is not None
        assert lag_s >= 15
    stale = [each for each in reads_of(proxy) if each.age_s == 15]
    assert len(stale) == 2, "one read, and the check"
    assert stale_us == stale[0].at_us, "not by a clock that went on until the question came"


def test_verify_on_spanner_is_one_stale_read_of_the_replica_that_is_named(
    spanner: tuple[str, GrpcProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, proxy = spanner
    monkeypatch.setenv("LATE_READ_URL", f"{url}?replica=us-east4:read_only")
    monkeypatch.setenv("LATE_READ_LAG_S", "0.25")

    def run() -> Result:
        proxy.heard.clear()
        ran = CliRunner().invoke(command, ["verify", "--url", url, "--shard", "0", "--json"])
        assert ran.exit_code == 0, ran.output
        return ran

    # Before, the schema was not there a quarter of a second ago.
    until(lambda: "answered by a replica, 0." in run().stderr)
    ran = run()
    (verified,) = [
        each
        for each in reads_of(proxy)
        if any("FROM late_settlement" in request.sql for request in each.statements)
    ]
    assert verified.age_s == 0.25
    assert json.loads(ran.stdout)["at_us"] == verified.at_us
    for request in verified.statements:
        (chosen,) = request.directed_read_options.include_replicas.replica_selections
        assert (chosen.location, chosen.type_.name) == ("us-east4", "READ_ONLY")
        assert not request.directed_read_options.include_replicas.auto_failover_disabled
    monkeypatch.setenv("LATE_READ_URL", f"{url}x")
    assert "is another database than" in run().stderr
    assert [each.age_s for each in reads_of(proxy)] == [None] * len(reads_of(proxy))


def test_an_export_on_spanner_is_of_one_timestamp(
    spanner: tuple[str, GrpcProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, proxy = spanner
    folder = tmp_path / "lake"
    monkeypatch.setattr(live, "SETTLEMENTS", 1)
    monkeypatch.setattr(exporting, "PARTS", 1)
    write(url, [settled(seq, [done(1)], shard=9) for seq in (1, 2, 3)])
    monkeypatch.setenv("LATE_READ_URL", f"{url}?replica=us-east4")
    monkeypatch.setenv("LATE_READ_LAG_S", "0.25")

    def stale() -> bool:
        proxy.heard.clear()
        return exports(url, folder)[0] == 3

    until(stale)
    of_journal = [
        each
        for each in reads_of(proxy)
        if any("FROM late_settlement" in request.sql for request in each.statements)
    ]
    assert len(of_journal) > 3, "a plan, and each part is a transaction"
    (at_us,) = {each.asked_us for each in of_journal}
    assert at_us is not None
    for each in of_journal:
        for request in each.statements:
            (chosen,) = request.directed_read_options.include_replicas.replica_selections
            assert chosen.location == "us-east4"
    singles = [
        request.transaction.single_use.read_only
        for request in proxy.calls("ExecuteStreamingSql")
        if "exact_staleness" in request.transaction.single_use.read_only
    ]
    assert [each.exact_staleness.total_seconds() for each in singles] == [0.25]

    # A lake that is ahead of what such a read sees: nothing is begun anew, nothing is lost.
    write(url, [settled(4, [done(1)], shard=9)])
    assert export(url, folder).settlements == 1
    said: list[str] = []
    old = Source(url, Moment(as_of_us=at_us, in_one=True))
    assert export(url, folder, say=said.append, near=old).settlements == 0
    assert "it is behind the last export" in said[0]
    assert in_lake(folder) == [1, 2, 3, 4]


@pytest.mark.usefixtures("spanner")
def test_a_pass_that_takes_too_long_goes_on_at_another_timestamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = spanner_kit.fresh()
    migrate.upgrade(url)
    monkeypatch.setattr(live, "SETTLEMENTS", 1)
    monkeypatch.setattr(exporting, "PARTS", 1)
    write(url, [settled(seq, [done(1)], shard=11, group="slow") for seq in (1, 2, 3)])
    now_s = itertools.count(step=exporting.PASS_S * 0.7)
    monkeypatch.setattr(exporting, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    moments: list[int | None] = []
    settle = exporting._settled

    def settled_at(source: Source) -> Source:
        found = settle(source)
        moments.append(found.moment.at_ns)
        return found

    monkeypatch.setattr(exporting, "_settled", settled_at)
    near = Source(url, Moment(age_us=1, in_one=True))
    assert export(url, tmp_path / "lake", near=near).settlements == 3
    assert len(moments) > 1
    assert moments == sorted(moments, key=lambda each: each or 0)
