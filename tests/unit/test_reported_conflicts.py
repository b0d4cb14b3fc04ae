"""Conflicts from a worker's record to its report, and from there to findings, page and API."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
from msgspec.json import encode as encode_json

from late import events
from late.autoscaler.keda.demand import Signals
from late.control import Control
from late.control.analyze.postgres import Sampler
from late.control.analyze.reported import NOTHING, conflicts
from late.control.findings.findings import findings
from late.control.views import Reported
from late.model.task import Epoch, ShardId
from late.model.worker_report import ConflictReport, WorkerReport, decode, encode
from late.observability.conflict_tally import KEPT_MAX, SPAN_S, TOLD_MAX, ConflictTally
from late.observability.conflicts import Recorder
from late.store.base import LeaseView, Membership, WorkerInfo
from late.web.access.rules import narrowed
from late.web.models.conflicts import page as page_of
from late.worker.background import BackgroundJob
from late.worker.maintenance import jobs_of
from late.worker.watch.lock_waits import (
    QUIET_S,
    RARELY_S,
    TELL_EVERY_S,
    LockWaits,
    lock_waits_job,
)
from tests.security.test_operator_routes import PEOPLE, ask
from tests.security.test_operator_routes import as_person as as_caller
from tests.security.test_operator_routes import filled as interface
from tests.unit.cli_kit import Cli
from tests.unit.test_analyze import Row
from tests.unit.test_roles import as_person
from tests.unit.test_web_routes import filled
from tests.unit.test_web_views import NOW_US, WORKER, seen

PAY, REFUND = "late-foreground:pay", "late-foreground:refund"
ROW, STATEMENT = "account(id=7)", "update account set balance = 0"
WAITED = ConflictReport("waiting", PAY, REFUND, ROW, STATEMENT, "select 1", lost_s=30.0, count=20)
"""What the locks say."""
VICTIM = ConflictReport(
    "deadlock", REFUND, "", "account ctid (0,2)", lost_s=20.0, count=4, before_s=2.0, before=1
)
"""What the victim knows: not whose fault it was."""


def told(*conflicts: ConflictReport, number: int = 1) -> Reported:
    report = WorkerReport(f"w{number}", f"host:{number}", ("default",), 15.0, conflicts=conflicts)
    return Reported(report, 0, 1.0, True)


# --- The tally -----------------------------------------------------------------------------------


def test_conflicts_are_told_by_ten_minutes_and_then_forgotten() -> None:
    now = 30.0
    tally = ConflictTally(lambda: now)
    key = ("deadlock", PAY, REFUND, ROW)
    tally.add(key, 1.0, 1, 2, "first")
    tally.add(key, 2.0, 3)
    now += SPAN_S
    tally.add(key, 4.0, 1, 1, "last")
    [line] = tally.told()
    assert (line.lost_s, line.count, line.before_s, line.before) == (4.0, 1, 3.0, 4)
    assert (line.attempt, line.statement, line.place) == (2, "last", ROW)
    now += SPAN_S
    [line] = tally.told()
    assert (line.lost_s, line.before_s) == (0.0, 4.0)
    now += SPAN_S
    assert tally.told() == ()


def test_a_tally_has_a_bound_and_loses_no_time() -> None:
    tally = ConflictTally(lambda: 0.0)
    for number in range(3 * KEPT_MAX):
        tally.add(("waiting", PAY, REFUND, f"account(id={number})"), 1.0, 1)
    for number in range(3 * KEPT_MAX):
        tally.add(("waiting", f"tag {number}", REFUND, ROW), 1.0, 1)
    assert len(tally._lines) <= KEPT_MAX + 3
    assert sum(line.sum(0, 0)[0] for line in tally._lines.values()) == 6 * KEPT_MAX
    assert ("waiting", PAY, REFUND, "account") not in tally._lines or len(tally.told()) == TOLD_MAX
    assert [line.lost_s for line in tally.told()][:1] > [1.0]


def test_a_tally_looks_at_all_its_lines_once_in_a_minute() -> None:
    class Lines(dict[Any, Any]):
        looks = 0

        def items(self) -> Any:
            self.looks += 1
            return super().items()

    now = 0.0
    tally = ConflictTally(lambda: now)
    lines = tally._lines = Lines()
    for number in range(2 * KEPT_MAX):
        tally.add(("waiting", PAY, REFUND, f"account(id={number})"), 1.0, 1)
    assert lines.looks == 1
    now = 2 * SPAN_S
    tally.add(("waiting", PAY, REFUND, ROW), 1.0, 1)
    assert (lines.looks, list(lines)) == (2, [("waiting", PAY, REFUND, ROW)])


def test_what_has_no_line_in_the_log_is_in_the_report() -> None:
    recorder = Recorder(events.Emitter(), lambda: 0.0)
    for _ in range(500):
        recorder.record("aborted", PAY, duration_s=0.5, tables="account", other=REFUND)
    [line] = recorder.tally.told()
    assert (line.lost_s, line.count, line.place) == (250.0, 500, "account")
    report = WorkerReport("w1", "host:1", conflicts=(line,))
    assert report.matters
    assert decode(encode(report)) == report


# --- Looking at locks ----------------------------------------------------------------------------


class Locks:
    """A `Control` whose answers are set by hand."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def lock_sampler(self) -> Sampler:
        return Sampler(lambda *_: ROW)

    def lock_waits(self) -> list[Row]:
        return self.rows


