"""The screen of workers: each with its state, heartbeat, clock, release and runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from late.control.findings.model import Level
from late.control.findings.workers import DUTIES, standing
from late.control.status.snapshot import Snapshot
from late.control.views import Reported, WorkerStatus
from late.model.worker_report import Run, WorkerReport
from late.tailer.placement import lanes_of, waits
from late.web.formats import age

NAMED = 3
"""Runs of one worker that are named; the others are counted."""
NEAR = "within 10 s"
"""A clock that nobody has to look at: a worker reports one that is off by more."""


class WorkerRow(msgspec.Struct, frozen=True):
    """One worker."""

    worker_id: str
    address: str
    level: Level
    state: str
    """Its state for the other workers: alive, stalled, leaving, standby or not a member."""
    why: str
    """The cause of the state, in words; empty for a worker that is alive."""
    since_us: int | None
    """The time since when it is stalled."""
    heartbeat: str
    clock: str
    """The offset of its clock from the database's."""
    version: str
    groups: tuple[str, ...]
    lanes: tuple[str, ...]
    """Those that it serves; empty: all."""
    shards: int
    runs: tuple[Run, ...]
    """The longest of what it runs for over two seconds."""
    more: int
    """Its further runs of over two seconds."""
    started_at_us: int | None


def rows(seen: Snapshot) -> list[WorkerRow]:
    """Make a row of each live worker and of each that is stalled, those in trouble first."""
    return sorted(_rows(seen), key=lambda row: (row.level != "bad", row.level == "ok"))


def _rows(seen: Snapshot) -> Iterator[WorkerRow]:
    told = {each.report.worker_id: each for each in seen.reports if each.fresh}
    listed = {each.worker_id: each for each in seen.status.workers}
    for each in standing(seen):
        if each.report.worker_id not in listed:
            yield _row(None, each)
    for worker in listed.values():
        yield _row(worker, told.get(worker.worker_id))


def _row(worker: WorkerStatus | None, told: Reported | None) -> WorkerRow:
    """Make the row of one worker, of which at least one of the two is known."""
    report = told.report if told else WorkerReport(worker.worker_id if worker else "", "")
    level, state, why = _state(worker, report)
    running = [*report.stuck, *(run for run in report.runs if run not in report.stuck)]
    return WorkerRow(
        worker_id=report.worker_id,
        address=(worker.address if worker else report.address) or "–",
        level=level,
        state=state,
        why=why,
        since_us=report.stalled_since_us if report.stalled else None,
        heartbeat=(
            f"valid for {age(worker.expires_in_s)} more"
            if worker
            else f"withdrawn; its report is {age(told.age_s if told else None)} old"
        ),
        clock=_clock(report.clock_off_s),
        # What follows the + is for other workers.
        version=worker.version.partition("+")[0] if worker else "–",
        groups=worker.groups if worker else report.groups,
        lanes=lanes_of(worker.version) if worker else (),
        shards=worker.shards if worker else 0,
        runs=tuple(running[:NAMED]),
        more=len(running) - len(running[:NAMED]),
        started_at_us=worker.started_at_us if worker else None,
    )


def _state(worker: WorkerStatus | None, report: WorkerReport) -> tuple[Level, str, str]:
    """Return the level, the word and the cause of a worker's state."""
    if report.stalled:
        why = "; ".join(DUTIES.get(duty, f"it does not {duty}") for duty in report.stalled)
        if report.unrecorded:
            why += f"; {report.unrecorded} ends are not recorded: its death repeats these tasks"
        return "bad", "stalled", why
    if report.unlisted:
        return (
            "bad",
            "not a member",
            f"{report.unlisted} is not in LATE_MEMBERSHIP: it gets no shard",
        )
    if worker is not None and worker.capacity == 0:
        return "warn", "leaving", "it ends what it runs and gives its shards to others"
    if worker is not None and waits(worker.version):
        return "ok", "standby", "it takes the place of a worker that leaves"
    return "ok", "alive", ""


def _clock(off_s: int) -> str:
    """Say how far a clock is from the database's, by whole seconds that it is behind."""
    if not off_s:
        return NEAR
    return f"{age(abs(off_s))} {'behind' if off_s > 0 else 'ahead'}"
