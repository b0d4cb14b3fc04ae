"""Parts of the answer of `late status`: pauses and objectives. See `late.control.views`."""

from __future__ import annotations

import msgspec


class Pause(msgspec.Struct, frozen=True):
    """One thing that is paused."""

    kind: str
    """`queue`, `target`, `group` or `schedule`."""
    name: str
    by: str = ""
    """The actor, as the audit tells it; empty if it does not."""
    since_us: int | None = None


class Burn(msgspec.Struct, frozen=True):
    """The burn rate of one window."""

    window: str
    """`5m`, `30m`, `1h`, `6h` or `7d`."""
    rate: float
    """The part of the starts that was late, in parts of the error budget: from 1 on the budget does
    not last. Where nothing started, the part of the window for which the oldest task is late."""
    started: int = 0
    """Attempts that started in it, of the shards that were read."""


class ObjectiveView(msgspec.Struct, frozen=True):
    """The objective of one queue in one group, or of a whole group: how much of its error budget is
    left, and how fast it is used up."""

    group: str
    queue: str
    """Empty: all queues of the group together."""
    objective_s: float
    """Seconds within which an attempt must start, counted from when it is due."""
    share: float
    """The part of the attempts that must; the rest is the error budget."""
    started: int
    """Attempts that started in the last seven days, of the shards that were read."""
    late: int
    """Those of them that started later than that."""
    overdue_s: float
    """The time by which the oldest task that is not done is over the objective now."""
    budget_left: float
    """The part of the error budget of seven days that is left."""
    burns: tuple[Burn, ...]
    shards: int
    """The shards that were read: where the journal is long, some stand for all."""
    shards_all: int

    def burn(self, window: str) -> float:
        """Return the burn rate of a window."""
        return next((each.rate for each in self.burns if each.window == window), 0.0)

    def starts(self, window: str) -> int:
        """Return how many attempts started in a window."""
        return next((each.started for each in self.burns if each.window == window), 0)
