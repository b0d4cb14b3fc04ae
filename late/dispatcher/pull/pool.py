"""The loop of a pulled queue: attempts go to the consumers that ask, and wait for an answer.

There is one pool per pulled queue, so that a queue that nobody asks for holds up no other. A pool
has room only for the attempts that consumers wait for at this moment. The others stay with the
shard's core, where they can be handed over, cancelled and counted; and the death of this process
makes no suspects of tasks that nobody had begun.

An attempt that was handed out is *out* until its consumer answers or its visibility time ends,
which counts as a failed attempt. Each hand-out has a number of its own (`PullLease.serial`), which
an answer names, so that an answer to an earlier hand-out of the same attempt changes nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from time import monotonic

from late.dispatcher.outcome_buffer import OutcomeBuffer
from late.dispatcher.pull.queue import PullLease, Waiter, Waiters, identity, pool_name
from late.dispatcher.pull.refusals import Refusals, known_as
from late.dispatcher.push import responses
from late.handler.classify import DONE, EXPIRED, GIVEN_BACK, INTERRUPTED, Verdict, clean
from late.model.task import Attempt, Outcome

SWEEP_S = 0.1
"""The pause between two looks at the visibility times: one is late by no more than this."""
UNCLAIMED_S = 1.0
"""The time after which an attempt that nobody takes goes back to its shard."""
OUT_MAX = 10_000
WAITING_MAX = 1_000
SILENT, SILENT_S, SILENT_MAX = 3, 600.0, 1_000
"""A consumer that lets the time of so many attempts pass is told of for so many seconds; so many
consumers are remembered."""
NOBODY = Verdict("not_capable", reason="no_capable_consumer", after_us=5_000_000, begun=False)
"""Only some seconds: a capable consumer may just be between two requests."""
REFUSED_S = 60.0
"""The time for which an attempt is not offered again to a consumer that cannot do it."""


class PullPool:
    """The pool of one pulled queue. Everything happens on the event loop that called `start`."""

    def __init__(
        self,
        queue: str,
        *,
        now_us: Callable[[], int],
        on_finished: Callable[[list[Outcome]], None],
        wake: Callable[[], None],
        trusted: Callable[[], bool] = lambda: True,
        rng: random.Random | None = None,
        name: str | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """
        Args:
            now_us: a lower bound of the database's clock, microseconds.
            on_finished: gets every outcome once, in batches. It may call `submit` and `abandon`.
            wake: called when `room` has grown.
            trusted: whether this worker may start work now; asked at every hand-out.
        """
        self.queue = queue
        self.name = name or pool_name(queue)
        self._now_us = now_us
        self._wake = wake
        self._trusted = trusted
        self._clock = clock
        self._finished = OutcomeBuffer(on_finished, target=self.name, rng=rng or random.Random())
        self._waiting: deque[tuple[Attempt, float]] = deque()
        self.waiters = Waiters(self)
        self._out: dict[int, PullLease] = {}
        self._refusals = Refusals()
        self._serial = 0
        self.unanswered = 0
        """The attempts whose consumer let their time pass."""
        self._silent: dict[str, tuple[int, float]] = {}
        """The same by consumer since it last answered, with the last time; the latest last."""
        self._match_due = False
        self._fresh = 0
        """The number of waiting attempts that came since the last match."""
        self._draining = self._records = False
        self._quiet = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeping: asyncio.Task[None] | None = None

    # -- what the scheduler sees -----------------------------------------------------------------

    @property
    def room(self) -> int:
        """The number of attempts that consumers wait for. Attempts that are here and that none of
        them can do do not count: they must not keep others away."""
        if self._draining:
            return 0
        if self._records:
            return OUT_MAX
        asked = self.waiters.total - self._fresh
        return max(0, min(asked, OUT_MAX - len(self._out), WAITING_MAX - len(self._waiting)))

    @property
    def queued(self) -> list[Attempt]:
        """The attempts that wait for a consumer."""
        return [attempt for attempt, _ in self._waiting]

    @property
    def load(self) -> int:
        """Attempts that are here: waiting and handed out."""
        return len(self._waiting) + len(self._out)

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Accept attempts. Never blocks; while stopping they come back as interrupted."""
        if self._draining:
            for attempt in attempts:
                self._back(attempt)
            return
        if attempts and attempts[0].shadow:
            for attempt in attempts:
                self._finished.add(attempt, DONE, self._now_us(), monotonic())
            return
        now = self._clock()
        self._waiting.extend((attempt, now) for attempt in attempts)
        self._fresh += len(attempts)
        self._match_soon()

    def record(self) -> None:
        """Give nothing to consumers, and say that all is done: this worker serves a shadow."""
        self._records = True

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        """Give up a shard that was lost under `epoch`: hand out none of its attempts, and refuse
        answers for those that are out."""
        finished = self._finished
        finished.fence(group, shard_id, epoch)
        kept = [item for item in self._waiting if not finished.is_fenced(item[0])]
        lost = [serial for serial, hold in self._out.items() if finished.is_fenced(hold.attempt)]
        finished.dropped += len(self._waiting) - len(kept) + len(lost)
        self._waiting = deque(kept)
        for serial in lost:
            del self._out[serial]
        self._note_quiet()

    def recall(self, shards: Collection[tuple[str, int]]) -> None:
        """Give back at once the attempts of these shards that nobody has begun: the shards are
        about to be handed over."""
        kept: deque[tuple[Attempt, float]] = deque()
        for attempt, since in self._waiting:
            if (attempt.group, attempt.record.shard_id) in shards:
                self._back(attempt)
            else:
                kept.append((attempt, since))
        self._waiting = kept
        self._finished.deliver()

    # -- what consumers do -----------------------------------------------------------------------

    def answer(self, hold: PullLease, verdict: Verdict) -> bool:
        """Record how an attempt ended; False if it was not out any more. What this consumer cannot
        do is offered to the others first."""
        self._silent.pop(hold.consumer.partition("~")[0], None)
        return self._end(hold, verdict)

    def _end(self, hold: PullLease, verdict: Verdict) -> bool:
        if self._out.pop(hold.serial, None) is None:
            return False
        if verdict.kind == "not_capable" and self._offer_others(hold, verdict):
            self._note_quiet()
            return True
        if verdict.kind != "interrupted":
            self._refusals.forget(hold.attempt)
        verdict = responses.as_recorded(verdict, hold.attempt)
        self._finished.add(hold.attempt, verdict, hold.started_us, hold.begun)
        self._note_quiet()
        return True

    def _offer_others(self, hold: PullLease, verdict: Verdict) -> bool:
        consumer = known_as(hold.consumer)
        if consumer is None or verdict.after_us is not None or self._draining:
            return False
        now = self._clock()
        self._refusals.add(hold.attempt, consumer, verdict, now + REFUSED_S)
        self._waiting.append((hold.attempt, now))
        self._match_soon()
        return True

    def find(
        self, serial: int, attempt_of: tuple[str, int, int, str, int], *, until_us: int
    ) -> PullLease | None:
        """Return the lease with this number if it is out, is of that (group, shard, epoch, task,
        attempt), and neither it nor its receipt (`until_us`) is over."""
        hold = self._out.get(serial)
        if hold is None or identity(hold.attempt) != attempt_of:
            return None
        return None if hold.until <= self._clock() or until_us <= self._now_us() else hold

    def extend(self, hold: PullLease, visibility_s: float) -> None:
        """Count the visibility time of a consumer that is still at work anew from now."""
        hold.until = self._clock() + visibility_s
        hold.visibility_s = visibility_s
        hold.until_us = self._now_us() + round(visibility_s * 1_000_000)

    def drop(self, consumer: str) -> None:
        """Give the attempts of a consumer that is gone to others, which costs no attempt.

        Args:
            consumer: its names for single requests (`fleet.py`) are its own with `~` and a number.
                With `/` at its end: all consumers of a token.
        """
        for hold in list(self._out.values()):
            name = hold.consumer.partition("~")[0]
            of_token = consumer.endswith("/") and f"{name}/".startswith(consumer)
            if of_token or consumer in (name, hold.consumer):
                self.answer(hold, INTERRUPTED)

    @property
    def out(self) -> int:
        """Attempts that consumers have."""
        return len(self._out)

    @property
    def leases(self) -> list[PullLease]:
        """The attempts that consumers have, the first handed out first."""
        return list(self._out.values())

    @property
    def silent(self) -> dict[str, int]:
        """The consumers that lately let the time of several attempts pass and answered none since,
        with the number of these attempts."""
        since = self._clock() - SILENT_S
        return {
            consumer: times
            for consumer, (times, at) in self._silent.items()
            if times >= SILENT and at > since
        }

    @property
    def waiting(self) -> int:
        """Attempts that are here and with no consumer."""
        return len(self._waiting)

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to hand out. Twice is fine."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._finished.open(self._loop)
            self._sweeping = self._loop.create_task(self._sweep(), name=f"late-{self.name}")

    async def stop(self, grace_s: float) -> None:
        """Hand out nothing more, wait up to `grace_s` for answers, give the rest back.

        When it returns every submitted attempt has been given to `on_finished`.
        """
        self._draining = True
        self.waiters.release()
        for attempt, _ in self._waiting:
            self._back(attempt)
        self._waiting.clear()
        self._finished.deliver()
        self._note_quiet()
        try:
            async with asyncio.timeout(grace_s):
                await self._quiet.wait()
        except TimeoutError:
            for hold in list(self._out.values()):
                self.answer(hold, INTERRUPTED)
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait({self._sweeping})
        self._finished.deliver()

    def ask(self, waiter: Waiter) -> bool:
        """Let `waiter` wait for attempts of this queue; False while stopping. See `receive`."""
        if self._draining or self._records or self._loop is None:
            return False
        self.waiters.add(waiter)
        self._match_soon()
        self._wake()
        return True

    def put_back(self, attempts: Sequence[Attempt]) -> None:
        """Give attempts whose consumer left in the same moment to the next one."""
        if self._draining:
            self.submit(attempts)
            return
        now = self._clock()
        self._waiting.extendleft((attempt, now) for attempt in reversed(attempts))
        self._match_soon()

    def hand_out(self, attempt: Attempt, consumer: str, visibility_s: float) -> PullLease:
        self._serial += 1
        now, now_us = self._clock(), self._now_us()
        hold = PullLease(
            self._serial,
            attempt,
            consumer,
            now_us,
            monotonic(),
            now + visibility_s,
            visibility_s,
            now_us + round(visibility_s * 1_000_000),
        )
        self._out[hold.serial] = hold
        self._quiet.clear()
        return hold

    def _match_soon(self) -> None:
        # One pass later: what comes in one pass of the scheduler goes out as one batch.
        if self._loop is not None and not self._match_due:
            self._match_due = True
            self._loop.call_soon(self._match)

    def _match(self) -> None:
        self._match_due = False
        self._fresh = 0
        if not self._waiting or not self.waiters.total:
            return
        trusted, now_us, now = self._trusted(), self._now_us(), self._clock()
        kept: deque[tuple[Attempt, float]] = deque()
        for attempt, since in self._waiting:
            if not trusted:
                self._back(attempt)
            elif attempt.deadline_us is not None and attempt.deadline_us <= now_us:
                self._finished.add(attempt, EXPIRED, now_us, monotonic())
            elif not self.waiters.offer(attempt, self._refusals.of(attempt, now)):
                kept.append((attempt, since))
        self._waiting = kept
        self.waiters.hand_over()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now = self._clock()
            for hold in [hold for hold in self._out.values() if hold.until <= now]:
                who = hold.consumer.partition("~")[0]
                text = f"no answer from {who} within {hold.visibility_s:g} s"
                self._note_silent(who)
                # No further wait: the visibility time was one.
                self._end(hold, Verdict("failed", error=clean(text), after_us=0))
            while self._waiting and self._waiting[0][1] + UNCLAIMED_S <= now:
                self._unclaimed(self._waiting.popleft()[0])

    def _note_silent(self, consumer: str) -> None:
        self.unanswered += 1
        times, _ = self._silent.pop(consumer, (0, 0.0))
        self._silent[consumer] = (times + 1, self._clock())
        if len(self._silent) > SILENT_MAX:
            del self._silent[next(iter(self._silent))]

    def _unclaimed(self, attempt: Attempt) -> None:
        """Return an attempt to its shard. When consumers wait but none of them can do this task, it
        must not come again at once: it would only go round."""
        refused = [*self._refusals.of(attempt, self._clock()).values()]
        if refused or self.waiters.of(attempt.group):
            verdict = refused[-1] if refused else NOBODY
            self._finished.add(attempt, verdict, self._now_us(), monotonic())
        else:
            self._back(attempt)

    def _back(self, attempt: Attempt) -> None:
        self._finished.add(attempt, GIVEN_BACK, self._now_us(), monotonic())
        if self._loop is None:
            self._finished.deliver()

    def _note_quiet(self) -> None:
        if not self._out:
            self._quiet.set()
