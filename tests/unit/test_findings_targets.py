"""Findings on queues whose tasks wait for a target that is away."""

from __future__ import annotations

import msgspec
import pytest

from late.control.findings.findings import findings
from late.control.findings.targets import targets_of
from late.control.views import Count, LimitedTasks
from late.model.worker_report import Held
from tests.unit.test_findings import reported, target, with_reports
from tests.unit.test_web_views import NOW_US, PACE, group, seen

FAILS = msgspec.structs.replace(PACE, rate=0.8, failed=0.8)
LIMITED = LimitedTasks("default", "hooks", "charge", Count(63))


@pytest.mark.parametrize(
    ("limited", "reason"), [((LIMITED,), "limited"), ((), "retry")], ids=["soon", "at first"]
)
def test_a_queue_that_fails_because_of_a_target_says_so_and_shows_what_waits(
    limited: tuple[LimitedTasks, ...], reason: str
) -> None:
    """No worker reports an error of the task: of a push, the target has it."""
    away = target(failed=40, open_since_us=NOW_US - 60_000_000, held=(Held("default", "hooks", 9),))
    found = seen(groups=(group(),))
    status = msgspec.structs.replace(found.status, limited=limited)
    found = msgspec.structs.replace(found, status=status, paces={("default", "hooks"): FAILS})
    cause, effect = findings(with_reports(found, reported(targets=(away,))))
    assert (cause.what, effect.what) == (
        "Target bank is away", "Tasks of queue hooks (default) fail"
    )  # fmt: skip
    assert "It follows from: Target bank is away." in effect.detail
    assert effect.command == "late target list --check"
    assert effect.href == f"tasks?state=parked&reason={reason}&group=default&queue=hooks"


def test_another_queue_that_fails_has_another_cause() -> None:
    away = target(failed=40, open_since_us=NOW_US - 60_000_000, held=(Held("default", "hooks", 9),))
    found = seen(groups=(group(),))
    found = msgspec.structs.replace(found, paces={("default", "mail"): FAILS})
    _, effect = findings(with_reports(found, reported(targets=(away,))))
    assert "follow" not in effect.detail
    assert effect.command == "late tasks list parked --reason retry --group default --queue mail"


def test_the_tasks_of_a_worker_that_died_are_with_others() -> None:
    told = [reported(number=n, live=n == 1, targets=(target(),)) for n in (1, 2)]
    [found] = findings(with_reports(seen(), *told))
    assert "7 tasks wait for it" in found.detail
    [view] = targets_of(told)
    assert (view.workers, view.calls, view.in_memory) == (1, 40, 7)
