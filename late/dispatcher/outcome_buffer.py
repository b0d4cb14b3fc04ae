"""Outcomes on their way out: collected, and handed over in batches."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from math import inf
from time import monotonic

from late import events
from late.handler.classify import DONE, Verdict
from late.model.task import Attempt, Outcome, ShardId

TURN_S = 0.002
"""The time that attempts that never wait may keep the event loop before others get their turn."""
DELIVER_AT = 8
"""From so many outcomes on, a slot that finds nothing to do hands them over at once, so that the
next attempts come without a pass of the event loop (a system call) in between."""


class OutcomeBuffer:
    """The outcomes that were not handed over yet, and the epochs whose results are dropped."""

    def __init__(
        self,
        on_finished: Callable[[list[Outcome]], None],
        *,
        target: str,
        rng: random.Random | None = None,
        offer: Callable[[Outcome], bool] = lambda outcome: False,
    ) -> None:
        """
        Args:
            offer: gets an attempt that cannot run here. True: it was offered to other workers, and
                is not among the outcomes.
        """
        self._on_finished = on_finished
        self._offer = offer
        self.on_fenced: Callable[[Attempt], bool] = lambda attempt: False
        """Gets each attempt whose outcome a fence drops. True: the journal has its end already, so
        nothing is lost by that."""
        self._target = target
        self._rng = rng or random.Random()
        self._batch: list[Outcome] = []
        self.unbegun: list[Attempt] = []
        """Attempts in it whose handler was not called: nobody else knows that yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = False
        """A delivery is scheduled for the next pass of the loop."""
        self._fenced: dict[tuple[str, int], int] = {}
        self.added_at = 0.0
        """The monotonic time at which the last attempt ended."""
        self.turn_ends = inf
        """The monotonic time at which this pass should end. Stale while none is scheduled."""
        self.dropped = 0
        """Outcomes of fenced epochs that were thrown away."""
        self.late_results: Counter[tuple[str, ShardId]] = Counter()
        """The dropped outcomes of attempts that had run, per (group, shard)."""

    def __len__(self) -> int:
        return len(self._batch)

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver on `loop` from now on; before that only `deliver` does."""
        self._loop = loop

    def add(
        self,
        attempt: Attempt,
        verdict: Verdict,
        started_us: int,
        begun: float,
        ended: float | None = None,
        share: int = 1,
    ) -> None:
        """Add the outcome of `attempt`. `begun` and `ended` are monotonic; None: it ends now.
        `share` attempts have run in one call, and each bears its part of the time."""
        self.added_at = now = monotonic()
        if not self._due and self._loop is not None:
            self._due = True
            self.turn_ends = now + TURN_S
            self._loop.call_soon(self._end_turn)
        busy_us = int(((ended or now) - begun) * 1_000_000) // share
        if verdict is DONE:
            self._batch.append(Outcome(attempt, "done", started_us, busy_us, self._target))
            return
        outcome = Outcome(
            attempt,
            verdict.kind,
            started_us,
            busy_us,
            target=self._target,
            error=verdict.error,
            reason=verdict.reason,
            after_us=verdict.after_us,
            retryable=verdict.retryable,
            jitter=self._rng.random(),
            overloaded=verdict.overloaded,
            result=verdict.result,
            begun=verdict.begun,
            counts=verdict.counts,
        )
        if verdict.kind != "not_capable" or not self._offer(outcome):
            self._batch.append(outcome)
            if not verdict.begun:
                self.unbegun.append(attempt)

    def deliver(self) -> None:
        """Hand over everything now. An exception of the receiver goes to the loop's exception
        handler: it is a defect, and must not end the slot that happened to deliver."""
        batch, self._batch = self._batch, []
        self.unbegun.clear()
        if self._fenced:
            batch = self._without_fenced(batch)
        if not batch:
            return
        try:
            self._on_finished(batch)
        except Exception as error:
            if self._loop is None:
                raise
            self._loop.call_exception_handler(
                {"message": "outcomes were not accepted", "exception": error}
            )

    def fence(self, group: str, shard_id: int, epoch: int) -> None:
        """Drop from now on the outcomes of the shard under `epoch` or an older one."""
        key = (group, shard_id)
        self._fenced[key] = max(epoch, self._fenced.get(key, epoch))

    def is_fenced(self, attempt: Attempt) -> bool:
        epoch = self._fenced.get((attempt.group, attempt.record.shard_id))
        return epoch is not None and attempt.epoch <= epoch

    def _without_fenced(self, batch: list[Outcome]) -> list[Outcome]:
        kept: list[Outcome] = []
        lost: Counter[tuple[str, int]] = Counter()
        for outcome in batch:
            attempt = outcome.attempt
            if not self.is_fenced(attempt):
                kept.append(outcome)
            elif not self.on_fenced(attempt):
                lost[attempt.group, attempt.record.shard_id] += 1
        for (group, shard), count in lost.items():
            self.dropped += count
            self.late_results[group, ShardId(shard)] += count
            events.default.emit(events.LATE_RESULT, count=count, group=group, shard=shard)
        return kept

    def _end_turn(self) -> None:
        self._due = False
        self.deliver()
