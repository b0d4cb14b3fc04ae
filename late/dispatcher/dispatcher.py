"""The loop: a fixed number of slots, each of which runs one attempt at a time.

The life of an attempt is `Dispatcher.run_one`: admit it (with the route to its handler), send it to
where it runs, classify how it ended, and settle it by handing its outcome over. An attempt of a
`def` handler has the same life in a thread, which does that for several in a row: see `chunks.py`.

There are slots and not a task per attempt: the number of slots *is* the concurrency, so nothing has
to be counted or locked, and a no-op attempt costs no task (see `in_process.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from time import monotonic

from late.dispatcher.handler import Bound, Handler
from late.dispatcher.local.chunks import Chunks, Ended
from late.dispatcher.local.in_process import InProcess, Waiting
from late.dispatcher.local.process_pool import Processes
from late.dispatcher.local.slot import Slot, Why, line_up
from late.dispatcher.local.stuck_runs import StuckRuns, refusal
from late.dispatcher.local.timeouts import TimeoutWatcher
from late.dispatcher.outcome_buffer import DELIVER_AT, OutcomeBuffer
from late.handler.classify import (
    DONE,
    EXPIRED,
    GIVEN_BACK,
    INTERRUPTED,
    UNKNOWN,
    Refused,
    Scrub,
    Verdict,
    describe,
    raised,
    returned,
    timed_out,
)
from late.model.task import Attempt, Outcome, ShardId
from late.observability import traces

CANCEL_GRACE_S = 1.0
"""The time a cancelled handler has to clean up before it is reported as stuck."""
LOOK_S = 0.001
"""The greatest age of what a start must know: whether the worker is trusted, and the database's
time. Asking before each no-op would cost a twentieth of it. After a pause it is asked anew."""
NO_THREAD_S = 0.1
"""The pause of a slot for which no thread could be started."""


class Dispatcher:
    """Runs attempts of one worker and reports how each ended, exactly once.

    Everything but the calls of `def` handlers happens on the event loop that called `start`; no
    method may be called from another thread.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        name: str = "local",
        worker_id: str,
        concurrency: int = 16,
        now_us: Callable[[], int],
        on_finished: Callable[[list[Outcome]], None],
        url: str,
        trusted: Callable[[], bool] = lambda: True,
        process_workers: int = 2,
        rng: random.Random | None = None,
        app: str | None = None,
        scrub: Scrub | None = None,
        cancel_grace_s: float = CANCEL_GRACE_S,
        offer: Callable[[Outcome], bool] = lambda outcome: False,
        cancel_asked: Callable[[Attempt], bool] = lambda attempt: False,
    ) -> None:
        """
        Args:
            handlers: by task name. It may grow; one for a process must be there at `start`.
            name: the target's name for these slots, in policies and in the usage.
            now_us: a lower bound of the database's clock, microseconds. Threads call it, too.
            on_finished: gets every outcome once, in batches, a few per pass of the loop at most.
                It may call `submit` and `abandon`. It must not raise.
            url: the business database, for `ctx.begin()`.
            trusted: whether this worker may start work now. Asked at most `LOOK_S` before a start,
                also by threads: an attempt that waited may have slept through the end of its lease.
            app: `module:attribute` of the `late.App`, for child processes; without it they find
                a handler by its function's module and qualified name.
            scrub: removes secrets from error texts.
            cancel_grace_s: how long a cancelled handler may clean up.
            offer, cancel_asked: see `OutcomeBuffer` and `Slot`.
        """
        self.name = name
        self.worker_id = worker_id
        # No attribute more: CPython finds up to 29 faster, and 2 % of a task is in that.
        self._handlers = handlers
        self._bound: dict[str, Bound] = {}
        self._now_us = now_us
        self._trusted = trusted
        self._scrub = scrub
        processes = Processes(process_workers, url=url, app=app, scrub=scrub)
        self._target = InProcess(url=url, processes=processes, concurrency=concurrency)
        self._finished = OutcomeBuffer(on_finished, target=name, rng=rng, offer=offer)
        self._slots = [Slot(number, cancel_asked) for number in range(concurrency)]
        self.stuck = StuckRuns(self._slots)
        """Runs that go on after their time-out and cannot be ended."""
        self._waiting: deque[Attempt] = deque()
        self._watch = self._make_watch(cancel_grace_s)
        self._chunks = self._make_chunks()
        self._idle: list[Slot] = []
        self._load = 0
        self._slot_awake = False
        """Set while `submit` is called by a slot, which will look for work by itself."""
        self._wake_due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._look_at = -inf
        self._clock_us = 0
        """The difference from the monotonic clock to the database's."""
        self._grace_ends = inf
        self._progress = asyncio.Event()  # set when the wait of `_drain` may be over
        self._draining = self._closed = False
        self.ended = 0
        """Attempts whose handler has returned, in time or not."""
        self.late_results = 0
        """Handlers that ended after their attempt had been settled; their result is dropped."""

    def _make_watch(self, cancel_grace_s: float) -> TimeoutWatcher:
        slots, waiting = self._slots, self._waiting
        return TimeoutWatcher(slots, waiting, cancel_grace_s, self._settle, self._make_room)

    def _make_chunks(self) -> Chunks:
        return Chunks(
            self._waiting, self._bound, in_thread=self._target.in_thread, run=self._run_here,
            on_ended=self._chunk_ended, on_recalled=self._wake_others,
        )  # fmt: skip

    @property
    def free(self) -> int:
        """The number of slots without an attempt. When more are submitted, the rest waits."""
        return max(0, len(self._slots) - self._load)

    @property
    def load(self) -> int:
        """Attempts accepted and not ended: waiting, running and stuck ones; but not the stuck ones
        in whose place another slot was opened."""
        return self._load - self.stuck.slots_added

    @property
    def running(self) -> int:
        """Attempts that run and are within their time-out."""
        return len(self._watch.running)

    @property
    def runs(self) -> list[tuple[Attempt, int]]:
        """The attempts that have begun and not ended, and when each began, in microseconds."""
        return [(one, slot.started_us) for slot in self._slots if (one := slot.attempt) is not None]

    def attempt_in(self, task: object) -> Attempt | None:
        """The attempt that this task of the loop runs, if it is a slot's. From any thread."""
        return next((slot.attempt for slot in self._slots if slot.task is task), None)

    @property
    def waiting(self) -> int:
        """Attempts that wait for a slot, or for their thread to come to them."""
        return len(self.queued)

    @property
    def queued(self) -> Collection[Attempt]:
        """The attempts that nobody has begun, also those given back of which nobody has heard."""
        others = self._chunks.unstarted + self._finished.unbegun
        return [*others, *self._waiting] if others else self._waiting

    @property
    def dropped(self) -> int:
        """Attempts of fenced epochs whose outcome was thrown away."""
        return self._finished.dropped

    @property
    def late_by_shard(self) -> Mapping[tuple[str, ShardId], int]:
        """The number of results that came after their shard had gone, per (group, shard)."""
        return self._finished.late_results

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Accept attempts, in order. Never blocks; before `start` they wait, after `stop` they
        come back as interrupted."""
        if self._draining:
            self._give_back(attempts)
            return
        self._chunks.find_handlers(self._handlers)
        self._load += len(attempts)
        line_up(self._waiting, attempts)
        self._watch.work()
        self._wake_one()

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        """Give up a shard that was lost under `epoch`: do not start its waiting attempts, and drop
        and count the results of those that run. Later epochs are not affected."""
        finished = self._finished
        finished.fence(group, shard_id, epoch)
        self._chunks.recall()
        kept = [attempt for attempt in self._waiting if not finished.is_fenced(attempt)]
        gone = len(self._waiting) - len(kept)
        self._waiting.clear()
        self._waiting.extend(kept)
        self._load -= gone
        finished.dropped += gone
        self._wake_others()

    async def start(self) -> None:
        """Start the slots, and the child processes if a handler wants them. Twice is fine.

        Raises:
            ConfigError: a handler that wants a process cannot be found from there.
        """
        if self._loop is not None or self._draining:
            return
        await self._target.start(self._handlers.values())
        self._loop = asyncio.get_running_loop()
        self._finished.open(self._loop)
        for slot in self._slots:
            self._open(slot)
        self._watching = self._loop.create_task(self._keep_watch(), name="late-slot-watch")

    async def stop(self, grace_s: float) -> None:
        """Start nothing more, wait up to `grace_s` for what runs, interrupt the rest.

        When it returns every submitted attempt has been given to `on_finished`. Calling it again
        can only shorten the grace; calling it before `start` gives everything back.
        """
        self._grace_ends = min(self._grace_ends, monotonic() + grace_s)
        self._draining = True
        self._progress.set()
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._shut_down())
        await asyncio.shield(self._stopping)

    # -- the life of an attempt ----------------------------------------------------------------

    async def run_one(self, slot: Slot, attempt: Attempt) -> None:
        """Admit, send, classify, settle. Raises nothing but the end of the slot itself."""
        slot.attempt = attempt
        span = traces.begin(attempt)
        try:
            bound = self._admit(slot, attempt)
            value = self._target.call(slot, bound, attempt)
            if type(value) is Waiting:
                value = await value.work
            verdict = DONE if value is None else returned(value)
        except GeneratorExit:
            raise
        except BaseException as error:
            verdict = self._classify(slot, error)
        traces.end(span, verdict.kind, verdict.error)
        self._report(slot, verdict)

    async def _run_chunk(self, slot: Slot, attempt: Attempt, bound: Bound) -> None:
        """Do what `run_one` does in a thread, with `attempt` and those that wait behind it."""
        try:
            verdict = await self._chunks.run(slot, attempt, bound)
        except GeneratorExit:
            raise
        except BaseException as error:
            if slot.attempt is None:
                if isinstance(error, Exception):  # No thread: `attempt` waits again.
                    await asyncio.sleep(NO_THREAD_S)
                return
            verdict = self._classify(slot, error)
        if verdict is not None:
            self._report(slot, verdict)

    def _run_here(self, slot: Slot, attempt: Attempt) -> Verdict:
        """Admit, call, classify: the part of `run_one` that a thread does by itself."""
        span = traces.begin(attempt)
        try:
            bound = self._admit(slot, attempt)
            value = self._target.call_here(slot, bound, attempt)
            verdict = DONE if value is None else returned(value)
        except BaseException as error:  # SystemExit in a handler fails it, no more.
            verdict = self._classify(slot, error)
        traces.end(span, verdict.kind, verdict.error)
        return verdict

    def _chunk_ended(self, ended: list[Ended]) -> None:
        add = self._finished.add
        for each in ended:
            add(*each)
        self._load -= len(ended)
        self.ended += len(ended)
        if self._draining:
            self._progress.set()

    def _admit(self, slot: Slot, attempt: Attempt) -> Bound:
        """Begin in the slot and return the route to the handler. A thread may call it.

        Raises:
            Refused: the worker is not trusted, the attempt has expired, or no handler is here.
        """
        slot.begun = begun = monotonic()
        if begun >= self._look_at:
            self._look(begun)
        slot.started_us = int(begun * 1_000_000) + self._clock_us
        if self._look_at <= begun:
            raise Refused(GIVEN_BACK)
        if attempt.deadline_us is not None and attempt.deadline_us <= self._now_us():
            raise Refused(EXPIRED)
        name = attempt.record.name
        bound = self._bound.get(name)
        if bound is None:
            handler = self._handlers.get(name)
            if handler is None:
                raise Refused(UNKNOWN)
            bound = Bound(handler)
            if name in self._handlers:  # A pool may take any name: those are not kept.
                self._bound[name] = bound
        if attempt.timeout_us is not None:
            bound = bound.within(attempt.timeout_us / 1_000_000)
        slot.bound = bound
        if self.stuck.count and self.stuck.holds_its_share(name):
            raise Refused(refusal())
        return bound

    def _look(self, now: float) -> None:
        """Ask for time and trust. Invariant: `_look_at` is ahead of `now` if and only if the worker
        is trusted; where threads ask at the same time, it was within `LOOK_S`. Without trust it is
        behind every start, also behind one that read the clock before `now` and compares later."""
        self._clock_us = self._now_us() - int(now * 1_000_000)
        self._look_at = now + LOOK_S if self._trusted() else -inf

    def _classify(self, slot: Slot, error: BaseException) -> Verdict:
        """Decide how an attempt that raised has ended. An interrupted handler may raise anything on
        its way out, so the reason of the interruption counts. A normal return does not come here:
        the work is done, however late."""
        bound = slot.bound
        if slot.ended_for is Why.STOP:
            return INTERRUPTED
        if slot.ended_for is Why.TIMEOUT and bound is not None:
            plain = isinstance(error, asyncio.CancelledError)
            return timed_out(bound.timeout_s, "" if plain else describe(error, self._scrub))
        return raised(error, bound.rule if bound is not None else None, self._scrub)

    def _report(self, slot: Slot, verdict: Verdict) -> None:
        """Free the slot of a handler that has returned; queue its outcome unless it is settled."""
        if slot.settled:
            self.late_results += 1
        else:
            assert slot.attempt is not None
            add = self._finished.add
            add(slot.attempt, verdict, slot.started_us, slot.begun, share=slot.share)
        if slot.stuck:
            slot.retired = self.stuck.ended(slot)
        slot.clear()
        self._load -= 1
        self.ended += 1
        if self._draining:
            self._progress.set()

    def _settle(self, slot: Slot, verdict: Verdict) -> None:
        """Queue the outcome of what runs on. Its thread may not have come to `started_us`."""
        assert slot.attempt is not None
        started_us = self._now_us() - int((monotonic() - slot.begun) * 1_000_000)
        self._finished.add(slot.attempt, verdict, started_us, slot.begun, share=slot.share)

    def _give_back(self, attempts: Sequence[Attempt]) -> None:
        """Return attempts that will not start: nothing is lost and no attempt is used up."""
        now_us = self._now_us()
        for attempt in attempts:
            self._finished.add(attempt, GIVEN_BACK, now_us, monotonic())
        if self._loop is None or self._closed:
            self._finished.deliver()

    # -- slots ---------------------------------------------------------------------------------

    def _open(self, slot: Slot) -> None:
        assert self._loop is not None
        slot.task = self._loop.create_task(self._serve(slot), name=f"late-slot-{slot.number}")

    def _make_room(self) -> None:
        """Count one more stuck run, and open a slot for each that a task holds beyond its share."""
        self.stuck.count += 1
        while not self._draining and len(self._slots) < self.stuck.slots_wanted:
            slot = Slot(max(each.number for each in self._slots) + 1, self._slots[0].cancel_asked)
            self._slots.append(slot)
            self._open(slot)

    async def _serve(self, slot: Slot) -> None:
        """Run attempt after attempt in one slot, with a pause for others when its turn is over."""
        waiting, finished, task = self._waiting, self._finished, slot.task
        threaded = self._chunks.handlers
        assert task is not None
        while not (self._closed or slot.retired):
            try:
                if waiting:
                    if threaded and (bound := threaded.get(waiting[0].record.name)):
                        await self._run_chunk(slot, waiting.popleft(), bound)
                    else:
                        await self.run_one(slot, waiting.popleft())
                    # Also where a cancellation is left over takes effect, see below.
                    if finished.added_at >= finished.turn_ends or task.cancelling():
                        await asyncio.sleep(0)
                    continue
                if len(finished) >= DELIVER_AT:
                    self._slot_awake = True
                    finished.deliver()
                    self._slot_awake = False
                if not waiting:
                    await self._rest(slot)
            except asyncio.CancelledError:
                # A handler may have cancelled its own task and returned before that took effect.
                # When the loop ends instead, `_keep_watch` closes and cancels once more.
                pass
            while task.cancelling():
                task.uncancel()

    async def _rest(self, slot: Slot) -> None:
        assert self._loop is not None
        slot.wake = self._loop.create_future()
        self._idle.append(slot)
        try:
            await slot.wake
        finally:
            slot.wake = None
            if slot in self._idle:  # Cancelled, not woken.
                self._idle.remove(slot)

    def _wake_one(self) -> None:
        """Wake one slot now, and the others after it has had its turn: where handlers never wait
        the first one takes everything, and waking sixteen for that would cost more than the work.
        """
        if not self._idle or not self._waiting or self._loop is None:
            return
        if not self._slot_awake:
            self._wake(self._idle.pop())
        if len(self._waiting) > 1:
            self._wake_others()

    def _wake_others(self) -> None:
        """Wake a slot for each waiting attempt, after the one that runs has had its turn."""
        if self._waiting and self._idle and self._loop is not None and not self._wake_due:
            self._wake_due = True
            self._loop.call_soon(self._wake_rest)

    def _wake_rest(self) -> None:
        self._wake_due = False
        for _ in range(min(len(self._waiting), len(self._idle))):
            self._wake(self._idle.pop())

    @staticmethod
    def _wake(slot: Slot) -> None:
        if slot.wake is not None and not slot.wake.done():
            slot.wake.set_result(None)

    # -- stopping ------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        self._chunks.recall()
        waiting = list(self._waiting)
        self._waiting.clear()
        self._load -= len(waiting)
        self._give_back(waiting)
        await self._drain()
        self._watch.interrupt_all()
        self._grace_ends = monotonic() + self._watch.cancel_grace_s
        await self._drain()
        self._watch.give_up_all()
        self._chunks.collect()
        self._close_slots()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self._target.close()
        self._finished.deliver()

    async def _drain(self) -> None:
        """Wait until nothing runs that is not settled, or until the grace ends (it may shrink)."""
        while self._watch.running and (left_s := self._grace_ends - monotonic()) > 0:
            self._progress.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._progress.wait()
            except TimeoutError:
                return

    async def _keep_watch(self) -> None:
        try:
            await self._watch.run()
        finally:
            # Also when the event loop ends without `stop`: it cancels every task once, which a
            # slot takes for its handler's own doing, and would wait for ever for all to end.
            self._close_slots()

    def _close_slots(self) -> None:
        self._draining = self._closed = True
        for slot in self._slots:
            if slot.task is not None:
                slot.task.cancel()
