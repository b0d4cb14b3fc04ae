"""Timers and schedules while their owners die and clocks are wrong: promises P8 and P9."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import select

from late.control import Control
from late.control.rows import log_of
from late.schema.engine import make_engine, reading
from late.task import Options
from tests.chaos.plan import Size, What
from tests.chaos.sizes import sized
from tests.chaos.storm import Storm, Target
from tests.conformance.backends import Backend

pytestmark = pytest.mark.timeout(sized(300, 3600))
SKEWS_S = (600, -600, 0)
"""How wrong the clocks of the workers are; those of the producers and of the database are right."""
SECOND_US = 1_000_000


def test_p8_timers_are_neither_early_nor_lost(
    backend: Backend, target: Target, folder: Path
) -> None:
    """Parked, loaded and started by workers that die and whose clocks are wrong."""
    faults: dict[What, int] = {"kill_worker": sized(2, 20)}
    tasks = sized(1_000, 50_000) if target.traits.writers else sized(800, 20_000)
    if backend.emulated:
        faults["kill_worker"], tasks = sized(1, 6), sized(100, 1_000)
    within_s = sized(6, 60)
    size = Size(tasks, faults=faults, calm=True, timed_share=0.9, timed_within_s=within_s)
    storm = Storm(target, size, folder, environment={"LATE_HORIZON_S": "1"})

    with storm.begun():
        for skew_s in SKEWS_S:
            storm.fleet.add(LATE_CHAOS_SKEW_S=str(skew_s))
        storm.until(storm.fleet.all_up)
        storm.produce()
        storm.rage()
        storm.calm()
    report = storm.judged()

    assert not report.broken, report.line()
    assert report.lateness_p99_s is not None


def test_p9_a_schedule_fires_once_per_tick(backend: Backend, target: Target, folder: Path) -> None:
    """However its owners race and die. That rules and zones are right is tested on a virtual
    clock, in `test_cron` and `test_recurring`."""
    kills = sized(1, 15) if backend.emulated else sized(3, 50)
    size = Size(0, producers=0, faults={"kill_worker": kills})
    environment = {"LATE_CHAOS_TICKS": "1", "LATE_PRUNE_EVERY_S": "3600"}
    storm = Storm(target, size, folder, environment=environment)

    with storm.begun(), Control(target.url) as control:
        for _ in range(size.workers):
            storm.fleet.add()
        storm.until(storm.fleet.all_up)
        [first] = control.schedules()
        storm.rage()
        storm.until(lambda: len(_ticks(target.url)) >= kills)
        control.pause_schedule("tick")
        # An owner hears of the pause within seconds; what it had fired by then counts.
        storm.until(lambda: storm.quiet(lambda: len(_ticks(target.url))))
        ticks = _ticks(target.url)
        [last] = control.schedules()
        storm.adopt([task for task, _ in ticks])
        storm.calm()
    report = storm.judged()

    assert not report.broken, report.line()
    dues = [due_us for _, due_us in ticks]
    assert first.next_due_at_us is not None
    assert last.next_due_at_us is not None
    assert dues == list(range(dues[0], last.next_due_at_us, SECOND_US)), "each once, none left out"
    assert dues[0] <= first.next_due_at_us


def _ticks(url: str) -> list[tuple[str, int]]:
    """(task, when it was due) of everything that schedules have put into the log, by time."""
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            log = log_of(connection)
            rows = connection.execute(select(log.c.task_id, log.c.headers, log.c.options)).all()
    finally:
        engine.dispose()
    return sorted(
        ((str(task), _due_us(headers)) for task, headers, options in rows if _ticked(options)),
        key=lambda tick: tick[1],
    )


def _ticked(options: str | None) -> bool:
    return options is not None and msgspec.json.decode(options, type=Options).schedule is not None


def _due_us(headers: str) -> int:
    given = msgspec.json.decode(headers, type=dict[str, str])["late-due"]
    return round(datetime.fromisoformat(given).timestamp()) * SECOND_US
