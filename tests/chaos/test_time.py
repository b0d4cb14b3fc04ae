"""Timers and schedules while their owners die and clocks are wrong: promises P8 and P9."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from late.control import Control
from late.model.task import Schedule
from tests.chaos.plan import GAP_S, Size, What
from tests.chaos.sizes import STORES, sized
from tests.chaos.storm import Storm
from tests.chaos.target import Target
from tests.conformance.backends import Backend
from tests.support.history import read

pytestmark = pytest.mark.timeout(sized(600, 3600))
SKEWS_S = (600, -600, 0)
"""How wrong the clocks of the workers are; those of the producers and of the database are right."""


@pytest.mark.parametrize("backend", STORES, ids=lambda backend: backend.name, indirect=True)
def test_p8_timers_are_neither_early_nor_lost(
    backend: Backend, target: Target, folder: Path
) -> None:
    """Parked, loaded and started by workers that die and whose clocks are wrong."""
    faults: dict[What, int] = {"kill_worker": sized(2, 20)}
    tasks = sized(500, 50_000) if target.traits.writers else sized(400, 20_000)
    if backend.emulated:
        faults["kill_worker"], tasks = 6, 1_000
    within_s = sized(4, 60)
    gap_s = sized((0.2, 1.0), GAP_S)
    size = Size(
        tasks, faults=faults, calm=True, timed_share=0.9, timed_within_s=within_s, gap_s=gap_s
    )
    storm = Storm(target, size, folder, environment={"LATE_HORIZON_S": "1"})

    with storm.begun():
        for skew_s in SKEWS_S:
            # gRPC's client makes its deadlines of Python's clock, and its library judges them by
            # the machine's: what is done to a Python process would break its calls.
            seen_s = 0 if backend.network == "grpc" else skew_s
            storm.fleet.add(LATE_CHAOS_SKEW_S=str(seen_s))
        storm.until(storm.fleet.all_up)
        storm.produce()
        storm.rage()
        storm.calm()
    report = storm.judged()

    assert not report.broken, report.line()
    assert report.lateness_p99_s is not None


@pytest.mark.parametrize("backend", STORES, ids=lambda backend: backend.name, indirect=True)
def test_p9_a_schedule_fires_once_per_tick(backend: Backend, target: Target, folder: Path) -> None:
    """However its owners race and die. That rules and zones are right is tested on a virtual
    clock, in `test_cron` and `test_schedules`."""
    kills = 15 if backend.emulated else sized(2, 50)
    size = Size(0, producers=0, faults={"kill_worker": kills}, gap_s=sized((0.2, 1.0), GAP_S))
    storm = Storm(target, size, folder, environment={"LATE_CHAOS_TICKS": "1"})

    with storm.begun(), Control(target.url) as control:
        for _ in range(size.workers):
            storm.fleet.add()
        storm.until(storm.fleet.all_up)
        [first] = control.schedules.all()
        storm.rage()
        storm.until(lambda: len(_ticks(folder)) >= kills)
        control.schedules.pause("tick")
        # An owner hears of the pause within seconds; what it had fired by then counts.
        storm.until(lambda: storm.quiet(lambda: len(_ticks(folder))))
        storm.calm()
    ticks = _ticks(folder)
    with Control(target.url) as control:
        [last] = control.schedules.all()
    storm.adopt(list(ticks))
    report = storm.judged()

    assert not report.broken, report.line()
    dues = sorted(ticks.values())
    assert dues == list(range(dues[0], _seconds(last))), "each once, none left out"
    assert dues[0] <= _seconds(first)


def _seconds(schedule: Schedule) -> int:
    """When it is due next; its ticks say it in whole seconds."""
    assert schedule.next_due_at_us is not None
    return schedule.next_due_at_us // 1_000_000


def _ticks(folder: Path) -> dict[str, int]:
    """Task -> second at which it was due, of all ticks that have been executed."""
    return {
        event.task: round(datetime.fromisoformat(event.word).timestamp())
        for event in read(folder)
        if event.f == "exec_start" and event.word
    }
