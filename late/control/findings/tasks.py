"""Findings about tasks: one that kills its workers, consumers that do not answer. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from late.control.findings.model import Finding, Level
from late.control.findings.phrases import age
from late.control.status.snapshot import Snapshot
from late.control.views import SuspectTask
from late.model.worker_report import CONSUMER, Run

NAMED = 5
"""Tasks that have a finding of their own."""
SILENT_S = 30.0
"""From then on a consumer that has a task which was out before may not answer at all."""


def find(seen: Snapshot) -> Iterator[Finding]:
    """Yield the tasks under which workers die, and the consumers that do not answer."""
    once = [each for each in seen.status.suspects if each.deaths == 1]
    # Most that ran beside one death are innocent: one finding for all of them.
    alone = once if len(once) == 1 else []
    for each in [*(e for e in seen.status.suspects if e.deaths > 1), *alone][:NAMED]:
        deaths = "One worker" if each.deaths == 1 else f"{each.deaths} workers"
        text = (
            f"{deaths} died while it ran, in group {each.group}. It runs on trial, alone, from now"
            " on, and is a dead letter (killed_worker) when more of them die. What helps: mend its"
            " code, and only then retry it."
        )
        yield Finding(
            "warn" if each.deaths == 1 else "bad", f"Workers die under task {each.task_id}", text,
            f"tasks/{each.task_id}", f"late show {each.task_id}",
            groups=frozenset({each.group}),
        )  # fmt: skip
    if len(once) > 1:
        yield _beside(once)
    yield from (finding for _, finding in _silent(seen))


def _beside(suspects: Sequence[SuspectTask]) -> Finding:
    """Say of tasks that ran at one death each that one of them may be the cause."""
    ids = ", ".join(each.task_id for each in suspects[:NAMED])
    more = f" and {len(suspects) - NAMED} more" if len(suspects) > NAMED else ""
    text = (
        f"They ran when it died: {ids}{more}. Most are innocent. Each runs on trial, alone; the one"
        " under which workers die again is named here, and becomes a dead letter (killed_worker)."
    )
    first = suspects[0].task_id
    what = f"A worker died under one of {len(suspects)} tasks"
    groups = frozenset(each.group for each in suspects)
    return Finding("warn", what, text, f"tasks/{first}", f"late show {first}", groups=groups)


def causes(seen: Snapshot) -> dict[str, Finding]:
    """Return by queue the finding on a consumer of it that does not answer."""
    return dict(_silent(seen))


def _silent(seen: Snapshot) -> Iterator[tuple[str, Finding]]:
    """Yield the consumers that let the time of their tasks pass, by what their servers counted,
    else by what they have had for long; each with its queue."""
    passed: Counter[tuple[str, str]] = Counter()
    for each in seen.reports:
        for told in each.report.silent if each.running else ():
            passed[told.consumer, told.queue] += told.unanswered
    for (consumer, queue), times in sorted(passed.items()):
        text = (
            f"It let the time of {times} attempts at tasks of queue {queue} pass and answered none"
            " since. Each is a failed attempt, and after the last one the task is a dead letter."
        )
        yield queue, _silent_one(consumer, queue, text, "bad")
    runs: dict[tuple[str, str], list[Run]] = {}
    for each in seen.reports:
        for run in each.report.runs if each.running else ():
            if run.where.startswith(CONSUMER):
                runs.setdefault((run.where.removeprefix(CONSUMER), run.queue), []).append(run)
    for (consumer, queue), found in sorted(runs.items()):
        again = [run for run in found if run.attempt > 1]
        oldest_s = (seen.status.now_us - min(run.since_us for run in found)) / 1e6
        if not again or oldest_s < SILENT_S or (consumer, queue) in passed:
            continue
        text = (
            f"It has {len(found)} tasks of queue {queue}, the oldest for {age(oldest_s)};"
            f" {len(again)} of them were out before, up to {max(r.attempt for r in again) - 1}"
            " times, and came back unanswered or failed."
        )
        yield queue, _silent_one(consumer, queue, text)


def _silent_one(consumer: str, queue: str, text: str, level: Level = "warn") -> Finding:
    link = f"queues/{quote(queue, safe='')}"
    text += " What helps: pause the queue, so that no attempt is lost, and mend the consumer."
    return Finding(
        level, f"Consumer {consumer} does not answer", text, link,
        f"late queue pause {shlex.quote(queue)}",
        queues=frozenset({queue}),
    )  # fmt: skip
