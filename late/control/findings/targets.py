"""Findings about targets, by what the workers that call them report. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from late.control.findings.model import Finding
from late.control.findings.phrases import age, count
from late.control.status.snapshot import Snapshot
from late.control.views import Count, Reported
from late.model.worker_report import TargetReport

CALLS_MIN = 5
"""Calls in the last seconds below which a share of failures says nothing."""
FAILING = 0.25
HELPS = "What helps: mend it, or tell those who run it; late then goes on by itself."
AWAY = 0.9
"""The part of its calls that fails, from which on a target with an open circuit is away."""


class TargetView(msgspec.Struct, frozen=True):
    """One target as all workers together see it."""

    name: str
    kind: str
    where: str
    workers: int
    """Workers that report it."""
    calls: int
    failed: int
    error: str
    """The latest error of a call."""
    error_at_us: int
    open_in: int
    """Workers in which its circuit is open."""
    open_since_us: int | None
    """The time since when it is open somewhere."""
    in_memory: int
    """Tasks that wait for it in workers' memory alone."""
    parked: Count
    """Tasks that wait for it in the database, because it fails or has its limit."""
    tasks: tuple[str, ...]

    @property
    def waiting(self) -> Count:
        """Return all tasks that wait for it, without those that no worker has read yet."""
        return Count(self.in_memory) + self.parked

    @property
    def share(self) -> float:
        """The part of its last calls that failed."""
        return self.failed / self.calls if self.calls else 0.0

    @property
    def failing(self) -> bool:
        """True if its circuit is open, or enough of its calls failed to say so."""
        enough = self.calls >= CALLS_MIN and self.share >= FAILING
        return self.open_since_us is not None or enough


def targets_of(
    seen: Iterable[Reported], parked: dict[str, Count] | None = None
) -> list[TargetView]:
    """Join what the workers report, ascending by name.

    Args:
        parked: tasks that a limit holds in the timer table, by their name.
    """
    told: dict[str, list[TargetReport]] = {}
    for each in seen:
        if each.working:
            for target in each.report.targets:
                told.setdefault(target.name, []).append(target)
    return [_join(name, told[name], parked or {}) for name in sorted(told)]


def _join(name: str, told: list[TargetReport], parked: dict[str, Count]) -> TargetView:
    last = max(told, key=lambda each: each.error_at_us)
    opened = [each.open_since_us for each in told if each.open_since_us is not None]
    tasks = sorted({task for each in told for task in each.tasks})
    return TargetView(
        name=name,
        kind=last.kind,
        where=last.where,
        workers=len(told),
        calls=sum(each.calls for each in told),
        failed=sum(each.failed for each in told),
        error=last.error,
        error_at_us=last.error_at_us,
        open_in=len(opened),
        open_since_us=min(opened, default=None),
        in_memory=sum(each.waiting for each in told),
        parked=sum((parked.get(task, Count()) for task in tasks), Count()),
        tasks=tuple(tasks),
    )


def find(seen: Snapshot) -> Iterator[Finding]:
    """Yield a finding for each target that fails."""
    yield from (finding for _, finding in _failing(seen))


def causes(seen: Snapshot) -> dict[str, Finding]:
    """Return by task the finding on the target that it needs and that fails."""
    return {task: finding for target, finding in _failing(seen) for task in target.tasks}


def causes_by_queue(seen: Snapshot) -> dict[tuple[str, str], Finding]:
    """Return the same by group and queue, of the tasks that wait while its circuit is open."""
    held = {
        target.name: {(each.group, each.queue) for each in target.held}
        for worker in seen.reports
        if worker.working
        for target in worker.report.targets
    }
    return {key: finding for target, finding in _failing(seen) for key in held[target.name]}


def _failing(seen: Snapshot) -> Iterator[tuple[TargetView, Finding]]:
    now_us = seen.status.now_us
    for each in targets_of(seen.reports, parked_by_task(seen)):
        opened = each.open_since_us is not None
        if not each.failing:
            continue
        parts = [f"{each.share:.0%} of its last {each.calls} calls failed."] if each.calls else []
        if each.error:
            ago_s = max(0.0, (now_us - each.error_at_us) / 1e6)
            parts.append(f"The last error, {age(ago_s)} ago: {each.error}.")
        if each.open_since_us is not None:
            since_s = max(0.0, (now_us - each.open_since_us) / 1e6)
            parts.append(
                f"Its circuit is open for {age(since_s)}, in {each.open_in} of {each.workers}"
                " workers: single calls find out whether it is back."
            )
        parts.append(f"{waits(each)}{' They lose no attempt.' if opened else ''}")
        parts.append(HELPS)
        away = opened and each.share >= AWAY
        what = f"Target {each.name} is away" if away else f"Target {each.name} fails"
        yield each, Finding(
            "bad" if opened or each.share >= 0.5 else "warn", what, " ".join(parts),
            "targets", "late target list --check",
            each.open_since_us,
            *_callers(each.name, seen),
        )  # fmt: skip


def _callers(target: str, seen: Snapshot) -> tuple[frozenset[str] | None, frozenset[str] | None]:
    """Return the groups and the queues of the workers that call a target."""
    told = [
        each.report
        for each in seen.reports
        if each.working and any(one.name == target for one in each.report.targets)
    ]
    queues = frozenset(queue for each in told for queue in each.queues)
    return frozenset(group for each in told for group in each.groups), queues or None


def waits(each: TargetView) -> str:
    """Say how many tasks wait for a target, and where."""
    text = f"{count(each.waiting)} tasks wait for it"
    if each.waiting.n:
        text += f": {each.in_memory:,} in workers' memory, {count(each.parked)} parked"
    return f"{text}."


def parked_by_task(seen: Snapshot) -> dict[str, Count]:
    """Return the tasks that a limit holds in the timer table, by name, over all groups."""
    found: dict[str, Count] = {}
    for each in seen.status.limited:
        found[each.task] = found.get(each.task, Count()) + each.waiting
    return found
