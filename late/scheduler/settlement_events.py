"""Emit the events that follow from a settlement, computed from the values that were written.

That happens afterwards, from the journal's own content, so that a metric never disagrees with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from late import events
from late.model.task import Outcome, TaskId
from late.scheduler.limits.outages import Outages
from late.scheduler.schedules import GRACE_US
from late.store.base import Settlement


def settled(emitter: events.Emitter, settlement: Settlement, now_us: int) -> None:
    """Tell of a settlement that is in the journal."""
    group = settlement.group
    if emitter.wants(events.ENDED):
        for usage in settlement.usage:
            emitter.emit(
                events.ENDED,
                count=usage.count,
                attempts=usage.attempts,
                retries=usage.retries,
                bytes=usage.payload_bytes,
                busy_s=usage.busy_us / 1_000_000,
                waiting_s=usage.waiting_us / 1_000_000,
                group=group,
                queue=usage.queue,
                name=usage.name,
                target=usage.target,
                outcome=usage.outcome,
                waiting=usage.waiting,
                busy=usage.busy,
            )
    for letter in settlement.dead:
        emitter.emit(
            events.DEAD_LETTER,
            attempts=letter.attempts,
            group=group,
            queue=letter.record.queue,
            name=letter.record.name,
            reason=letter.reason,
            task=letter.record.task_id,
            error=letter.errors[-1].error if letter.errors else "",
        )
    for row in settlement.parked:
        if row.reason == "unknown":
            emitter.emit(
                events.UNKNOWN_TASK,
                count=1,
                group=group,
                queue=row.record.queue,
                name=row.record.name,
                task=row.record.task_id,
                error=row.errors[-1].error if row.errors else "",
            )
    for tick in settlement.ticks:
        emitter.emit(
            events.TICK,
            tasks=len(tick.tasks),
            lateness_s=max(0, now_us - tick.due_at_us) / 1_000_000,
            skipped=tick.skipped,
            overlaps=int(tick.overlaps),
            late=int(now_us - tick.due_at_us > GRACE_US),
            schedule=tick.schedule,
        )
        if tick.next_due_at_us is None:
            emitter.emit(
                events.SCHEDULE_DISABLED,
                schedule=tick.schedule,
                error="its rule cannot be read or never fires again",
            )


def failed(emitter: events.Emitter, outcomes: Sequence[Outcome]) -> None:
    """Tell of the attempts that failed, among these that ended."""
    for outcome in outcomes:
        if outcome.kind in ("failed", "died"):
            attempt = outcome.attempt
            emitter.emit(
                events.ATTEMPT_FAILED,
                attempt=attempt.number,
                group=attempt.group,
                queue=attempt.record.queue,
                name=attempt.record.name,
                task=attempt.record.task_id,
                error=outcome.error or outcome.reason or outcome.kind,
            )


def ended(emitter: events.Emitter, outcomes: Sequence[Outcome]) -> None:
    """Tell of each of these attempts."""
    for outcome in outcomes:
        attempt = outcome.attempt
        emitter.emit(
            events.ATTEMPT_ENDED,
            attempt=attempt.number,
            took_s=outcome.busy_us / 1_000_000,
            group=attempt.group,
            queue=attempt.record.queue,
            name=attempt.record.name,
            outcome=outcome.kind,
            task=attempt.record.task_id,
        )


def outages(emitter: events.Emitter, outages: Outages) -> None:
    """Tell of the outages that began and ended since the last time."""
    for (group, queue, name), began in outages.take_changes():
        event = events.OUTAGE_BEGAN if began else events.OUTAGE_ENDED
        emitter.emit(event, group=group, queue=queue, name=name)


def replayed(emitter: events.Emitter, shard: tuple[str, int], task_ids: Sequence[TaskId]) -> None:
    """Tell of second rows of tasks: one event for all, so that a flood of them is no flood here."""
    emitter.emit(
        events.REPLAYED,
        count=len(task_ids),
        group=shard[0],
        shard=shard[1],
        task=task_ids[0],
    )
