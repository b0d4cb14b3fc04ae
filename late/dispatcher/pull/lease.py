"""What is out with a consumer of a pulled queue. Pure."""

from __future__ import annotations

import msgspec

from late.model.task import PULL_POOL, Attempt


class Hold(msgspec.Struct):
    """One attempt that a consumer has."""

    serial: int
    attempt: Attempt
    consumer: str
    started_us: int
    begun: float
    """Monotonic, like `until`."""
    until: float
    visibility_s: float
    """The time that it was last given."""
    until_us: int
    """The same by the database's clock: for people and programs elsewhere, it decides nothing."""


def pool_name(queue: str) -> str:
    """Under which name the scheduler knows the pool of a pulled queue."""
    return PULL_POOL + queue


def identity(attempt: Attempt) -> tuple[str, int, int, str, int]:
    """(group, shard, epoch, task, number): what a receipt is bound to."""
    record = attempt.record
    return attempt.group, record.shard_id, attempt.epoch, record.task_id, attempt.number
