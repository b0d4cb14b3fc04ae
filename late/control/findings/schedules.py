"""Findings about schedules: ticks that were left out, overlap or are late. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from late.control.findings.model import Finding
from late.control.findings.phrases import age
from late.control.status.snapshot import Snapshot
from late.model.worker_report import ScheduleSlips


def find(seen: Snapshot) -> Iterator[Finding]:
    """Yield a finding for each schedule of which a tick lately did not go as planned."""
    # The latest report of a schedule counts: its shard may have moved.
    slips: dict[str, ScheduleSlips] = {}
    for each in seen.reports:
        for told in each.report.slips if each.fresh else ():
            if told.at_us > slips.get(told.schedule, ScheduleSlips("")).at_us:
                slips[told.schedule] = told
    for name in sorted(slips):
        yield _of(slips[name], seen.status.now_us)


def _of(told: ScheduleSlips, now_us: int) -> Finding:
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
        text += (
            f": the task {told.open_task_id} of an earlier tick had not ended"
            f" (overlap={told.overlap})"
        )
    elif told.late:
        text += f": it fired {age(told.late_us / 1e6)} after its time, as no worker was there"
    text += ". What helps: a longer interval, or a task that ends sooner"
    command = f"late show {told.open_task_id}" if told.open_task_id else "late schedule list"
    return Finding("warn", what, f"{text}.", "schedules", command)
