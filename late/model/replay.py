"""The pace of a replay: how fast a group that was reset runs its old tasks again."""

from __future__ import annotations

import msgspec


class Replay(msgspec.Struct, frozen=True):
    """The last reset of a group that runs tasks again."""

    replay_us: int
    """The time of the reset: tasks that were created before it are replayed."""
    rate: float | None = None
    """Replayed tasks that begin in a second, at most; None: as fast as they can."""
