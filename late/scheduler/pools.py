"""The parts of a dispatcher that the loop needs: its own slots, and pools of other processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from late.model.task import Attempt


class Slots(Protocol):
    """The part of a dispatcher that the loop needs."""

    @property
    def load(self) -> int: ...
    def submit(self, attempts: Sequence[Attempt]) -> None: ...
    def abandon(self, group: str, shard_id: int, epoch: int) -> None: ...


class Pool(Protocol):
    """Takes attempts that another process executes: one per target."""

    @property
    def room(self) -> int:
        """Attempts it takes beyond those it has. It may change at any moment (then `wake`)."""

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Take up to `room` of them. Never blocks and never raises; each comes back once, to
        `Scheduler.finished`, with the pool's name as `Outcome.target`."""

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        """The shard was lost under `epoch`: results of it are dropped and counted."""
