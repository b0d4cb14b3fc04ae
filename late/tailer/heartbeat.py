"""The heartbeat: a loop in a thread of its own that tells the fleet that this worker lives.

It shares nothing with the work: its own thread, its own event loop, its own store and connection.
However many tasks run, and however long a handler blocks the worker's loop, heartbeats go out; so
a worker that is merely busy does not lose its shards, and its peers do not take over a load that
was too much for one of them already.

**Trust.** A heartbeat that was *sent* at local time `t` holds at the database until some moment
after `t + ttl`. So the worker may believe itself alive until::

    t + ttl - margin

A slow reply can never lengthen that, and a lost one leaves it as it was. The margin covers the
drift between the two clocks and what a worker does between looking and acting.

| what happens | what follows |
|---|---|
| transient error, no reply within the ttl | tried again with full jitter, within one beat |
| any other error (schema, guard) | the same: an operator may repair it while we wait |
| the file of the database was replaced | no trust and no beat any more; `until_refused` raises |
| the worker's loop is blocked | beats go on until it counts as stalled; the last view waits |
| the worker stalls (`resign`) | heartbeats with a ttl of 0, until it gets on again |
| the process is paused | trust runs out by the monotonic clock, whatever was in flight |
| nothing changes, and changes are told of | up to twice the time between beats (`beat_pace.py`) |
| leave | heartbeats go on with a capacity of 0: peers know what they are about to get |
| stop | a last heartbeat with a ttl of 0: peers need not wait for the ttl |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from late import events
from late.clock import DatabaseClock, Monotonic
from late.concurrency import Beats
from late.errors import DatabaseReplaced, StoreError, StoreUnavailable
from late.events import Emitter
from late.model.backoff import Backoff
from late.store import open_store
from late.store.base import Membership, NameEnds, Store, WorkerInfo
from late.tailer.beat_pace import BeatPace

HURRY_S = 0.1
"""Shortest time between two beats, however much in a hurry."""
AFTER_END_S = (0.02, 0.1)
"""A peer's lease that ends before the next beat is looked at so long after its end."""
FAREWELL_S = 2.0
"""A last heartbeat may take so long: without it peers wait for the ttl, and nothing breaks."""

OnMembership = Callable[[Membership, float, float], None]
"""Called with the fleet, the monotonic time until which this heartbeat can be trusted, and the one
at which it was sent."""
Exchange = Callable[[Membership], tuple[NameEnds, ...]]
"""Takes in what the fleet says of failing tasks, and returns what the next beat says."""


