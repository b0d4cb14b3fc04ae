"""Findings about schedules: ticks that were left out, overlap or are late. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from late.control.findings.model import Finding
from late.control.findings.phrases import age
from late.control.status.snapshot import Snapshot
from late.model.cron import every_us
from late.model.worker_report import ScheduleSlips


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
    if told.open_task_id:
        text += f": the task {told.open_task_id} of an earlier tick had not ended"
        text += f" (overlap={told.overlap})"
    elif told.late:
        text += f": it fired {age(told.late_us / 1e6)} after its time, as no worker was there"
    text += f".{_times(told, seen)} What helps: a longer interval, or a task that ends sooner."
    command = f"late show {told.open_task_id}" if told.open_task_id else "late schedule list"
    return Finding("warn", what, text, "schedules", command)


def _times(told: ScheduleSlips, seen: Snapshot) -> str:
    """Say how often the schedule fires, and for how long the earlier task has run."""
    parts = []
    if told.rule:
        every = every_us(told.rule)
        parts.append(
            f"It fires {f'at {told.rule}' if every is None else f'every {age(every / 1e6)}'}"
        )
    runs = [run for each in seen.reports if each.fresh for run in each.report.runs]
    began = [run.since_us for run in runs if told.open_task_id and run.task_id == told.open_task_id]
    if began:
        ran_s = max(0.0, (seen.status.now_us - max(began)) / 1e6)
        parts.append(f"{'that task' if parts else 'That task'} has run for {age(ran_s)} so far")
    return f" {', and '.join(parts)}." if parts else ""
