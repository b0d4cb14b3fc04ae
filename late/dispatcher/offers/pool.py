"""The loop of attempts that are offered to other workers: they are written to a table, and wait for
an answer there.

| an offer | then |
|---|---|
| is answered | the attempt has ended so, and its policy is that of the worker that ran it |
| is of a name that no live worker handles | it cannot run now: nothing is written, it is parked |
| is not taken for `UNTAKEN_S`, or all others refused it | it cannot run now, and is parked |
| is taken by a worker that is gone | the attempt has died with that worker |
| belongs to a shard that is handed over | it is withdrawn if nobody has taken it |

A shard's core sees an attempt that takes longer. Only its owner records how it ended, under the
fence of the journal, so that an answer that comes too late changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from late.concurrency import in_thread
from late.dispatcher.offers.declared import DeclaredHandlers
from late.dispatcher.outcome_buffer import OutcomeBuffer
from late.errors import StoreError
from late.handler.classify import GIVEN_BACK, INTERRUPTED, Verdict
from late.model.backoff import Backoff
from late.model.offers import (
    ELSEWHERE,
    Answer,
    Offer,
    OfferKey,
    OfferState,
    key_of,
    offered,
    outcome_of,
)
from late.model.task import Attempt, Outcome, Policy

LOOK_S = 0.2
"""The pause between two looks at the answers, while one may come soon."""
LATER_LOOK_S = 1.0
"""The same once all that is offered was offered `SOON_S` ago."""
SOON_S = 10.0
UNTAKEN_S = 3.0
"""Others look for offers every second."""
UNSEEN_S = 15.0
"""A worker that has taken an offer and was never seen counts as gone after this time: it may have
begun after the last look at the fleet."""
FAILED_MAX_S = 30.0
"""The longest pause after an error of the database."""
OUT_MAX = 1_000
"""The most attempts that are offered at a time. The others are parked at once, as if nobody could
run them."""
NAMES_MAX = 10_000
"""The most names that are remembered as not taken."""

logger = logging.getLogger("late.dispatcher")


class OwnersTable(Protocol):
    """The offers in the database, for their owner. Blocking; raises `StoreError`."""

    def put(self, offers: Sequence[Offer]) -> None: ...
    def states(self, owner: str) -> list[OfferState]: ...
    def handlers(self, worker_ids: Collection[str]) -> dict[str, frozenset[str] | None]: ...
    def withdraw(self, offers: Sequence[Offer], *, untaken: bool = False) -> list[Offer]: ...


@dataclass(slots=True, eq=False)
class _Out:
    """An attempt that is offered, or is about to be."""

    attempt: Attempt
    verdict: Verdict
    """The end of the attempt if nobody takes it."""
    offer: Offer
    since: float
    begun: float
    unhandled: bool
    """There is no handler here; else there is one, and it refused."""
    written: bool = False
    runner: str | None = None
    taken_at: float = 0.0
    seen: bool = False
    """Its runner was among the live workers."""
    recalled: bool = False
    """To be taken back if nobody has taken it."""


class OfferPool:
    """The pool of what cannot run here. Everything happens on the loop that called `start`.

    Args:
        me: this worker.
        table: makes the table; called in a thread.
        others: the live workers of a group, without this one, as far as it knows.
        now_us: a lower bound of the database's clock, microseconds.
        on_finished: gets every outcome once, in batches.
        adopt: called before, with the policy by which an answered attempt is to be judged.
        trusted: whether this worker's view of the others is of now.
    """

    def __init__(
        self,
        me: str,
        *,
        table: Callable[[], OwnersTable],
        others: Callable[[str], frozenset[str]],
        now_us: Callable[[], int],
        on_finished: Callable[[list[Outcome]], None],
        adopt: Callable[[Attempt, Policy], None] = lambda attempt, policy: None,
        trusted: Callable[[], bool] = lambda: True,
        rng: random.Random | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._me = me
        self._table = table
        self._others = others
        self._now_us = now_us
        self._adopt = adopt
        self._trusted = trusted
        self._rng = rng or random.Random()
        self._clock = clock
        self._send = on_finished
        self._finished = OutcomeBuffer(on_finished, target=ELSEWHERE, rng=self._rng)
        self._declared = DeclaredHandlers(lambda ids: table().handlers(ids), clock=clock)
        self._out: dict[OfferKey, _Out] = {}
        self._gone: list[Offer] = []
        """Rows that have no use any more."""
        self._untaken: set[tuple[str, str]] = set()
        """(group, name) of tasks that nobody took: of each one at a time is offered from now on."""
        self._draining = False
        self._wake = asyncio.Event()
        self._quiet = asyncio.Event()
        self.running: asyncio.Task[None] | None = None
        """The loop, once it was started."""

    # -- what the scheduler sees -----------------------------------------------------------------

    @property
    def room(self) -> int:
        """It takes all: what it cannot offer comes back at once."""
        return 0 if self._draining else OUT_MAX

    @property
    def out(self) -> int:
        """Attempts that are offered or taken."""
        return len(self._out)

    @property
    def queued(self) -> list[Attempt]:
        """Its attempts: of none of them it is known here whether another worker has begun it."""
        return [out.attempt for out in self._out.values()]

    def submit(self, attempts: Sequence[Attempt]) -> None:
        """Accept attempts without a handler here. Never blocks."""
        for attempt in attempts:
            text = f"no handler for {attempt.record.name!r}"
            verdict = Verdict("not_capable", text, reason="unknown_task", begun=False)
            if self._draining:
                self._add(attempt, GIVEN_BACK, monotonic())
            elif self._nobody(attempt) or not self._offer(attempt, verdict, unhandled=True):
                self._add(attempt, verdict, monotonic())
        if self.running is None:
            self._finished.deliver()

    def offer(self, outcome: Outcome) -> bool:
        """Offer an attempt that could not run here; False if nobody can take it."""
        verdict = Verdict("not_capable", outcome.error, reason=outcome.reason)
        return self._offer(outcome.attempt, verdict, unhandled=False)

    def _offer(self, attempt: Attempt, verdict: Verdict, *, unhandled: bool) -> bool:
        key = key_of(attempt)
        if (
            self._draining
            or self.running is None
            or len(self._out) >= OUT_MAX
            or key in self._out
            or self._finished.is_fenced(attempt)
            or self._is_probed(attempt)
            or not self._others(attempt.group)
        ):
            return False
        offer = Offer(key, self._me, attempt.epoch, offered(attempt))
        self._out[key] = _Out(attempt, verdict, offer, self._clock(), monotonic(), unhandled)
        self._quiet.clear()
        self._wake.set()
        return True

    def _nobody(self, attempt: Attempt) -> bool:
        """Tell whether no other worker handles the task, as all of them have declared."""
        record, others = attempt.record, self._others(attempt.group)
        return self._declared.nobody(others, record.queue, record.name)

    def _is_probed(self, attempt: Attempt) -> bool:
        """Tell whether nobody took the last task of this name, and another one is offered."""
        name = _name(attempt)
        return name in self._untaken and any(_name(o.attempt) == name for o in self._out.values())

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        """Give up a shard that was lost under `epoch`, with all that is offered of it."""
        self._finished.fence(group, shard_id, epoch)
        for out in [out for out in self._out.values() if self._finished.is_fenced(out.attempt)]:
            self._drop(out)
            self._finished.dropped += 1

    def recall(self, shards: Collection[tuple[str, int]]) -> None:
        """Take back what nobody has taken of these shards: they are about to be handed over."""
        for out in self._out.values():
            out.recalled = out.recalled or (out.offer.key.group, out.offer.key.shard_id) in shards
        self._wake.set()

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to offer. Twice is fine."""
        if self.running is None:
            loop = asyncio.get_running_loop()
            self._finished.open(loop)
            self._quiet.set()
            self.running = loop.create_task(self._run(), name="late-offers")

    async def stop(self, grace_s: float) -> None:
        """Offer nothing more, wait up to `grace_s` for answers, give the rest back."""
        self._draining = True
        for out in self._out.values():
            out.recalled = True
        self._wake.set()
        if self.running is not None and not self.running.done():
            try:
                async with asyncio.timeout(grace_s):
                    await self._quiet.wait()
            except TimeoutError:
                pass
            self.running.cancel()
            await asyncio.wait({self.running})
        for out in list(self._out.values()):
            self._end(out, INTERRUPTED)
        self._finished.deliver()
        if self._gone:
            try:
                await in_thread(self._withdraw, tuple(self._gone))
            except StoreError as error:  # They go with the next sweep, and start nothing.
                logger.warning("offers were not withdrawn: %s", error)

    async def _run(self) -> None:
        backoff = Backoff(self._rng, base_s=LOOK_S, cap_s=FAILED_MAX_S)
        while True:
            if not self._out and not self._gone:
                await self._wake.wait()
            self._wake.clear()
            try:
                await self._exchange()
            except StoreError as error:
                logger.warning("offers of this worker: %s", error)
                if not error.transient:
                    self._give_up()
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            now = self._clock()
            soon = any(now - out.since < SOON_S for out in self._out.values())
            try:
                async with asyncio.timeout(LOOK_S if soon else LATER_LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _give_up(self) -> None:
        """End what could not be written: the table is not there, or not for this worker."""
        for out in [out for out in self._out.values() if not out.written]:
            self._end(out, out.verdict)
        self._gone.clear()

    # -- the exchange with the table -------------------------------------------------------------

    async def _exchange(self) -> None:
        """Write what is new, remove what has ended, and look at the rest."""
        await self._end_unhandled()
        new = [out for out in self._out.values() if not out.written]
        gone = tuple(self._gone)
        found = await in_thread(self._write_and_look, [out.offer for out in new], gone)
        del self._gone[: len(gone)]
        for out in new:
            out.written = True
        states = {(state.key, state.epoch): state for state in found}
        back = []
        for key, out in list(self._out.items()):
            if not out.written or self._out.get(key) is not out:
                continue  # It is new, or the answer to one before it has cost the shard.
            if self._judge(out, states.get((key, out.offer.epoch))):
                back.append(out)
        if back:
            await self._take_back(back)

    async def _end_unhandled(self) -> None:
        """End attempts that are not written yet if no live worker has a handler."""
        groups = {o.attempt.group for o in self._out.values() if o.unhandled and not o.written}
        if not groups:
            return
        await self._declared.learn(frozenset[str]().union(*map(self._others, groups)))
        for out in list(self._out.values()):
            if out.unhandled and not out.written and self._nobody(out.attempt):
                self._end(out, out.verdict)

    async def _take_back(self, outs: list[_Out]) -> None:
        """End attempts that nobody has taken. In between somebody may, so the row decides."""
        offers = [out.offer for out in outs]
        removed = {offer.key for offer in await in_thread(self._withdraw, offers, untaken=True)}
        for out in outs:
            if out.offer.key in removed and self._out.get(out.offer.key) is out:
                if len(self._untaken) < NAMES_MAX:
                    self._untaken.add(_name(out.attempt))
                self._end(out, GIVEN_BACK if out.recalled else out.verdict)

    def _write_and_look(self, new: list[Offer], gone: tuple[Offer, ...]) -> list[OfferState]:
        table = self._table()
        if gone:
            table.withdraw(gone)
        if new:
            table.put(new)
        return table.states(self._me)

    def _withdraw(self, offers: Sequence[Offer], *, untaken: bool = False) -> list[Offer]:
        return self._table().withdraw(offers, untaken=untaken)

    def _judge(self, out: _Out, state: OfferState | None) -> bool:
        """End an attempt that has ended; return whether it is to be taken back."""
        if state is None:
            # An operator, or a sweep that saw the shard with another owner, has removed it.
            self._end(out, out.verdict if out.runner is None else INTERRUPTED)
            return False
        if state.answer is not None:
            self._answered(out, state.answer)
            return False
        now, others = self._clock(), self._others(out.offer.key.group)
        if state.runner is None:
            out.runner = None
            everyone = others <= state.refused_by
            return out.recalled or everyone or now - out.since >= UNTAKEN_S
        if state.runner != out.runner:
            self._untaken.discard(_name(out.attempt))
            out.runner, out.taken_at, out.seen = state.runner, now, False
        if not self._trusted():
            return False
        out.seen = out.seen or out.runner in others
        if out.runner not in others and (out.seen or now - out.taken_at >= UNSEEN_S):
            self._end(out, Verdict("died", f"worker {out.runner} is gone, it ran there"))
        return False

    def _answered(self, out: _Out, answer: Answer) -> None:
        self._drop(out)
        self._untaken.discard(_name(out.attempt))
        if self._finished.is_fenced(out.attempt):
            return
        self._adopt(out.attempt, answer.policy)
        self._send([outcome_of(out.attempt, answer, self._rng.random())])

    def _end(self, out: _Out, verdict: Verdict) -> None:
        self._drop(out)
        self._add(out.attempt, verdict, out.begun)

    def _add(self, attempt: Attempt, verdict: Verdict, begun: float) -> None:
        self._finished.add(attempt, verdict, self._now_us(), begun)

    def _drop(self, out: _Out) -> None:
        """Forget an attempt; its row is removed with the next exchange."""
        del self._out[out.offer.key]
        self._gone.append(out.offer)
        self._wake.set()
        if not self._out:
            self._quiet.set()


def _name(attempt: Attempt) -> tuple[str, str]:
    return attempt.group, attempt.record.name
