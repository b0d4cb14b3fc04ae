"""Group commit: many outcomes, one transaction.

Outcomes that nobody waits for wait for company, so that a row of the journal carries many: for
`delay_s` from the first one, and less when enough come in less time; then all shards are written.
What somebody waits for is written within milliseconds, with all else of its shard: a row of another
shard would be a row more. Only one call to the store is under way at a time, so that a shard's
settlements reach it in order of `seq`; what ends meanwhile goes with the next one.

| the store says | what happens |
|---|---|
| a result | `on_result`, per settlement |
| a transient error: the outcome may be unknown | the *same* settlements again, until it is known |
| another error, several settlements | each of them alone, so that one cannot block the others |
| another error, one settlement | kept and sent again, alone; `on_error` after `KEEP_S` or a stop |
| cancelled in the middle | they are kept, and come first when `run` or `flush` is called again |

Repeating is safe because a settlement is idempotent by its id.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from statistics import median

from late import events
from late.clock import Monotonic
from late.dispatcher.kept_settlements import KEEP_S, KeptSettlements
from late.errors import StoreError
from late.handler.classify import clean
from late.model.backoff import Backoff
from late.model.task import ENQUEUED, ShardId
from late.store.base import Settlement, SettleResult, Store

URGENT_S = 0.010
"""The longest wait of an outcome that somebody waits for."""
SLOW_COMMIT_S = 0.100
"""Median commit latency from which on fewer, larger commits are better than early ones."""
SLOW_DELAY_S = 0.050
BACKOFF_S = (0.05, 5.0)
"""First and longest bound of the full-jitter wait after a transient error."""
REFUSED_S = 60.0
"""So long the last error of the database counts. The pauses between two tries are shorter."""
_LATENCIES = 16

Shard = tuple[str, ShardId]


class Settler:
    """Writes what `collect` hands out. No method may be called from another thread."""

    def __init__(
        self,
        store: Store,
        *,
        collect: Callable[[bool], list[Settlement]],
        on_result: Callable[[Settlement, SettleResult], None],
        on_error: Callable[[Sequence[Settlement], StoreError], None],
        on_kept: Callable[[Settlement], None] = lambda settlement: None,
        delay_s: float = 0.400,
        batch: int = 1000,
        keep_s: float = KEEP_S,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        monotonic: Monotonic = time.monotonic,
        emitter: events.Emitter = events.default,
    ) -> None:
        """
        Args:
            collect: takes what is due now, at most one settlement per shard, and with True only
                of the shards for which somebody waits; never asked while one that it gave out is
                unresolved.
            on_result: called once per settlement, in the order in which they were collected.
            on_error: called with settlements that the store will never accept; they are dropped.
            on_kept: called with each that it refuses now, and that is sent again.
            delay_s: the time that an outcome may wait for others, if nobody waits for it.
            batch: the number of outcomes that are not made to wait; a quarter of them is company
                enough.
            keep_s: how long one that is refused is kept.
        """
        self._store = store
        self._collect = collect
        self._on_result = on_result
        self._on_error = on_error
        self._on_kept = on_kept
        self._delay_s = delay_s
        self._batch = batch
        self._enough = max(1, batch // 4)
        base_s, cap_s = BACKOFF_S
        rng = rng or random.Random()
        self._backoff = Backoff(rng, base_s=base_s, cap_s=cap_s)
        self._kept = KeptSettlements(rng, monotonic, keep_s)
        self._again_s: float | None = None
        """The time (monotonic) at which a refused one is sent again; None if none is kept."""
        self._sleep = sleep
        self._monotonic = monotonic
        self._emitter = emitter
        self._outcomes = 0
        """Those that wait, over all shards."""
        self._waiting: dict[Shard, tuple[int, float]] = {}
        """By shard: its outcomes that wait, and until when (monotonic) its first one may."""
        self._arrived = 0
        """Outcomes since all shards were collected."""
        self._collected_at = monotonic()
        self._rate = 0.0
        """Outcomes a second between the last two collections of all shards."""
        self._due: float | None = None
        """The time at which all shards are written; monotonic, None while nothing waits."""
        self._urgent_due: float | None = None
        """The time at which those are written for which somebody waits."""
        self._poked = asyncio.Event()
        self._writing = asyncio.Lock()
        self._unresolved: list[Settlement] = []
        """Collected settlements whose result is unknown: always first, always the same ones."""
        self._latencies_s: deque[float] = deque(maxlen=_LATENCIES)
        self._median_s = 0.0
        self._began_s: float | None = None
        self._refusal = ""
        """The database's last answer, if that was an error which may pass."""
        self._refused_s = -math.inf

    @property
    def writing_s(self) -> float:
        """The age of the settlement that the store has not answered yet; 0 if there is none."""
        return 0.0 if self._began_s is None else max(0.0, self._monotonic() - self._began_s)

    @property
    def refusal(self) -> str:
        """The error with which the database has answered the settlement that is under way, such as
        a full disk; empty if it has not lately. It may be read in any thread."""
        lately = self._monotonic() - self._refused_s < REFUSED_S
        return self._refusal if lately else ""

    @property
    def kept_error(self) -> str:
        """The error with which the database refuses settlements that are kept; empty if none is.
        It may be read in any thread."""
        return self._kept.error

    @property
    def refused(self) -> bool:
        """True while the database answers settlements with errors. Any thread may ask."""
        return bool(self.refusal or self.kept_error)

    def give_up(self) -> None:
        """Keep nothing that is refused any more, because the worker stops."""
        self._kept.give_up()
        self._again_s = self._kept.due_s
        self._poked.set()

    def commit_s(self) -> float:
        """Return the time that a settlement takes: the median of late, or more if one has no
        answer."""
        return self._median_s if self._began_s is None else max(self._median_s, self.writing_s)

    def wait_s(self, *, urgent: bool) -> float:
        """Return the time that what comes now waits for others.

        At a high rate it is the time in which enough of them come: beyond that, waiting saves next
        to nothing, and more would be repeated after a death.
        """
        wait_s = min(self._delay_s, URGENT_S)
        if not urgent:
            enough_s = self._enough / self._rate if self._rate else self._delay_s
            wait_s = max(wait_s, min(self._delay_s, enough_s))
        if self._median_s > SLOW_COMMIT_S:
            return max(wait_s, SLOW_DELAY_S)
        return wait_s

    def poke(self, shard: Shard, outcomes: int, urgent: bool = True) -> None:
        """Note that more outcomes of a shard wait; 0 if something else does (a cursor that moved).

        Args:
            outcomes: their number, besides those of earlier calls.
            urgent: somebody waits for them.
        """
        had, due = self._waiting.get(shard, (0, 0.0))
        due = due or self._monotonic() + self.wait_s(urgent=False)
        self._waiting[shard] = (had + outcomes, due)
        enough = self._outcomes < self._enough <= self._outcomes + outcomes
        self._outcomes += outcomes
        self._arrived += outcomes
        if enough or (urgent and self._urgent_due is None):
            soon = self._monotonic() + self.wait_s(urgent=True)
            due = min(due, soon) if enough else due
            if urgent and self._urgent_due is None:
                self._urgent_due = soon
                self._poked.set()
        if self._due is None or due < self._due:
            self._due = due
            self._poked.set()
        elif self._outcomes >= self._batch:
            self._poked.set()

    async def run(self) -> None:
        """Settle whenever it is due, for ever. End it by cancelling it, then `flush`.

        Raises: only what is no `StoreError`, or what a callback raised.
        """
        if self._unresolved:
            self._due = self._monotonic()
        while True:
            await self._until_due()
            await self._settle_once(whole=False)

    async def flush(self) -> None:
        """Settle now, and until `collect` has nothing left. Never returns while the store is
        unreachable, so give it a time limit; what it could not settle then is kept."""
        while await self._settle_once():
            pass

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Keep all settlements out of the block but those that it `write`s itself."""
        async with self._writing:
            if self._unresolved:
                await self._resolve()
            yield

    async def _until_due(self) -> None:
        while True:
            self._poked.clear()
            times = (self._due, self._urgent_due, self._again_s)
            due = min([at for at in times if at is not None], default=None)
            if due is None:
                await self._poked.wait()
                continue
            left_s = due - self._monotonic()
            if left_s <= 0 or self._outcomes >= self._batch:
                return
            try:
                async with asyncio.timeout(left_s):
                    await self._poked.wait()
            except TimeoutError:
                return

    async def _settle_once(self, *, whole: bool = True) -> bool:
        """Do one group commit. False if there was nothing, or nothing that could be settled.

        Args:
            whole: all shards, also those that may wait.
        """
        async with self._writing:
            if self._again_s is not None:
                await self._send_kept()
            if not self._unresolved:
                now = self._monotonic()
                soon = self._due is not None and self._due <= now + URGENT_S
                self._urgent_due = None
                if whole or soon or self._outcomes >= self._enough:
                    elapsed_s = now - self._collected_at
                    self._rate = self._arrived / elapsed_s if elapsed_s > 0 else 0.0
                    self._collected_at = now
                    self._arrived, self._outcomes, self._due = 0, 0, None
                    self._waiting.clear()
                    self._unresolved = self._collect(False)
                else:
                    self._collect_urgent()
            if not self._unresolved:
                return False
            return await self._resolve()

    def _collect_urgent(self) -> None:
        """Collect the shards for which somebody waits; the others wait as long as they may."""
        self._unresolved = self._collect(True)
        for each in self._unresolved:
            self._outcomes -= self._waiting.pop((each.group, each.shard_id), (0, 0.0))[0]
        self._due = min([due for _, due in self._waiting.values()], default=None)

    async def _resolve(self) -> bool:
        began = self._monotonic()
        try:
            results = await self.write(self._unresolved)
        except StoreError as error:
            if len(self._unresolved) > 1:
                return await self._resolve_each()
            [refused], self._unresolved = self._unresolved, []
            self._refused(refused, error)
            return False
        took_s = self._monotonic() - began
        settled, self._unresolved = self._unresolved, []
        for settlement, result in zip(settled, results, strict=True):
            self._on_result(settlement, result)
        self._emitter.emit(
            events.SETTLED,
            settlements=len(settled),
            outcomes=sum([counted(each) for each in settled]),
            duration_s=took_s,
        )
        return True

    async def _resolve_each(self) -> bool:
        """Settle one at a time. Invariant: `_unresolved` holds what has no result yet, so that a
        cancellation in between loses none."""
        some = False
        while self._unresolved:
            first = self._unresolved[0]
            try:
                [result] = await self.write([first])
            except StoreError as error:
                del self._unresolved[0]
                self._refused(first, error)
            else:
                del self._unresolved[0]
                self._on_result(first, result)
                some = True
        return some

    async def _send_kept(self) -> None:
        """Send again what was refused and is due, one at a time. Each is kept until its result is
        known, so that a cancellation in between loses none."""
        for kept in self._kept.due():
            try:
                [result] = await self.write([kept])
            except StoreError as error:
                self._refused(kept, error)
            else:
                self._kept.remove(kept)
                self._on_result(kept, result)
        self._again_s = self._kept.due_s

    def _refused(self, settlement: Settlement, error: StoreError) -> None:
        """Keep a settlement that the store has refused, or give it up."""
        wait_s = self._kept.add(settlement, clean(str(error)))
        self._again_s = self._kept.due_s
        if wait_s is None:
            self._on_error([settlement], error)
            return
        self._on_kept(settlement)
        self._emitter.emit(
            events.SETTLEMENT_REFUSED,
            retry_in_s=wait_s,
            group=settlement.group,
            shard=settlement.shard_id,
            epoch=settlement.epoch,
            kept=True,
            error=error,
        )

    async def write(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Return the store's results, repeating the call until it answers.

        Raises:
            StoreError: one that is not transient.
        """
        self._began_s = self._monotonic()
        try:
            while True:
                began = self._monotonic()
                try:
                    results = await self._store.settle(settlements)
                except StoreError as error:
                    if not error.transient:
                        self._backoff.reset()
                        raise
                    await self._wait_after(error)
                else:
                    self._backoff.reset()
                    self._latencies_s.append(self._monotonic() - began)
                    self._median_s = median(self._latencies_s)
                    return results
        finally:
            self._began_s, self._refused_s = None, -math.inf

    async def _wait_after(self, error: StoreError) -> None:
        if error.answered:
            self._refusal, self._refused_s = clean(str(error)), self._monotonic()
        wait_s = self._backoff.next_s()
        self._emitter.emit(
            events.STORE_ERROR,
            component="settle",
            transient=True,
            retry_in_s=wait_s,
            error=clean(str(error)),
        )
        await self._sleep(wait_s)


def counted(settlement: Settlement) -> int:
    """Count the outcomes that a settlement records."""
    return sum([usage.count for usage in settlement.usage if usage.outcome != ENQUEUED])
