"""Lends the settlement of tasks to the transaction that has their effects.

Only one writes settlements of a worker at a time: the settler, or one such transaction. So the rows
of a shard's journal come in order, and nothing that the transaction ends is settled twice.

| the transaction | what happens |
|---|---|
| committed | its tasks have ended, as after any settlement |
| rolled back | its tasks still run, and nothing of their end was recorded |
| was refused by the journal | the substitutes say of which shard it was, and that shard is lost |
| answered nothing | a substitute with the same `seq` is settled: see `_find_out` |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic
from typing import Protocol

from late import events
from late.errors import StoreError
from late.model.task import Attempt, Outcome, ShardId
from late.scheduler import settlement_events as report
from late.scheduler.core.settlements import shared_settlement
from late.scheduler.core.settlements.shared_settlement import SharedSettlement
from late.scheduler.core.shard_core import ShardCore
from late.scheduler.core.window import NONE
from late.scheduler.pools import Pool, Slots, queued_by_group
from late.scheduler.scheduler import Scheduler, Shard
from late.store.base import Fate, Settlement, SettleResult

WAIT_S = 5.0
"""The longest wait for the settlements of others. The transaction holds its locks meanwhile, and a
settlement may wait for one of them."""

Part = tuple[ShardCore, SharedSettlement]
Commit = Callable[
    [Sequence[Outcome], Callable[[Sequence[Settlement]], Awaitable[Fate]]], Awaitable[Fate]
]
"""See `SharedSettlements._commit`."""


class Writer(Protocol):
    """The part of the settler that is needed."""

    def exclusive(self) -> AbstractAsyncContextManager[None]: ...
    async def write(self, settlements: Sequence[Settlement]) -> list[SettleResult]: ...


class SharedSettlements:
    """Settles tasks in transactions of their handlers. Everything happens on the worker's loop.

    Args:
        holders: what has attempts that have not begun.
        on_error: gets settlements that the store refuses for good, as the settler's does.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        settler: Writer,
        *,
        holders: Callable[[], Iterable[Slots | Pool]],
        on_error: Callable[[Sequence[Settlement], StoreError], None],
        now_us: Callable[[], int],
    ) -> None:
        self._scheduler = scheduler
        self._settler = settler
        self._holders = holders
        self._on_error = on_error
        self._now_us = now_us

    @asynccontextmanager
    async def alone(self, attempts: Iterable[Attempt]) -> AsyncIterator[Commit | None]:
        """Keep all other settlements of the worker out of the block, and yield what settles in it;
        None if the settlements before take too long: roll back then.

        Args:
            attempts: those of the transaction.
        """
        exclusive = self._settler.exclusive()
        try:
            async with asyncio.timeout(WAIT_S):
                await exclusive.__aenter__()
        except TimeoutError:
            yield None
            return
        try:
            await self._settle_before({_shard_of(attempt) for attempt in attempts})
            yield self._commit
        finally:
            await exclusive.__aexit__(None, None, None)

    async def _commit(
        self,
        outcomes: Sequence[Outcome],
        write: Callable[[Sequence[Settlement]], Awaitable[Fate]],
    ) -> Fate:
        """Settle these tasks, which are done, in the transaction that `write` commits.

        Args:
            write: commits the transaction with the settlements. It is not called if one of the
                tasks is not this worker's any more: roll back then.

        Returns:
            `COMMITTED` or `ROLLED_BACK`. If the database refuses to say what has become of it, the
            shards begin again from the journal, and nothing that is returned counts.
        """
        parts = self._parts(_by_shard(outcomes))
        if parts is None:
            return Fate.ROLLED_BACK
        began = monotonic()
        fate = await write([part.settlement for _, part in parts])
        try:
            fate = await self._take_in(parts, fate)
        except StoreError as error:
            self._on_error([part.substitute for _, part in parts], error)
            return Fate.ROLLED_BACK
        if fate is Fate.COMMITTED:
            self._scheduler.emitter.emit(
                events.SETTLED,
                settlements=len(parts),
                outcomes=len(outcomes),
                duration_s=monotonic() - began,
            )
        return fate

    async def _settle_before(self, shards: Iterable[Shard]) -> None:
        cores = [core for shard in shards if (core := self._scheduler.cores.get(shard)) is not None]
        now_us, waiting = self._now_us(), queued_by_group(self._holders())
        found = [
            core.settlement_before_share(now_us, waiting.get(core.state.lease.group, NONE))
            for core in cores
        ]
        settlements = [each for each in found if each is not None]
        if not settlements:
            return
        try:
            results = await self._settler.write(settlements)
        except StoreError as error:
            self._on_error(settlements, error)
            return
        for settlement, result in zip(settlements, results, strict=True):
            self._scheduler.settled(settlement, result)

    def _parts(self, by_shard: Mapping[Shard, Sequence[Outcome]]) -> list[Part] | None:
        """Build the settlement of each shard; None, and nothing is out, if one cannot be built."""
        now_us, waiting = self._now_us(), queued_by_group(self._holders())
        parts: list[Part] = []
        for shard, part in by_shard.items():
            core = self._scheduler.cores.get(shard)
            built = None if core is None else core.share(part, now_us, waiting.get(shard[0], NONE))
            if core is None or built is None:
                self._give_up(parts)
                return None
            parts.append((core, built))
        return parts

    async def _take_in(self, parts: list[Part], fate: Fate) -> Fate:
        if fate is Fate.UNKNOWN:
            fate = await self._find_out(parts)
        elif fate is Fate.REFUSED:
            for core, part in parts:
                self._replace(core, part)
            results = await self._settler.write([part.substitute for _, part in parts])
            for (_, part), result in zip(parts, results, strict=True):
                self._scheduler.settled(part.substitute, result)
        elif fate is Fate.ROLLED_BACK:
            self._give_up(parts)
        if fate is not Fate.COMMITTED:
            return Fate.ROLLED_BACK
        for _, part in parts:
            # Before their keys are released: the next task of a key counts against the same limits.
            self._scheduler.limits.ended(part.outcomes, self._now_us())
            if self._scheduler.emitter.wants(events.ATTEMPT_ENDED):
                report.ended(self._scheduler.emitter, part.outcomes)
            self._scheduler.settled(part.settlement, SettleResult.SETTLED)
        report.outages(self._scheduler.emitter, self._scheduler.limits.outages)
        return fate

    async def _find_out(self, parts: list[Part]) -> Fate:
        """Find out whether the transaction has committed, whose answer was lost.

        That the journal does not have it says nothing: the server may be about to commit. So its
        place in the journal is taken: by a substitute, which waits for the transaction if that is
        still open. If it gets the place, the transaction has failed for good. If it does not, the
        settlement itself, written once more, says whether the place is its own.
        """
        for number, (core, part) in enumerate(parts):
            [result] = await self._settler.write([part.substitute])
            if result is SettleResult.SETTLED:
                self._replace(core, part)
                self._scheduler.settled(part.substitute, result)
                self._give_up(parts[number + 1 :])
                return Fate.ROLLED_BACK
            # It is never written by this: the place is taken.
            [result] = await self._settler.write([part.settlement])
            if result is SettleResult.SETTLED:
                return Fate.COMMITTED
            self._scheduler.settled(part.settlement, SettleResult.FENCED)
        return Fate.ROLLED_BACK  # All shards are lost: their owners know.

    def _is_here(self, core: ShardCore) -> bool:
        lease = core.state.lease
        return self._scheduler.cores.get((lease.group, lease.shard_id)) is core

    def _replace(self, core: ShardCore, part: SharedSettlement) -> None:
        if self._is_here(core):
            shared_settlement.replace(core.state, part)

    def _give_up(self, parts: Iterable[Part]) -> None:
        for core, _ in parts:
            if self._is_here(core):
                core.unshare()
        self._scheduler.wake()


def _by_shard(outcomes: Sequence[Outcome]) -> dict[Shard, list[Outcome]]:
    found: dict[Shard, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(_shard_of(outcome.attempt), []).append(outcome)
    return found


def _shard_of(attempt: Attempt) -> Shard:
    return attempt.group, ShardId(attempt.record.shard_id)
