"""Stale and directed reads of Spanner on the wire: the look of the page, verify, an export."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from click.testing import Result
from google.cloud.spanner_v1.types import transaction as messages
from late_spark import export as exporting
from late_spark import live
from late_spark.export import Source, export
from late_spark.fetch import Moment
from typer.testing import CliRunner

from late.cli.main import app as command
from late.control import Control
from late.control.replica import ReplicaReads
from late.schema import migrate
from tests.integration import spanner_kit
from tests.integration.grpc_proxy import GrpcProxy, Rule
from tests.integration.lake_kit import exports, in_lake, until
from tests.spark.kit import done, settled, write


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
