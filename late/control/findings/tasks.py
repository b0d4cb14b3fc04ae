"""Findings about tasks: one that kills its workers, consumers that do not answer. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from urllib.parse import quote

from late.control.findings.model import Finding
from late.control.findings.phrases import age
from late.control.status.snapshot import Snapshot
from late.model.worker_report import CONSUMER, Run

SILENT_S = 30.0
"""A consumer that has a task for so long, which was tried before, may not answer at all."""


def find(seen: Snapshot) -> Iterator[Finding]:
    """Yield the tasks under which workers die, and the consumers that do not answer."""
    for (group, queue), pace in sorted(seen.paces.items()):
        for name, deaths in pace.died:
            attempts = "1 attempt" if deaths == 1 else f"{deaths} attempts"
            text = (
                f"{attempts} of queue {queue} ended with the death of its worker in the last"
                " minute. It runs on trial from now on, alone, and then becomes a dead letter."
            )
            link = f"dead?group={quote(group, safe='')}&queue={quote(queue, safe='')}"
            yield Finding(
                "bad", f"Workers die while they run {name}", text, link,
                f"late dead list --reason killed_worker --queue {shlex.quote(queue)}",
            )  # fmt: skip
    yield from _silent(seen)


def _silent(seen: Snapshot) -> Iterator[Finding]:
    runs: dict[tuple[str, str], list[Run]] = {}
    for each in seen.reports:
        for run in each.report.runs if each.fresh else ():
            if run.where.startswith(CONSUMER):
                runs.setdefault((run.where.removeprefix(CONSUMER), run.queue), []).append(run)
    for (consumer, queue), found in sorted(runs.items()):
        again = [run for run in found if run.attempt > 1]
        oldest_s = (seen.status.now_us - min(run.since_us for run in found)) / 1e6
        if not again or oldest_s < SILENT_S:
            continue
        text = (
            f"It has {len(found)} tasks of queue {queue}, the oldest for {age(oldest_s)};"
            f" {len(again)} of them were out before, up to {max(r.attempt for r in again) - 1}"
            " times, and came back unanswered or failed."
        )
        link = f"tasks?state=running&queue={quote(queue, safe='')}"
        yield Finding(
            "warn", f"Consumer {consumer} does not answer", text, link,
            f"late tasks list running --queue {shlex.quote(queue)}",
        )  # fmt: skip
