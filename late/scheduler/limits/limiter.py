"""What one queue, or one target, allows in one worker: its knobs, and what they have learned."""

from __future__ import annotations

from collections import Counter

from late.model.queue_settings import Knobs
from late.model.task import Outcome, TaskId
from late.scheduler.limits.adaptive_limit import Adaptive, SlowStart
from late.scheduler.limits.circuit_breaker import Breaker
from late.scheduler.limits.token_bucket import TokenBucket

STREAK = 5
"""So many different tasks in a row failed at a target: it is the target that fails."""
BUDGET_SPAN_S = 10.0
ABSENT = ("unavailable", "overloaded", "timeout")
"""Reasons of a failure that say that nobody answered, or that it was too much."""


class Part:
    """What one queue, or one target, allows in this worker."""

    def __init__(self, knobs: Knobs, now_us: int) -> None:
        self.knobs = knobs
        self.running = 0
        self.tenants: Counter[str] = Counter()
        self.bucket: TokenBucket | None = None
        self.budget: TokenBucket | None = None
        self.breaker: Breaker | None = None
        self.adaptive: Adaptive | None = None
        self.slow = SlowStart(knobs.slow_start_s or 0.0, now_us)
        self._streak: set[TaskId] = set()
        self._share = (1, 1)
        self.set(knobs, now_us)

    def set(self, knobs: Knobs, now_us: int) -> None:
        """Other knobs from now on; what was learned and is running stays."""
        self.knobs = knobs
        self.slow.seconds = knobs.slow_start_s or 0.0
        if knobs.rate is None:
            self.bucket = None
        if knobs.retry_budget is None and knobs.retry_min is None:
            self.budget = None
        else:
            rate = max(knobs.retry_min or 0.0, 0.001)
            self.budget = self.budget or TokenBucket(rate, rate * BUDGET_SPAN_S, now_us)
            self.budget.resize(rate, rate * BUDGET_SPAN_S, now_us)
        if knobs.breaker is None:
            self.breaker = None
        else:
            self.breaker = self.breaker or Breaker(1.0, 1, 1.0)
            self.breaker.ratio, self.breaker.calls = knobs.breaker, knobs.breaker_calls or 20
            self.breaker.open_s = knobs.breaker_open_s or 5.0
        self.adaptive = (self.adaptive or Adaptive()) if knobs.concurrency == "auto" else None
        self.share(*self._share, now_us)

    def share(self, mine: int, total: int, now_us: int) -> None:
        """This worker has `mine` of `total` shards."""
        self._share = (mine, total)
        if self.knobs.rate is not None and mine:
            rate = self.knobs.rate * mine / total
            burst = (self.knobs.burst or max(1.0, self.knobs.rate)) * mine / total
            if self.bucket is None:
                self.bucket = TokenBucket(rate, burst, now_us)
            elif (self.bucket.rate, self.bucket.burst) != (rate, max(1.0, burst)):
                self.bucket.resize(rate, burst, now_us)

    def limit(self, now_us: int) -> int | None:
        """Attempts at once in this worker, None for no limit."""
        if self.adaptive is not None:
            return self.slow.of(self.adaptive.limit, now_us)
        if not isinstance(self.knobs.concurrency, int):
            return None
        mine, total = self._share
        return self.slow.of(max(1, self.knobs.concurrency * mine // total), now_us)

    def opens_at_us(self, *, retry: bool, now_us: int) -> int | None:
        """`now_us` if one more may start; a later time if it is known; None: when something else
        changes."""
        if self.knobs.paused:
            return None
        limit = self.limit(now_us)
        if limit is not None and self.running >= limit:
            return None
        if self.breaker is not None and not self.breaker.admits(now_us):
            return max(now_us + 1, self.breaker.until_us) if self.breaker.state == "open" else None
        if self.bucket is not None and not self.bucket.has(now_us):
            return self.bucket.next_at_us(now_us)
        if retry and self.budget is not None and not self.budget.has(now_us):
            return self.budget.next_at_us(now_us)
        return now_us

    def start(self, *, retry: bool, now_us: int) -> None:
        """One more starts."""
        self.running += 1
        if self.bucket is not None:
            self.bucket.take()
        if self.breaker is not None:
            self.breaker.started(now_us)
        if self.budget is not None and retry:
            self.budget.take()

    def undo(self) -> None:
        """It did not start after all, or nothing will be heard of it. A retry's token is not given
        back: one whose shard was lost may have been made."""
        self.running -= 1
        if self.bucket is not None:
            self.bucket.give_back()
        if self.breaker is not None:
            self.breaker.undone()

    def ended(self, outcome: Outcome, *, retry: bool, now_us: int) -> None:
        """Learn from how an attempt ended.

        A first attempt earns its part of a retry here, and not as it starts: between the two it may
        wait for the mark of a suspect in the journal, be taken back, or be lost with its shard.
        """
        self.running -= 1
        if self.budget is not None and not retry:
            self.budget.earn(self.knobs.retry_budget or 0.0)
        good = says(outcome)
        if good is None:
            if self.breaker is not None:
                self.breaker.undone()
            return
        if good:
            self._streak.clear()
        elif len(self._streak) < STREAK:
            self._streak.add(outcome.attempt.record.task_id)
        if self.adaptive is not None:
            if outcome.overloaded:
                self.adaptive.overloaded(now_us)
            elif good:
                self.adaptive.good(self.running + 1)
        if self.breaker is not None and self.breaker.ended(good, now_us):
            self.slow.begin(now_us)

    @property
    def failing(self) -> bool:
        """Whether it is the target that fails, and not the tasks."""
        if self.breaker is None:
            return len(self._streak) >= STREAK
        return (
            self.breaker.state != "closed"
            or len(self._streak) >= STREAK
            or self.breaker.failing(STREAK, self.breaker.ratio)
        )


def says(outcome: Outcome) -> bool | None:
    """What an end says of who executed it: good, bad, or nothing.

    A task that is refused for good was answered: the target works.
    """
    match outcome.kind:
        case "done" | "discard" | "snooze" | "dead":
            return True
        case "failed" if outcome.after_us is not None and outcome.reason not in ABSENT:
            return not outcome.overloaded  # it asked for a retry: that is an answer
        case "failed":
            return not (outcome.retryable or outcome.overloaded)
        case "died":
            return False
    return None
