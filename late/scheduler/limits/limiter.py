"""Limit one queue, or one target, in one worker, by its settings and by what it has learned."""

from __future__ import annotations

import math
from collections import Counter

from late.clock import was_set_back
from late.model.queue_settings import QueueSettings
from late.model.task import Outcome, TaskId
from late.scheduler.limits.adaptive_limit import AdaptiveLimit, SlowStart
from late.scheduler.limits.circuit_breaker import CircuitBreaker
from late.scheduler.limits.outages import PAUSE_MAX_US

STREAK = 5
"""So many different tasks in a row failed at a target: it is the target that fails."""
BUDGET_SPAN_S = 10.0
ABSENT = ("unavailable", "overloaded", "timeout")
"""Reasons of a failure that say that nobody answered, or that it was too much."""
ELSEWHERE = "target_blocked"
"""The reason of a redirect, which is not followed."""


class TokenBucket:
    """A token bucket. It is full at first: `burst` may start at once, then `rate` a second.

    Invariant: within any time of `t` seconds at most `burst + rate * t` tokens are taken.

    Args:
        since_us: the time at which it was empty; None: it is full.
    """

    def __init__(
        self, rate: float, burst: float, now_us: int, *, since_us: int | None = None
    ) -> None:
        self.rate = rate
        self.burst = max(1.0, burst)
        self._tokens = self.burst
        if since_us is not None:
            self._tokens = min(self.burst, max(0, now_us - since_us) * rate / 1_000_000)
        self._at_us = now_us

    def resize(self, rate: float, burst: float, now_us: int) -> None:
        """Set another rate; the tokens that are there stay, as far as they fit."""
        self._fill(now_us)
        self.rate, self.burst = rate, max(1.0, burst)
        self._tokens = min(self._tokens, self.burst)

    def left(self, now_us: int) -> float:
        """Return the tokens that are there."""
        self._fill(now_us)
        return self._tokens

    def has(self, now_us: int) -> bool:
        """Return whether a token can be taken."""
        self._fill(now_us)
        return self._tokens >= 1.0

    def take(self) -> None:
        """Take one, after `has`."""
        self._tokens -= 1.0

    def give_back(self) -> None:
        """Give back a token that was not used after all."""
        self._tokens = min(self.burst, self._tokens + 1.0)

    def earn(self, tokens: float) -> None:
        """Add tokens that time has not brought."""
        self._tokens = min(self.burst, self._tokens + tokens)

    def next_at_us(self, now_us: int, ahead: int = 0) -> int:
        """Return when there is a token for a task with `ahead` others before it."""
        self._fill(now_us)
        missing = 1.0 + ahead - self._tokens
        return now_us if missing <= 0 else now_us + math.ceil(missing / self.rate * 1_000_000)

    def _fill(self, now_us: int) -> None:
        # A clock that went back a little earns nothing until it has caught up.
        if now_us > self._at_us:
            earned = (now_us - self._at_us) * self.rate / 1_000_000
            self._tokens = min(self.burst, self._tokens + earned)
            self._at_us = now_us
        elif was_set_back(now_us, self._at_us):
            self._at_us = now_us


