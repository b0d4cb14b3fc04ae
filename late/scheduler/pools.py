"""The parts of a dispatcher that the loop needs: its own slots, and pools of other processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from late.model.task import Attempt, ShardId


class Slots(Protocol):
    """The part of a dispatcher that the loop needs."""

    @property
    def load(self) -> int: ...
    @property
    def queued(self) -> Iterable[Attempt]: ...
    def submit(self, attempts: Sequence[Attempt]) -> None: ...
    def abandon(self, group: str, shard_id: int, epoch: int) -> None: ...


class Pool(Protocol):
    """Takes attempts that another process executes: one per target."""

    @property
    def room(self) -> int:
        """Attempts it takes beyond those it has. It may change at any moment (then `wake`)."""

    @property
    def queued(self) -> Iterable[Attempt]:
        """Attempts that are here and that nobody has begun, as far as is known."""

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Take up to `room` of them. Never blocks and never raises; each comes back once, to
        `Scheduler.finished`, with the pool's name as `Outcome.target`."""

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        """The shard was lost under `epoch`: results of it are dropped and counted."""


def queued_by_shard(holders: Iterable[Slots | Pool]) -> dict[tuple[str, ShardId], set[str]]:
    """Return the tasks of each shard that are handed over and that nobody has begun."""
    found: dict[tuple[str, ShardId], set[str]] = {}
    for holder in holders:
        for attempt in holder.queued:
            shard = (attempt.group, ShardId(attempt.record.shard_id))
            found.setdefault(shard, set()).add(attempt.record.task_id)
    return found
