"""A shadow: a consumer group that tries code on real tasks, without effects."""

from __future__ import annotations

import msgspec

KEEP_S = 3 * 86_400.0
"""The time for which a shadow lives, and the log keeps tasks for it, if nothing else is said."""
KEEP_MAX_S = 31 * 86_400.0
RATE_MIN, RATE_MAX = 0.001, 1_000_000.0
SPEED_MIN, SPEED_MAX = 0.001, 1_000_000.0


class Shadow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of a shadow beside its row. Times are by the database's clock."""

    of: str
    """The group that it is compared with."""
    until_us: int
    """It is forgotten then."""
    since_us: int
    """The tasks that were created from then on are compared."""
    rate: float | None = None
    """Tasks that it begins in a second, at most."""
    speed: float | None = None
    """It takes tasks at so many times the pace at which they were created."""
    began_us: int | None = None
    """The time at which its first worker began, from which `speed` counts."""

    def due_us(self, created_at_us: int) -> int:
        """Return when a task that was created then is to be taken; 0: at once."""
        if self.speed is None or self.began_us is None:
            return 0
        return self.began_us + round((created_at_us - self.since_us) / self.speed)