async def test_waits_are_recorded_every_ten_seconds() -> None:
    now, recorded = 100.0, list[dict[str, Any]]()
    locks = Locks()
    waits = LockWaits(
        lambda: locks,  # type: ignore[arg-type,return-value]
        record=lambda kind, tag, **more: recorded.append({"kind": kind, "tag": tag, **more}),
        clock=lambda: now,
    )
    query, blocking = f"/* tag={PAY} */ update account", f"/* tag={REFUND} */ select 1"
    for _ in range(int(TELL_EVERY_S)):
        now += 1.0
        locks.rows = [Row(1, 9, query, blocking, now - 99.0)]
        await waits.look()
    [one] = recorded
    assert (one["kind"], one["tag"], one["other"], one["key"]) == ("waiting", PAY, REFUND, ROW)
    assert (one["count"], one["duration_s"], one["other_idle"]) == (1, TELL_EVERY_S, True)
    locks.rows = []
    now += TELL_EVERY_S
    await waits.look()
    assert len(recorded) == 1, "what was told once is not told again"
    # After an hour in which another worker looked, a wait counts for one step.
    now += 3_600
    locks.rows = [Row(1, 9, query, blocking, 3_600)]
    await waits.look()
    assert recorded[1]["duration_s"] == 2.0


async def test_looks_are_rare_after_a_minute_in_which_nobody_waited() -> None:
    now, locks = 100.0, Locks()
    waits = LockWaits(lambda: locks, clock=lambda: now)  # type: ignore[arg-type,return-value]
    assert not waits.rests
    now += QUIET_S
    assert not waits.rests, "the last look is long ago"
    await waits.look()
    assert waits.rests
    now += RARELY_S
    assert not waits.rests
    locks.rows = [Row(1, 9, f"/* tag={PAY} */ update account", "select 1", now)]
    await waits.look()
    now += QUIET_S / 2
    locks.rows = []
    await waits.look()
    assert not waits.rests, "somebody waited lately"


# --- The report of all workers -------------------------------------------------------------------


def test_reports_of_workers_become_pairs_with_their_key_now_and_before() -> None:
    found = conflicts([told(WAITED), told(VICTIM, number=2)])
    [pair] = found.pairs
    assert pair.tags == (PAY, REFUND), "the locks name whom the victim does not know"
    assert (pair.lost_s, pair.count) == (30.0, 20)
    assert pair.kinds == {"deadlock": 4, "waiting": 20}
    assert [each.place for each in pair.places] == [ROW], "a key says more than a ctid"
    assert pair.statements[0].statement == STATEMENT
    assert "in one order" in pair.advice[0]
    [change] = found.changes
    assert (change.tags, change.before, change.after) == ((PAY, REFUND), 0.2, 3.0)
    assert conflicts([told()]) == NOTHING


def test_a_victim_alone_is_named_as_far_as_it_is_known() -> None:
    [pair] = conflicts([told(VICTIM)]).pairs
    assert pair.tags == (REFUND, "unknown")
    assert pair.places[0].place == "account ctid (0,2)"


