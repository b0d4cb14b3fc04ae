"""Findings on workers that stopped answering, and none on what they said before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from late.control.findings.findings import findings
from late.control.status.snapshot import Snapshot
from late.model.worker_report import Death, SilentConsumer
from tests.unit.test_findings import OUT, STUCK, TASK, reported, stalled, with_reports
from tests.unit.test_web_views import NOW_US, WORKER, seen

DEATH = Death("w2", "host:2", NOW_US - 21_000_000)


def died(*deaths: Death, joined_s: tuple[float, ...] = (3_600.0,)) -> Snapshot:
    """A look at workers that joined so many seconds ago, and at deaths, the latest first."""
    workers = tuple(
        msgspec.structs.replace(WORKER, worker_id=f"a{n}", started_at_us=NOW_US - round(s * 1e6))
        for n, s in enumerate(joined_s)
    )
    return msgspec.structs.replace(seen(workers=workers), deaths=deaths)


def test_a_worker_that_stopped_answering_is_named_until_another_one_joins() -> None:
    [found] = findings(died(DEATH))
    assert (found.level, found.what) == ("warn", "Worker host:2 stopped answering")
    assert found.detail == (
        "The last heartbeat ceased to count 21 s ago, and no worker has joined since. Others take "
        "its shards over; 1 is alive. The process ended, stands still, or does not reach the "
        "database: its log says which."
    )
    assert (found.command, found.since_us) == ("late status", DEATH.at_us)
    assert findings(died(DEATH, joined_s=(3_600.0, 35.0))) == [], "one in its place"
    other = Death("w3", "host:3", NOW_US - 90_000_000)
    [found] = findings(died(DEATH, other, joined_s=(3_600.0, 85.0)))
    assert found.what == "Worker host:2 stopped answering", "one joined, for the first of the two"
    [found] = findings(died(DEATH, other))
    assert found.what == "2 workers stopped answering"
    assert found.detail.startswith("host:3, host:2. The last heartbeat ceased to count 21 s ago")


def test_a_worker_that_came_and_died_was_replaced_as_well() -> None:
    """As where a task kills one worker after another, and each has one in its place."""

    def ago(seconds: float) -> int:
        return NOW_US - round(seconds * 1e6)

    first = Death("w2", "host:2", ago(60), started_at_us=ago(3_600))
    second = Death("w3", "host:3", ago(40), started_at_us=ago(64))
    third = Death("w4", "host:4", ago(20), started_at_us=ago(44))
    deaths = (third, second, first)
    assert findings(died(*deaths, joined_s=(3_600.0, 24.0))) == []
    [found] = findings(died(*deaths))
    assert found.what == "Worker host:4 stopped answering"
    [found] = findings(died(second, first))
    assert found.what == "Worker host:3 stopped answering"
    # Who had died before came in nobody's place.
    early = Death("w5", "host:5", ago(62), started_at_us=ago(70))
    [found] = findings(died(first, early))
    assert found.what == "2 workers stopped answering"
    assert "Others take their shards over" in found.detail


def test_who_stands_still_or_leaves_nobody_behind_is_told_of_otherwise() -> None:
    still = with_reports(died(Death("w1", "host:1", NOW_US - 9_000_000)), stalled())
    assert [each.what for each in findings(still)] == ["1 of 2 workers stand still"]
    alone = died(DEATH, joined_s=())
    assert [each.what for each in findings(alone)] == ["No worker is alive"]


def test_handlers_of_a_worker_that_is_gone_are_not_counted_on() -> None:
    assert findings(with_reports(seen(), reported(stuck=(STUCK,), live=False))) == []
    assert len(findings(with_reports(seen(), reported(stuck=(STUCK,))))) == 1


@pytest.mark.parametrize(
    "told", [{"runs": (OUT,)}, {"silent": (SilentConsumer("pay", "c1", 4),)}, {"clock_off_s": 60}]
)
def test_what_a_dead_worker_said_of_its_runs_is_over(told: dict[str, Any]) -> None:
    assert len(findings(with_reports(seen(), reported(**told)))) == 1
    assert findings(with_reports(seen(), reported(**told, live=False))) == []
    # One that stalls lives, and says that it is gone.
    assert len(findings(with_reports(seen(), stalled(live=False, **told)))) == 2


def test_the_command_shows_the_task_that_is_named() -> None:
    first = msgspec.structs.replace(STUCK, task_id=TASK[:-1] + "9", since_us=STUCK.since_us - 1)
    for told in (reported(stuck=(STUCK, first)), stalled(stuck=(STUCK, first))):
        [found] = findings(with_reports(seen(), told))
        assert f"(task {first.task_id}) runs for" in found.detail
        assert (found.command, found.href) == (
            f"late show {first.task_id}",
            f"tasks/{first.task_id}",
        )
