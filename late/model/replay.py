"""Replays: how fast a group that was reset runs its old tasks again, and windows that run again."""

from __future__ import annotations

import msgspec


class Replay(msgspec.Struct, frozen=True):
    """The last reset of a group that runs tasks again."""

    replay_us: int
    """The time of the reset: tasks that were created before it are replayed."""
    rate: float | None = None
    """Replayed tasks that begin in a second, at most; None: as fast as they can."""


class WindowState(msgspec.Struct, frozen=True):
    """The last replay of a window of a group."""

    group: str
    since_us: int
    until_us: int
    rate: float
    """Tasks that fall due in a second; 0: not known, as an older version has begun it."""
    copied: int
    """Tasks that were put back so far."""
    due_us: int
    """The time at which the last of them falls due."""
    finished_us: int | None
    """The time at which it ended; None while it is under way, or was left."""
    cancelled: bool
