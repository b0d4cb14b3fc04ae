"""The values that a comparison of a shadow with the real group consists of."""

from __future__ import annotations

import msgspec

from late.control.views import Count


class RunCounts(msgspec.Struct, frozen=True):
    """The ends and times of the tasks of one name in one group."""

    done: int = 0
    dead: int = 0
    other: int = 0
    """Tasks that expired, were discarded or cancelled."""
    failed: int = 0
    """Attempts that failed and are tried again."""
    attempts: int = 0
    mean_s: float | None = None
    """The mean time of an attempt; None if there was none."""
    p95_s: float | None = None
    """The time that 95 of 100 attempts stay below."""


class TaskComparison(msgspec.Struct, frozen=True):
    """The tasks of one name in a shadow and in the real group."""

    queue: str
    name: str
    shadow: RunCounts
    real: RunCounts
    ratio: float | None = None
    """The mean time in the shadow, as a multiple of that in the real group."""
    differ: int = 0
    """The number of tasks that ended otherwise."""


class TaskDifference(msgspec.Struct, frozen=True):
    """One task that ended otherwise in the shadow than in the real group."""

    task_id: str
    queue: str
    name: str
    shadow: str
    """`done`, `retries` (it failed and is tried again), `unknown` (no handler), or `dead`."""
    real: str
    error: str = ""
    """The last error, of the group in which it failed."""


class Comparison(msgspec.Struct, frozen=True):
    """A shadow beside the real group."""

    shadow: str
    real: str
    since_us: int
    """Tasks that were created before are not compared."""
    until_us: int
    """The shadow is forgotten then."""
    tasks: tuple[TaskComparison, ...]
    differences: tuple[TaskDifference, ...]
    capped: bool = False
    """There are more differences than were looked at."""
    unread: Count = Count()
    """Tasks that the shadow has not read yet."""
    unended: Count = Count()
    """Tasks that the shadow has read, and that have not ended there yet."""