class Heartbeat:
    """Beats from `start` to `stop`, once each.

    Args:
        url: the database; a store of its own is opened on it.
        worker: what to say of this worker. Its `handlers` go with the first beat, and again after
            a gap, for which peers may have removed its row.
        ttl_s: for how long a heartbeat holds.
        every_s: time between two of them, a third of the ttl by default; up to 10 % shorter.
        margin_s: see above; a tenth of the ttl by default.
        on_membership: called in the event loop that `start` was called in, once per beat.
        clock: learns the database's time from each reply.
        store_factory: makes the store, in the thread.
        beside: what else runs in the thread's loop for as long; each is cancelled at the end.
        exchange: called after `on_membership`, in the same loop.
        told: returns whether `stir` is called after each change of the fleet, from now on.
    """

    def __init__(
        self,
        url: str,
        worker: WorkerInfo,
        *,
        on_membership: OnMembership,
        ttl_s: float = 5.0,
        every_s: float | None = None,
        margin_s: float | None = None,
        clock: DatabaseClock | None = None,
        rng: random.Random | None = None,
        monotonic: Monotonic = time.monotonic,
        emitter: Emitter = events.default,
        store_factory: Callable[[str], Store] = open_store,
        beside: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
        exchange: Exchange = lambda _: (),
        told: Callable[[], bool] = lambda: False,
    ) -> None:
        self._url = url
        self._worker = worker
        self._capacity = worker.capacity
        self._version = worker.version
        self._on_membership = on_membership
        self._ttl_s = ttl_s
        self._margin_s = ttl_s / 10 if margin_s is None else margin_s
        every_s = ttl_s / 3 if every_s is None else every_s
        self._pace = BeatPace(every_s, ttl_s - self._margin_s, told)
        self._clock = clock
        self._rng = rng or random.Random()
        self._monotonic = monotonic
        self._emitter = emitter
        self._store_factory = store_factory
        self._beside = beside
        self._exchange = exchange
        self._ends: tuple[NameEnds, ...] = ()
        self._resigned = False
        self._declared = False
        """The worker's row has its handlers."""
        self._answered_s = -math.inf
        self._view: tuple[Membership, float, float] | None = None
        self._view_waits = False
        self._trusted_until = -math.inf
        self.beats = Beats()
        """They belong to the thread's loop; each answer brings one."""
        self._hurried = asyncio.Event()
        self._sent_s = -math.inf
        self._stirred: asyncio.TimerHandle | None = None
        """Ends a longer pause after the usual one; None: nothing was told since the last beat."""
        self._refused = asyncio.Event()
        """It belongs to the caller's loop."""
        self._refusal: StoreError | None = None
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The thread's own."""
        self._callers_loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def trusted_until(self) -> float:
        """Monotonic time until which the database believes that this worker lives; minus infinity
        before the first reply and after a stop. A worker *acts* on `LeaseKeeper.trusted`: by then
        it has also seen which shards it lost meanwhile."""
        return self._trusted_until

    @property
    def resigned(self) -> bool:
        """True when this worker must not act, whatever it was told before."""
        return self._resigned or self._refusal is not None

    @property
    def reachable(self) -> bool:
        """True when the database has answered within the time to live."""
        return self._monotonic() < self._answered_s + self._ttl_s

    def resign(self, resigned: bool) -> None:
        """Say that this worker is gone although it is not, or that it is back. From any thread.

        Its peers take over what it holds. It goes on to see the fleet, and so learns of that."""
        self._resigned = resigned
        if resigned:
            self._trusted_until = -math.inf
        self.hurry()

    def start(self) -> None:
        """Begin to beat, at once. Call it once, in the event loop that `on_membership` is for."""
        assert self._thread is None, "a heartbeat starts once"
        self._callers_loop = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        # A daemon: a connection that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="late-heartbeat", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Beat again soon (after `HURRY_S`), to see what the fleet does. From any thread."""
        self._tell(self._hurried.set)

    def stir(self) -> None:
        """Take in that the fleet has changed: beat at the usual pace again. From any thread."""
        self._tell(self._stir)

    def leave(self) -> None:
        """Say from now on that this worker is about to go, and say it soon. From any thread."""
        self._capacity = 0.0
        self.withdraw(True)

    def announce(self, version: str) -> None:
        """Say from now on that this worker has this version, and say it soon. From any thread."""
        self._version = version
        self.hurry()

    def withdraw(self, withdrawn: bool) -> None:
        """Say that this worker takes no shards, or that it does again. From any thread.

        It is alive: its peers get each of its shards when it gives that up."""
        capacity = 0.0 if withdrawn else self._capacity
        self._worker = msgspec.structs.replace(self._worker, capacity=capacity)
        self.hurry()

    def stop(self) -> None:
        """Send a last heartbeat and end. **Blocks** for some seconds at most, so call it in a
        thread (`asyncio.to_thread`). Calling it twice, or before `start`, is fine."""
        self._tell(self._stopping.set)
        if self._thread is not None:
            self._thread.join(self._ttl_s + 2 * FAREWELL_S)
        self._trusted_until = -math.inf

    async def until_refused(self) -> None:
        """Wait, in the loop of `start`, for a refusal that no waiting helps against.

        Raises:
            DatabaseReplaced: the database can never be this worker's again.
            StoreError: not transient, before the first answer: as where a role lacks a right.
        """
        await self._refused.wait()
        assert self._refusal is not None
        raise self._refusal

    def _tell(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended already
                self._loop.call_soon_threadsafe(call)

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        assert self._loop is not None
        try:
            self._loop.run_until_complete(self._live())
        except Exception:
            # Nothing can be told to anyone from here; trust runs out, so no harm is done.
            _log.exception("the heartbeat ended")
        finally:
            self._loop.close()

    async def _live(self) -> None:
        store = self._store_factory(self._url)
        beats = asyncio.create_task(self._beat_on(store))
        stopping = asyncio.create_task(self._stopping.wait())
        beside = [asyncio.create_task(self._guard(each)) for each in self._beside]
        try:
            # A beat that hangs must not delay the last one.
            await asyncio.wait({beats, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (beats, stopping, *beside):
                task.cancel()
            await asyncio.gather(beats, stopping, *beside, return_exceptions=True)
            self._trusted_until = -math.inf
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await store.heartbeat(self._worker, 0)
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await store.close()

    async def _guard(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await run()
        except Exception:
            _log.exception("what runs beside the heartbeat failed")

    async def _beat_on(self, store: Store) -> None:
        backoff = Backoff(self._rng, cap_s=self._pace.every_s)
        while True:
            self._sent_s = sent_s = self._monotonic()
            if self._stirred is not None:
                self._stirred.cancel()
                self._stirred = None
            try:
                await self._beat(store)
            except DatabaseReplaced as error:
                self._refuse(error)
                await self._stopping.wait()  # what runs beside goes on until then
                return
            except Exception as error:
                await self._failed(error, backoff.next_s())
                continue
            backoff.reset()
            pause_s = self._pace.pause_s(self._monotonic()) * self._rng.uniform(0.9, 1.0)
            pause_s = min(pause_s, self._peer_ends_s())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, sent_s + pause_s - self._monotonic())):
                    await self._hurried.wait()
                    await asyncio.sleep(max(0.0, sent_s + HURRY_S - self._monotonic()))
            self._hurried.clear()

    def _stir(self) -> None:
        now_s = self._monotonic()
        self._pace.heard(now_s)
        if self._stirred is None:
            # All hear the same notice, and need not ask at the same moment.
            soonest_s = self._rng.uniform(0.0, HURRY_S)
            usual_s = self._sent_s + self._pace.every_s - now_s
            wait_s = max(soonest_s, usual_s)
            self._stirred = asyncio.get_running_loop().call_later(wait_s, self._hurried.set)

    def _peer_ends_s(self) -> float:
        """Return when to look at the first peer whose lease ends, if nothing is heard of it.

        Whoever lives renews its lease long before. So a death is seen as the lease ends, and not
        at whatever beat comes next.
        """
        assert self._view is not None
        fleet = self._view[0]
        ends = [at for who, at in fleet.expires_at_us.items() if who != self._worker.worker_id]
        left_s = (min(ends) - fleet.now_us) / 1_000_000 if ends else math.inf
        return max(left_s, HURRY_S) + self._rng.uniform(*AFTER_END_S)

    async def _beat(self, store: Store) -> None:
        try:
            async with asyncio.timeout(self._ttl_s):
                await store.open()  # connects the first time, and does nothing later
                sent_s = self._monotonic()
                resigned = self._resigned
                ttl_s = 0 if resigned else self._ttl_s
                gap = resigned or sent_s >= self._answered_s + self._ttl_s
                self._declared = self._declared and not gap
                handlers = None if self._declared else self._worker.handlers
                worker = msgspec.structs.replace(
                    self._worker, version=self._version, ends=self._ends, handlers=handlers
                )
                membership = await store.heartbeat(worker, ttl_s)
        except TimeoutError as error:
            raise StoreUnavailable(f"no reply to a heartbeat for {self._ttl_s:g} s") from error
        received_s = self._monotonic()
        self._answered_s = received_s
        self._declared = not resigned
        self._pace.saw(membership.workers, membership.leases, received_s)
        trusted_until = -math.inf if resigned else sent_s + self._ttl_s - self._margin_s
        # It may have resigned while this was under way.
        self._trusted_until = -math.inf if self._resigned else trusted_until
        if self._clock is not None:
            self._clock.sample(membership.now_us, received_s)
        self._emitter.emit(
            events.HEARTBEAT, workers=len(membership.workers), duration_s=received_s - sent_s
        )
        self._view = (membership, trusted_until, sent_s)
        if not self._view_waits:
            self._view_waits = True
            assert self._callers_loop is not None
            with contextlib.suppress(RuntimeError):  # the worker's loop is closed: it goes away
                self._callers_loop.call_soon_threadsafe(self._hand_in)
        self.beats.beat()

    def _refuse(self, error: StoreError) -> None:
        self._refusal = error
        self._trusted_until = -math.inf
        assert self._callers_loop is not None
        with contextlib.suppress(RuntimeError):  # the worker's loop is closed: it goes away
            self._callers_loop.call_soon_threadsafe(self._refused.set)

    def _hand_in(self) -> None:
        """Hand in the last view alone, in the caller's loop: a blocked loop would collect them all.

        The flag goes first, so that a view that comes now is handed in by itself.
        """
        self._view_waits = False
        assert self._view is not None
        self._on_membership(*self._view)
        self._ends = self._exchange(self._view[0])

    async def _failed(self, error: Exception, retry_in_s: float) -> None:
        transient = isinstance(error, StoreError) and error.transient
        if not isinstance(error, StoreError):
            # Our own mistake: say where, and go on, because a silent heartbeat costs all shards.
            _log.error("heartbeat failed", exc_info=error)
        elif self._view is None and not transient:
            self._refuse(error)
            await asyncio.sleep(retry_in_s)
            return
        self._emitter.emit(
            events.STORE_ERROR,
            component="heartbeat",
            transient=transient,
            retry_in_s=retry_in_s,
            error=error,
        )
        await asyncio.sleep(retry_in_s)


_log = logging.getLogger("late.heartbeat")
