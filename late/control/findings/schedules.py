"""Findings about schedules: ticks that were left out, overlap or are late. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from late.control.findings.model import Finding
from late.control.findings.phrases import age
from late.control.status.snapshot import Snapshot
from late.model.cron import every_us
from late.model.worker_report import ScheduleSlips

LATE_US = 60_000_000
"""A tick that fires later than this is late: the grace of `late.scheduler.schedules`."""


def find(seen: Snapshot) -> Iterator[Finding]:
    """Yield a finding for each schedule of which a tick lately did not go as planned."""
    yield from by_name(seen).values()


def by_name(seen: Snapshot) -> dict[str, Finding]:
    """Return the findings by the names of their schedules, ascending."""
    paused = {each.name for each in seen.status.pauses if each.kind == "schedule"}
    # The latest report of a schedule counts: its shard may have moved.
    slips: dict[str, ScheduleSlips] = {}
    for each in seen.reports:
        for told in each.report.slips if each.fresh else ():
            if told.at_us > slips.get(told.schedule, ScheduleSlips("")).at_us:
                slips[told.schedule] = told
    return {name: _of(slips[name], seen) for name in sorted(slips.keys() - paused)}


def _of(told: ScheduleSlips, seen: Snapshot) -> Finding:
    now_us = seen.status.now_us
    ago = age(max(0.0, (now_us - told.at_us) / 1e6))
    if told.skipped:
        what = f"Schedule {told.schedule} skips ticks"
        text = f"{told.skipped} were left out, the last {ago} ago"
    elif told.overlaps:
        what = f"Schedule {told.schedule} overlaps"
        text = f"{told.overlaps} ticks fired beside an earlier task, the last {ago} ago"
    else:
        what = f"Schedule {told.schedule} is late"
        text = f"{told.late} ticks were late, the last {ago} ago"
    text += f"{_why(told)}.{_times(told, seen)} What helps: {_remedy(told)}."
    task = told.open_task_id and not _held_up(told)
    command = f"late show {told.open_task_id}" if task else "late schedule list"
    return Finding("warn", what, text, "schedules", command)


def _held_up(told: ScheduleSlips) -> bool:
    """Tell whether the last of these ticks waited for its settlement, and not for its policy."""
    return told.late_us > LATE_US


def _why(told: ScheduleSlips) -> str:
    """Say what is known of the cause. After a time in which nothing was recorded, an earlier task
    may have ended long ago, or have come into the log a moment ago: it is not named as the cause.
    """
    if _held_up(told):
        return (
            f": for {age(told.late_us / 1e6)} from its time on, no tick was recorded. Either no"
            " worker of the default group was there, or the database took no writes"
        )
    if told.open_task_id:
        task_id, overlap = told.open_task_id, told.overlap
        return f": the task {task_id} of an earlier tick had not ended (overlap={overlap})"
    return ""


def _remedy(told: ScheduleSlips) -> str:
    if _held_up(told):
        return "the log of the workers of that time says what was in the way"
    return "a longer interval, or a task that ends sooner"


def _times(told: ScheduleSlips, seen: Snapshot) -> str:
    """Say how often the schedule fires, and for how long the earlier task has run."""
    parts = []
    if told.rule:
        every = every_us(told.rule)
        parts.append(
            f"It fires {f'at {told.rule}' if every is None else f'every {age(every / 1e6)}'}"
        )
    runs = [run for each in seen.reports if each.running for run in each.report.runs]
    began = [run.since_us for run in runs if told.open_task_id and run.task_id == told.open_task_id]
    if began and not _held_up(told):
        ran_s = max(0.0, (seen.status.now_us - max(began)) / 1e6)
        parts.append(f"{'that task' if parts else 'That task'} has run for {age(ran_s)} so far")
    return f" {', and '.join(parts)}." if parts else ""