@pytest.mark.parametrize(
    ("lost_s", "busy", "up_s", "says"),
    [
        (30.0, 0.5, 3_600, True), (4.9, 0.0, 3_600, False), (14.0, 0.5, 3_600, False),
        (15.0, 0.5, 3_600, True), (6.0, 0.0, 3_600, True),
        # Workers that started five minutes ago ran for half of that.
        (7.0, 0.5, 300, False), (8.0, 0.5, 300, True),
    ],
)  # fmt: skip
def test_a_pair_that_costs_its_share_is_a_finding(
    lost_s: float, busy: float, up_s: int, says: bool
) -> None:
    one = msgspec.structs.replace(WAITED, lost_s=lost_s)
    # Half a slot is busy: 300 s of ten minutes, of which a twentieth is 15 s.
    signals = {"default": Signals(0, 0.0, 1.0, busy, 1, 8)}
    worker = msgspec.structs.replace(WORKER, started_at_us=NOW_US - up_s * 1_000_000)
    look = msgspec.structs.replace(
        seen(workers=(worker,)), signals=signals, live_conflicts=conflicts([told(one)])
    )
    found = [each for each in findings(look) if each.href == "conflicts"]
    assert bool(found) is says
    if says:
        assert found[0].what == f"Transactions {PAY} and {REFUND} are in each other's way"
        assert f" on {ROW}" in found[0].detail
        assert "What helps: " in found[0].detail
        assert found[0].command == "late analyze --seconds 30"


def test_who_may_not_operate_on_all_reads_no_row_and_no_statement() -> None:
    look = msgspec.structs.replace(
        seen(),
        conflicts=conflicts([told(WAITED)]),
        live_conflicts=conflicts([told(WAITED)]),
        reports=(told(WAITED),),
    )
    for who, names, keys in (
        ("operate", True, True), ("view", True, False), ("mail admin", False, False),
    ):  # fmt: skip
        text = repr(narrowed(look, PEOPLE[who]))
        assert (PAY in text) is names, who
        for secret in (ROW, STATEMENT):
            assert (secret in text) is keys, who


def test_the_screen_has_what_is_over_too() -> None:
    over = ConflictReport("deadlock", "b", "c", before_s=6.0, before=2)
    found = page_of(conflicts([told(WAITED, over)]))
    assert [(row.tags, row.lost_s, round(row.before_s, 3), row.trend) for row in found.rows] == [
        ((PAY, REFUND), 30.0, 0.0, "new"), (("b", "c"), 0.0, 6.0, "gone"),
    ]  # fmt: skip
    for lost_s, before_s, trend in ((9.0, 6.0, "worse"), (6.0, 6.0, "alike"), (4.0, 6.0, "better")):
        one = msgspec.structs.replace(WAITED, lost_s=lost_s, before_s=before_s, before=1)
        [row] = page_of(conflicts([told(one)])).rows
        assert row.trend == trend


def test_what_the_api_gave_is_compared_with_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, log = tmp_path / "before.json", tmp_path / "worker.log"
    before.write_bytes(encode_json(conflicts([told(WAITED)])))
    line = {"event": "conflict", "kind": "deadlock", "tag": PAY, "other": REFUND, "lost_s": 1.0}
    log.write_bytes(b"\n".join(
        encode_json(line | {"time": f"2026-11-27T10:0{minute}:00Z"}) for minute in (0, 2)
    ))  # fmt: skip
    options = ("--seconds", "0", "--log", str(log), "--against", str(before), "--json")
    [change] = Cli(capsys, "").fine("analyze", *options).json["changes"]
    assert (change["tags"], change["before"], change["after"]) == ([PAY, REFUND], 3.0, 1.0)


# --- The page and the API ------------------------------------------------------------------------


def write(control: Control) -> None:
    control.reports.write(told(WAITED, VICTIM).report)


async def test_the_screen_names_both_the_row_and_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(tmp_path) as (it, _):
        assert "No transaction was in the way" in await it.shown("conflicts")
        write(it.control)
        it.site._context.snapshots.forget()
        text = await it.shown("conflicts")
        for word in (PAY, REFUND, ROW, STATEMENT, "What helps: take the rows in one order"):
            assert word in text
        assert f"Transactions {PAY} and {REFUND}" in await it.shown("")
        as_person(it, PEOPLE["view"], monkeypatch)
        for path in ("conflicts", ""):
            text = await it.shown(path)
            assert PAY in text
            assert ROW not in text
            assert STATEMENT not in text


