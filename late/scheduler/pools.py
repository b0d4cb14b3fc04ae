"""The parts of a dispatcher that the loop needs: its own slots, and pools of other processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Protocol

from late.model.task import Attempt

_group = attrgetter("group")
_task_id = attrgetter("record.task_id")


class Slots(Protocol):
    """The part of a dispatcher that the loop needs."""

    @property
    def load(self) -> int: ...
    @property
    def queued(self) -> Collection[Attempt]: ...
    def submit(self, attempts: Sequence[Attempt]) -> None: ...
    def abandon(self, group: str, shard_id: int, epoch: int) -> None: ...


class Pool(Protocol):
    """Takes attempts that another process executes: one per target."""

    @property
    def room(self) -> int:
        """Attempts it takes beyond those it has. It may change at any moment (then `wake`)."""

    @property
    def queued(self) -> Collection[Attempt]:
        """Attempts that are here and that nobody has begun, as far as is known."""

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Take up to `room` of them. Never blocks and never raises; each comes back once, to
        `Scheduler.finished`, with the pool's name as `Outcome.target`."""

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        """The shard was lost under `epoch`: results of it are dropped and counted."""


def dispatch(
    attempts: list[Attempt], slots: Slots, pools: Mapping[str, Pool], rooms: dict[str, int]
) -> int:
    """Hand attempts to their pools; return how many went to the worker's own slots.

    Args:
        rooms: the room of each pool, which becomes less.
    """
    local = attempts
    if pools:
        local = [attempt for attempt in attempts if attempt.target not in pools]
        for name, pool in pools.items():
            of_pool = [attempt for attempt in attempts if attempt.target == name]
            if of_pool:
                rooms[name] -= len(of_pool)
                pool.submit(of_pool)
    if local:
        slots.submit(local)
    return len(local)


def queued_by_group(holders: Iterable[Slots | Pool]) -> dict[str, set[str]]:
    """Return the tasks of each group that are handed over and that nobody has begun.

    Hundreds may be, and each settlement asks: of one group no loop here goes over them.
    """
    found: dict[str, set[str]] = {}
    for holder in holders:
        queued = holder.queued
        groups = set(map(_group, queued))
        for group in groups:
            mine = queued if len(groups) == 1 else [a for a in queued if a.group == group]
            found.setdefault(group, set()).update(map(_task_id, mine))
    return found