class Limiter:
    """The limits of one queue, or one target, in this worker."""

    def __init__(self, settings: QueueSettings, now_us: int) -> None:
        self.settings = settings
        self.running = 0
        self.tenants: Counter[str] = Counter()
        self.bucket: TokenBucket | None = None
        self.budget: TokenBucket | None = None
        self.breaker: CircuitBreaker | None = None
        self.adaptive: AdaptiveLimit | None = None
        self.slow = SlowStart(settings.slow_start_s or 0.0, now_us)
        self.rests_until_us = 0
        """Nothing starts before this time."""
        self.good = self.bad = 0
        """Attempts since the start that showed that their executor works, or that it does not."""
        self.last_error = ("", 0)
        """The error of the last of the bad ones, and the time at which it ended."""
        self._streak: set[TaskId] = set()
        self._share = (1, 1)
        self.set(settings, now_us)

    def set(self, settings: QueueSettings, now_us: int) -> None:
        """Take other settings; what was learned and what is running stays."""
        self.settings = settings
        self.slow.seconds = settings.slow_start_s or 0.0
        if settings.rate is None:
            self.bucket = None
        if settings.retry_budget is None and settings.retry_min is None:
            self.budget = None
        else:
            rate = max(settings.retry_min or 0.0, 0.001)
            self.budget = self.budget or TokenBucket(rate, rate * BUDGET_SPAN_S, now_us)
            self.budget.resize(rate, rate * BUDGET_SPAN_S, now_us)
        if settings.breaker is None:
            self.breaker = None
        else:
            self.breaker = self.breaker or CircuitBreaker(1.0, 1, 1.0)
            self.breaker.ratio, self.breaker.calls = settings.breaker, settings.breaker_calls or 20
            self.breaker.open_s = settings.breaker_open_s or 5.0
        self.adaptive = (
            (self.adaptive or AdaptiveLimit()) if settings.concurrency == "auto" else None
        )
        self.share(*self._share, now_us)

    def share(self, mine: int, total: int, now_us: int) -> None:
        """Take the share of a worker that has `mine` of `total` shards."""
        self._share = (mine, total)
        if self.settings.rate is not None and mine:
            rate = self.settings.rate * mine / total
            burst = (self.settings.burst or max(1.0, self.settings.rate)) * mine / total
            if self.bucket is None:
                self.bucket = TokenBucket(rate, burst, now_us)
            elif (self.bucket.rate, self.bucket.burst) != (rate, max(1.0, burst)):
                self.bucket.resize(rate, burst, now_us)

    def limit(self, now_us: int) -> int | None:
        """Return how many attempts may run at once in this worker; None: no limit."""
        if self.adaptive is not None:
            return self.slow.of(self.adaptive.limit, now_us)
        if not isinstance(self.settings.concurrency, int):
            return None
        mine, total = self._share
        return self.slow.of(max(1, self.settings.concurrency * mine // total), now_us)

    def opens_at_us(self, *, retry: bool, now_us: int) -> int | None:
        """Return `now_us` if one more may start, a later time if that is known, or None: something
        else has to change."""
        if self.settings.paused:
            return None
        limit = self.limit(now_us)
        if limit is not None and self.running >= limit:
            return None
        if 0 < self.rests_until_us - now_us <= PAUSE_MAX_US:  # Not after the clock was set back.
            return self.rests_until_us
        if self.breaker is not None and not self.breaker.admits(now_us):
            return max(now_us + 1, self.breaker.until_us) if self.breaker.state == "open" else None
        if self.bucket is not None and not self.bucket.has(now_us):
            return self.bucket.next_at_us(now_us)
        if retry and self.budget is not None and not self.budget.has(now_us):
            return self.budget.next_at_us(now_us)
        return now_us

    def start(self, *, retry: bool, now_us: int) -> None:
        """Count one more start."""
        self.running += 1
        if self.bucket is not None:
            self.bucket.take()
        if self.breaker is not None:
            self.breaker.started(now_us)
        if self.budget is not None and retry:
            self.budget.take()

    def undo(self) -> None:
        """Take back a start that did not happen, or of which nothing will be heard. The token of a
        retry is not given back: the retry of a shard that was lost may have been made."""
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
            self.budget.earn(self.settings.retry_budget or 0.0)
        good = shows_health(outcome)
        if good is None:
            if self.breaker is not None:
                self.breaker.undone()
            return
        if good:
            self.good += 1
            self._streak.clear()
        else:
            self.bad += 1
            self.last_error = (outcome.error or outcome.reason or outcome.kind, now_us)
            if len(self._streak) < STREAK:
                self._streak.add(outcome.attempt.record.task_id)
        if self.adaptive is not None:
            if outcome.overloaded:
                self.adaptive.overloaded(now_us)
            elif good:
                self.adaptive.good(self.running + 1)
        task_id = outcome.attempt.record.task_id
        if self.breaker is not None and self.breaker.ended(good, now_us, task_id):
            self.slow.begin(now_us)

    @property
    def failing(self) -> bool:
        """True when it is the target that fails, and not the tasks. Without a breaker nobody looks
        (`Outages` does for handlers in this process)."""
        return self.breaker is not None and (
            self.breaker.state != "closed"
            or len(self._streak) >= STREAK
            or self.breaker.failing(STREAK, self.breaker.ratio)
        )


def shows_health(outcome: Outcome) -> bool | None:
    """Return whether an outcome shows that its executor works; None: it says nothing of it.

    A task that is refused for good was answered: the target works.
    """
    match outcome.kind:
        case "done" | "discard" | "snooze" | "dead":
            return True
        case "failed" if outcome.reason == ELSEWHERE:
            return False  # It sends its callers away, as to a sign-in or a page of its upkeep.
        case "failed" if outcome.after_us is not None and outcome.reason not in ABSENT:
            return not outcome.overloaded  # it asked for a retry: that is an answer
        case "failed":
            return not (outcome.retryable or outcome.overloaded)
        case "died":
            return False
    return None


LOOK_MIN_US = 1_000_000
"""A task that starts within this time is not parked."""
LOOK_MAX_US = 60_000_000
"""The latest look, however many wait: a limit may be lifted at any time."""
STANDS_US = 5_000_000
"""The first look at a flow that does not move."""
MEASURE_US = 200_000


class ThrottledQueue:
    """Say when the parked tasks of one flow that is held back are looked at again, in one shard.

    All of them after the same few seconds would come in vain and be parked again, each for a row
    deleted and a row written: a jam of 100,000 would cost more than the work. So they come back one
    after the other, twice as fast as the flow has moved lately. Twice, because a flow that gets no
    more than it can do would never show that it could do more.

    Times are in microseconds, by the database's clock.
    """

    def __init__(self) -> None:
        self.starts = 0
        """Starts since the last measurement; the owner counts them."""
        self.per_s: float | None = None
        """Starts per second; None: it is too early to know."""
        self._measured_at_us: int | None = None
        self._end_us = 0

    def measure(self, now_us: int) -> float | None:
        """Bring `per_s` up to date, and return it."""
        if self._measured_at_us is None or was_set_back(now_us, self._measured_at_us):
            self.starts, self._measured_at_us = 0, now_us
        elapsed_us = now_us - self._measured_at_us
        if elapsed_us >= MEASURE_US:
            found = self.starts * 1e6 / elapsed_us
            # The longer the time, the more it says.
            weight = min(1.0, elapsed_us / LOOK_MIN_US)
            old = found if self.per_s is None else self.per_s
            self.per_s = old + (found - old) * weight
            self.starts, self._measured_at_us = 0, now_us
        return self.per_s

    @property
    def keeps(self) -> int:
        """Tasks that start before the first of the parked ones is back."""
        return round((self.per_s or 0.0) * LOOK_MIN_US / 1e6)

    def over(self, now_us: int) -> bool:
        """Return whether the last parked task has been looked at."""
        return self._end_us <= now_us

    def join_us(self, now_us: int) -> int:
        """Return when to look at one more task."""
        per_s = self.per_s or 0.0
        first_us = now_us + (LOOK_MIN_US if per_s >= 1.0 else STANDS_US)
        self._end_us = max(self._end_us, first_us) + round(5e5 / max(1.0, per_s))
        if self._end_us > now_us + LOOK_MAX_US:
            self._end_us = first_us  # evenly over the whole time, round by round
        return self._end_us
