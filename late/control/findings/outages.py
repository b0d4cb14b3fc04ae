"""Findings about outages of what handlers need, by what the workers report. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from urllib.parse import urlencode

from late.control.findings.model import Finding
from late.control.findings.phrases import age, count
from late.control.status.snapshot import Snapshot
from late.control.views import Count
from late.model.worker_report import OutageReport


def find(seen: Snapshot) -> Iterator[tuple[str, Finding]]:
    """Yield each task of which most attempts fail in workers' handlers, with the finding on it."""
    by_task: dict[tuple[str, str, str], list[OutageReport]] = {}
    for outage in told(seen):
        by_task.setdefault((outage.group, outage.queue, outage.task), []).append(outage)
    parked = {(each.group, each.queue, each.task): each.waiting for each in seen.status.limited}
    for (group, queue, task), reports in sorted(by_task.items()):
        last = max(reports, key=lambda each: each.error_at_us)
        since_us = min(each.since_us for each in reports)
        since_s = max(0.0, (seen.status.now_us - since_us) / 1e6)
        waiting = parked.get((group, queue, task), Count())
        where = f"in {len(reports)} workers" if len(reports) > 1 else "in one worker"
        parts = [f"Most attempts of it in queue {queue} fail, for {age(since_s)}, {where}."]
        if last.error:
            error = last.error.replace("\\n", " ")  # of a worker of an older version
            parts.append(f"The last error: {error}.")
        parts.append(
            f"{count(waiting)} wait and lose no attempt: one at a time tries whether it is over."
        )
        given = {"group": group, "queue": queue, "name": task}
        options = " ".join(f"--{name} {shlex.quote(value)}" for name, value in given.items())
        yield task, Finding(
            "bad", f"Outage of what {task} ({group}) needs", " ".join(parts),
            f"tasks?state=parked&{urlencode(given)}", f"late tasks list parked {options}",
            since_us, frozenset({group}), frozenset({queue}),
        )  # fmt: skip


def queues_of(seen: Snapshot) -> set[tuple[str, str]]:
    """Return the queues with an outage, by group and name."""
    return {(outage.group, outage.queue) for outage in told(seen)}


def told(seen: Snapshot) -> Iterator[OutageReport]:
    """Yield the outages that workers report now."""
    for each in seen.reports:
        if each.working:
            yield from each.report.outages
