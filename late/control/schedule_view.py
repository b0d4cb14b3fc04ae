"""The answer about one recurring task."""

from __future__ import annotations

import msgspec

from late.model.task import Schedule
from late.model.ticks import fires_at_us


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring task without its payload, which may be confidential."""

    name: str
    shard_id: int
    rule: str
    zone: str
    catch_up: str
    catch_up_max: int
    overlap: str
    queue: str
    task_name: str
    options: str | None
    anchor_us: int
    next_due_at_us: int | None
    paused: bool
    open_task_id: str | None
    payload_bytes: int
    jitter_us: int = 0
    """The most by which a tick comes later than its rule says; how much follows from the tick."""
    fires_at_us: int | None = None
    """The time of the next tick with its jitter."""

    @classmethod
    def of(cls, schedule: Schedule) -> ScheduleView:
        """Return the view of a schedule."""
        fields = msgspec.structs.asdict(schedule)
        del fields["former"]
        due_us = schedule.next_due_at_us
        fires = None if due_us is None else fires_at_us(schedule, due_us)
        return cls(payload_bytes=len(fields.pop("payload")), fires_at_us=fires, **fields)
