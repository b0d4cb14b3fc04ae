"""The screen of workers says how each is seen by the others, and what it runs."""

from __future__ import annotations

from typing import Any

import msgspec

from late.model.worker_report import Run
from late.tailer.placement import announced
from late.web.models.workers import NEAR, WorkerRow, rows
from tests.unit.test_findings import STUCK, reported, stalled, with_reports
from tests.unit.test_web_views import NOW_US, WORKER, seen

LONG = Run("default", "mail", "app.report", "t2", NOW_US - 5_000_000)


def row(**worker: Any) -> WorkerRow:
    look = seen(workers=(msgspec.structs.replace(WORKER, **worker),))
    [found] = rows(look)
    return found


def test_a_worker_without_trouble_is_alive() -> None:
    found = row(version=announced("0.3.0"))
    assert (found.level, found.state, found.why) == ("ok", "alive", "")
    assert (found.heartbeat, found.clock) == ("valid for 4.0 s more", NEAR)
    assert (found.version, found.runs, found.shards) == ("0.3.0", (), 1)


def test_the_lanes_of_a_worker_are_named_beside_its_groups() -> None:
    found = row(version=announced("0.3.0", lanes=["my.bulk", "a"]))
    assert (found.version, found.lanes) == ("0.3.0", ("a", "my.bulk"))
    assert row(version="0.3.0+placement.3").lanes == ()


def test_a_worker_that_leaves_or_waits_says_so() -> None:
    assert (row(capacity=0.0).level, row(capacity=0.0).state) == ("warn", "leaving")
    assert row(version=announced("1", standby=True)).state == "standby"


def test_a_report_adds_the_clock_and_the_runs() -> None:
    told = reported(clock_off_s=-90, runs=(LONG,) * 5)
    [found] = rows(with_reports(seen(), told))
    assert (found.clock, found.runs, found.more) == ("1.5 min ahead", (LONG,) * 3, 2)
    [old] = rows(with_reports(seen(), reported(age_s=500.0, clock_off_s=9)))
    assert old.clock == NEAR, "a report of long ago says nothing"
    [outside] = rows(with_reports(seen(), reported(unlisted="host")))
    assert (outside.level, outside.state) == ("bad", "not a member")


def test_stalled_workers_come_first_with_their_cause() -> None:
    first, second = rows(with_reports(seen(), stalled(number=2, unrecorded=3)))
    assert (first.worker_id, first.state, second.worker_id) == ("w2", "stalled", "w1")
    assert first.why == (
        "handlers that do not end hold every slot; 3 ends are not recorded: its death repeats "
        "these tasks"
    )
    assert (first.runs, first.heartbeat) == ((STUCK,), "withdrawn; its report is 1.0 s old")
    [live] = rows(with_reports(seen(), stalled()))
    assert (live.state, live.shards) == ("stalled", 1)