async def test_what_a_stopped_worker_has_lost_is_on_the_screen_and_no_finding(
    tmp_path: Path,
) -> None:
    """After a deploy it would be the loss of the old workers in the time of the new ones."""
    async with filled(tmp_path) as (it, _):
        it.control.reports.write(told(WAITED, number=9).report.ended)
        look = it.control.look()
        assert [pair.lost_s for pair in look.conflicts.pairs] == [30.0]
        assert not [each for each in findings(look) if each.href == "conflicts"]
        # And the same of one that lives
        write(it.control)
        [found] = [each for each in findings(it.control.look()) if each.href == "conflicts"]
        assert "They lost 30 s in" in found.detail


async def test_the_api_gives_rows_and_statements_to_operators_alone(tmp_path: Path) -> None:
    async with interface(tmp_path) as (it, records):
        with Control(it.url) as control:
            write(control)
        for who in ("operate", "view"):
            as_caller(it, PEOPLE[who])
            answer = (await ask(it, records, "GET /v1/conflicts", None)).json
            [pair] = answer["pairs"]
            assert pair["tags"] == [PAY, REFUND]
            assert pair["lost_s"] == 30.0
            assert [each["place"] for each in pair["places"]] == ([ROW] if who == "operate" else [])
            assert bool(pair["statements"]) is (who == "operate")
            assert answer["changes"]


def fleet(*workers: WorkerInfo, shadows: Sequence[str] = ()) -> Membership:
    """A fleet in which each worker holds one shard of each of its groups."""
    leases = [
        LeaseView(group, ShardId(n), each.worker_id, Epoch(1))
        for n, each in enumerate(workers)
        for group in each.groups
    ]
    return Membership(0, workers, tuple(leases), (), shadows=frozenset(shadows))


A, B = WorkerInfo("a", "host:1", ("index",)), WorkerInfo("b", "host:2", ("mail",))
PEER = WorkerInfo("c", "host:3", ("index",))


@pytest.mark.parametrize(
    ("seen", "running", "looks"),
    [
        (fleet(A, PEER), 1, True),
        (fleet(A, PEER), 0, False),
        (fleet(PEER, A), 1, False),
        (fleet(B, A), 0, True),
        (fleet(A, B, shadows=["index"]), 1, False),
        (fleet(A, B, shadows=["mail"]), 0, False),
        (None, 1, False),
    ],
    ids=["busy", "idle", "second", "others", "shadow", "other shadow", "no view"],
)
def test_one_worker_looks_at_locks(seen: Membership | None, running: int, looks: bool) -> None:
    assert lock_waits_job(looker(A, seen, running)).condition() is looks


def test_of_two_groups_with_separate_workers_one_looks_at_locks() -> None:
    seen = fleet(B, A)
    jobs = {each.worker_id: lock_waits_job(looker(each, seen, 1)) for each in (A, B)}
    assert [name for name, job in jobs.items() if job.condition()] == ["a"]


def looker(me: WorkerInfo, seen: Membership | None, running: int) -> Any:
    cores = {key: SimpleNamespace(state=SimpleNamespace(running=running * key)) for key in (0, 1)}
    return SimpleNamespace(
        id=me.worker_id,
        groups=me.groups,
        control=None,
        scheduler=SimpleNamespace(cores=cores),
        keeper=SimpleNamespace(fleet=seen),
    )


@pytest.mark.parametrize(
    ("url", "made"),
    [("postgresql://host/shop", True), ("sqlite:///shop.db", False), ("spanner:///p/i/d", False)],
)
def test_nobody_looks_at_locks_where_the_store_cannot_tell(url: str, made: bool) -> None:
    worker: Any = MagicMock(
        app=SimpleNamespace(url=url), settings=SimpleNamespace(prune_every_s=60.0, lag_alarm_s=0.0)
    )
    names = {job.name for job in jobs_of(worker, worker.store) if isinstance(job, BackgroundJob)}
    assert ("lock waits" in names) is made
    assert "prune" in names
