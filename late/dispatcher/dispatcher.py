"""The loop: a fixed number of slots, each of which runs one attempt at a time.

Why slots and not a task per attempt: the number of slots *is* the concurrency, so nothing has to
be counted or locked, and a no-op attempt costs no task (see `inprocess.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from time import monotonic

from late.dispatcher.classify import DONE, Refused, Scrub, Verdict, raised, returned, timed_out
from late.dispatcher.handler import Bound, Handler
from late.dispatcher.inprocess import InProcess
from late.dispatcher.processes import Processes
from late.dispatcher.slot import Slot, Why
from late.task import Attempt, Outcome

logger = logging.getLogger("late.dispatcher")

TURN_S = 0.002
"""How long attempts that never wait may keep the event loop before others get their turn."""
DELIVER_AT = 8
"""From so many outcomes on, a slot that finds nothing to do hands them over at once, so that the
next attempts come without a pass of the event loop (a system call) in between."""
CANCEL_GRACE_S = 1.0
"""How long a cancelled handler may clean up before it is reported as stuck."""

_EXPIRED = Refused(Verdict("expired"))
_UNKNOWN = Refused(Verdict("not_capable", reason="unknown_handler"))
_INTERRUPTED = Verdict("interrupted")


class Dispatcher:
    """Runs attempts of one worker and says how each ended, exactly once each.

    Everything happens on the event loop that called `start`; no method may be called from
    another thread.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        worker_id: str,
        concurrency: int = 16,
        now_us: Callable[[], int],
        on_finished: Callable[[list[Outcome]], None],
        url: str,
        process_workers: int = 2,
        rng: random.Random | None = None,
        app: str | None = None,
        scrub: Scrub | None = None,
        cancel_grace_s: float = CANCEL_GRACE_S,
    ) -> None:
        """
        Args:
            handlers: by task name; may grow later.
            now_us: a lower bound of the database's clock, microseconds.
            on_finished: gets every outcome once, in batches, at most one per pass of the loop.
                It may call `submit`. It must not raise.
            url: the business database, for `ctx.begin()`.
            app: `module:attribute` of the `late.App`, for child processes; without it they find
                a handler by its function's module and name.
            scrub: removes secrets from error texts, here and (if it can be imported) in children.
        """
        self._handlers = handlers
        self._bound: dict[str, Bound] = {}
        self._worker_id = worker_id
        self._concurrency = concurrency
        self._now_us = now_us
        self._on_finished = on_finished
        self._rng = rng or random.Random()
        self._scrub = scrub
        self._cancel_grace_s = cancel_grace_s
        self._target = InProcess(
            url=url, processes=Processes(process_workers, url=url, app=app, scrub=scrub)
        )
        self._waiting: deque[Attempt] = deque()
        self._slots = [Slot(number) for number in range(concurrency)]
        self._idle: list[Slot] = []
        self._load = 0
        """Attempts waiting or in a slot, stuck ones included."""
        self._finished: list[Outcome] = []
        self._delivery_due = False
        self._wake_due = False
        self._slot_awake = False
        self._turn_ends = inf
        self._fenced: dict[tuple[str, int], int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: asyncio.Task[None] | None = None
        self._working = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._grace_ends = inf
        self._ended = asyncio.Event()
        self._draining = False
        self._closed = False
        self.dropped = 0
        """Outcomes of fenced epochs that were thrown away."""
        self.late = 0
        """Handlers that ended after their attempt had been settled; their result is dropped."""

    # -- what the worker asks ------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Slots without an attempt. Submitting more than that is fine: the rest waits inside."""
        return max(0, self._concurrency - self._load)

    @property
    def load(self) -> int:
        """Attempts accepted and not ended: waiting, running and stuck ones."""
        return self._load

    @property
    def stuck(self) -> list[Attempt]:
        """Attempts that were settled while their handler could not be ended; each has a slot."""
        return [slot.attempt for slot in self._slots if slot.settled and slot.attempt is not None]

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Accept attempts, in order. Never blocks; before `start` they wait, after `stop` they
        come back as interrupted."""
        self._load += len(attempts)
        if self._draining:
            self._give_back(attempts)
            return
        self._waiting.extend(attempts)
        self._working.set()
        self._wake_one()

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        """The shard was lost under `epoch`: do not start its waiting attempts, and drop and count
        what comes of those that run. Later epochs of the shard are not affected."""
        key = (group, shard_id)
        self._fenced[key] = max(epoch, self._fenced.get(key, epoch))
        kept = [attempt for attempt in self._waiting if not self._is_fenced(attempt)]
        gone = len(self._waiting) - len(kept)
        self._waiting.clear()
        self._waiting.extend(kept)
        self._load -= gone
        self.dropped += gone

    async def start(self) -> None:
        """Start the slots, and the child processes if a handler wants them. Twice is fine."""
        if self._loop is not None or self._draining:
            return
        self._loop = asyncio.get_running_loop()
        for slot in self._slots:
            slot.task = self._loop.create_task(self._serve(slot), name=f"late-slot-{slot.number}")
        self._watch = self._loop.create_task(self._watch_slots(), name="late-slot-watch")
        await self._target.start(self._handlers.values())

    async def stop(self, grace_s: float) -> None:
        """Start nothing more, wait up to `grace_s` for what runs, interrupt the rest.

        When it returns every submitted attempt has been given to `on_finished`. Calling it again
        can only shorten the grace; calling it before `start` gives everything back.
        """
        self._grace_ends = min(self._grace_ends, monotonic() + grace_s)
        self._draining = True
        self._ended.set()
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._shut_down())
        await asyncio.shield(self._stopping)

    # -- the life of an attempt ----------------------------------------------------------------

    async def run_one(self, slot: Slot, attempt: Attempt) -> None:
        """Admit, run, classify, report. Raises nothing but the end of the slot itself."""
        try:
            bound = self._admit(slot, attempt)
            value = await self._target.call(slot, bound, attempt)
            verdict = DONE if value is None else returned(value)
        except GeneratorExit:
            raise
        except BaseException as error:
            verdict = self._judge(slot, error)
        self._report(slot, attempt, verdict)

    def _admit(self, slot: Slot, attempt: Attempt) -> Bound:
        """Take the slot, unless the attempt is worthless by now or nobody here can run it."""
        now_us = self._now_us()
        slot.attempt = attempt
        slot.started_us = now_us
        slot.begun = monotonic()
        if attempt.deadline_us is not None and attempt.deadline_us <= now_us:
            raise _EXPIRED
        bound = self._bound.get(attempt.record.name)
        if bound is None:
            handler = self._handlers.get(attempt.record.name)
            if handler is None:
                raise _UNKNOWN
            bound = self._bound[attempt.record.name] = Bound(handler)
        slot.bound = bound
        return bound

    def _judge(self, slot: Slot, error: BaseException) -> Verdict:
        """An interrupted handler may raise anything on its way out: why it was interrupted is
        what counts. A normal return is not judged here: the work is done, however late."""
        if slot.ended_for is Why.STOP:
            return _INTERRUPTED
        bound = slot.bound
        if slot.ended_for is Why.TIMEOUT and bound is not None:
            return timed_out(bound.timeout_s, "cancelled")
        return raised(error, bound.rule if bound is not None else None, self._scrub)

    def _report(self, slot: Slot, attempt: Attempt, verdict: Verdict) -> None:
        """The handler is gone: free the slot, and queue the outcome unless it was settled."""
        if slot.settled:
            self.late += 1
            logger.warning("a stuck handler ended", extra=_about(slot))
        else:
            self._queue(slot, attempt, verdict)
        slot.clear()
        self._load -= 1
        if self._draining:
            self._ended.set()

    def _queue(self, slot: Slot, attempt: Attempt, verdict: Verdict) -> None:
        now = monotonic()
        if not self._delivery_due and self._loop is not None:
            self._delivery_due = True
            self._turn_ends = now + TURN_S
            self._loop.call_soon(self._end_turn)
        busy_us = int((now - slot.begun) * 1_000_000)
        if verdict is DONE:
            self._finished.append(Outcome(attempt, "done", slot.started_us, busy_us))
            return
        self._finished.append(self._outcome(attempt, verdict, slot.started_us, busy_us))

    def _outcome(
        self, attempt: Attempt, verdict: Verdict, started_us: int, busy_us: int
    ) -> Outcome:
        return Outcome(
            attempt,
            verdict.kind,
            started_us,
            busy_us,
            target=self._target.name,
            error=verdict.error,
            reason=verdict.reason,
            after_us=verdict.after_us,
            retryable=verdict.retryable,
            jitter=self._rng.random(),
        )

    def _end_turn(self) -> None:
        """Runs in the pass after the one in which something finished."""
        self._delivery_due = False
        self._deliver()

    def _deliver(self, *, awake: bool = False) -> None:
        """Hand over what has finished. `awake`: the caller is a slot that will look for work."""
        batch, self._finished = self._finished, []
        if self._fenced:
            kept = [outcome for outcome in batch if not self._is_fenced(outcome.attempt)]
            self.dropped += len(batch) - len(kept)
            batch = kept
        if batch:
            self._slot_awake = awake
            self._on_finished(batch)
            self._slot_awake = False

    def _give_back(self, attempts: Sequence[Attempt]) -> None:
        """Attempts that will not start: nothing is lost and no attempt is used up."""
        now_us = self._now_us()
        self._load -= len(attempts)
        back = [self._outcome(attempt, _INTERRUPTED, now_us, 0) for attempt in attempts]
        self._finished.extend(back)
        self._deliver()

    def _is_fenced(self, attempt: Attempt) -> bool:
        epoch = self._fenced.get((attempt.group, attempt.record.shard_id))
        return epoch is not None and attempt.epoch <= epoch

    # -- slots ---------------------------------------------------------------------------------

    async def _serve(self, slot: Slot) -> None:
        waiting = self._waiting
        task = slot.task
        assert task is not None
        while not self._closed:
            try:
                if not waiting:
                    if len(self._finished) >= DELIVER_AT:
                        self._deliver(awake=True)
                    if not waiting:
                        await self._rest(slot)
                    continue
                await self.run_one(slot, waiting.popleft())
                if monotonic() >= self._turn_ends:
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                # A handler may have cancelled its own task and returned before that took effect.
                # When the loop ends instead, `_watch_slots` closes and cancels once more.
                pass
            while task.cancelling():
                task.uncancel()

    async def _rest(self, slot: Slot) -> None:
        assert self._loop is not None
        slot.wake = self._loop.create_future()
        self._idle.append(slot)
        try:
            await slot.wake
        except BaseException:
            if slot in self._idle:
                self._idle.remove(slot)
            raise
        finally:
            slot.wake = None

    def _wake_one(self) -> None:
        """Wake one slot now, and the others after it has had its turn: where handlers never wait
        the first one takes everything, and waking sixteen for that would cost more than the work.
        """
        if not self._idle or not self._waiting or self._loop is None:
            return
        if not self._slot_awake:
            self._wake(self._idle.pop())
        if not self._wake_due and len(self._waiting) > 1:
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

    # -- time-outs -----------------------------------------------------------------------------

    async def _watch_slots(self) -> None:
        """One sweep over all slots, a few times per shortest time-out, while anything runs."""
        try:
            while True:
                if not self._load:
                    self._working.clear()
                    await self._working.wait()
                await asyncio.sleep(self._tick_s())
                now = monotonic()
                for slot in self._slots:
                    if slot.deadline <= now:
                        self._overdue(slot, now)
        finally:
            self._close_slots()

    def _tick_s(self) -> float:
        shortest = min((b.timeout_s for b in self._bound.values()), default=inf)
        return min(max(shortest / 8, 0.01), self._cancel_grace_s / 2, 0.25)

    def _overdue(self, slot: Slot, now: float) -> None:
        if slot.interruptible and slot.ended_for is None:
            self._interrupt(slot, Why.TIMEOUT)
            slot.deadline = now + self._cancel_grace_s
            return
        slot.ended_for = slot.ended_for or Why.TIMEOUT
        self._settle_stuck(slot)

    def _interrupt(self, slot: Slot, why: Why) -> None:
        assert slot.task is not None
        slot.ended_for = why
        slot.task.cancel()

    def _settle_stuck(self, slot: Slot) -> None:
        """The handler cannot be ended, its attempt can: otherwise a task that hangs would never
        use up its attempts and never become a dead letter. The price is that a repeat may run
        beside it, as after a worker's death. The slot stays taken until the handler ends."""
        attempt, bound = slot.attempt, slot.bound
        assert attempt is not None
        assert bound is not None
        what = (
            "its task ignored the cancellation" if slot.interruptible else "its thread still runs"
        )
        stopped = slot.ended_for is Why.STOP
        self._queue(slot, attempt, _INTERRUPTED if stopped else timed_out(bound.timeout_s, what))
        slot.settled = True
        slot.deadline = inf
        logger.warning("a handler is stuck: %s", what, extra=_about(slot))

    # -- stopping ------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        waiting = list(self._waiting)
        self._waiting.clear()
        self._give_back(waiting)
        await self._drain()
        for slot in self._running():
            if not slot.interruptible:
                slot.ended_for = slot.ended_for or Why.STOP
                self._settle_stuck(slot)
            elif slot.ended_for is None:
                self._interrupt(slot, Why.STOP)
        self._grace_ends = monotonic() + self._cancel_grace_s
        await self._drain()
        for slot in self._running():
            self._settle_stuck(slot)
        self._close_slots()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self._target.close()
        self._deliver()

    async def _drain(self) -> None:
        """Wait until nothing runs that is not settled, or until the grace ends (it may shrink)."""
        while self._running() and (left_s := self._grace_ends - monotonic()) > 0:
            self._ended.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._ended.wait()
            except TimeoutError:
                return

    def _running(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.attempt is not None and not slot.settled]

    def _close_slots(self) -> None:
        self._draining = self._closed = True
        for slot in self._slots:
            if slot.task is not None:
                slot.task.cancel()


def _about(slot: Slot) -> dict[str, object]:
    """What a log line may say of an attempt: never its payload."""
    attempt = slot.attempt
    assert attempt is not None
    return {
        "task": attempt.record.name,
        "task_id": attempt.record.task_id,
        "queue": attempt.record.queue,
        "attempt": attempt.number,
        "slot": slot.number,
    }
