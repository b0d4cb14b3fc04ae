"""What the knobs allow now: one object per worker, asked before each start. Pure.

A task's *flow* is what it is limited with: its queue, its target, and its tenant where the queue
is fair. Tasks without any limit have no flow and cost nothing here.

**How a limit of the fleet is kept by workers that do not talk:** each takes the share of its
shards. Producers spread over the shards evenly, and a shard has one owner, so with `k` of `n`
shards it starts `rate * k / n` a second and runs `floor(concurrency * k / n)` at once, one at
least. The sum is never above the limit, if that is not below the number of workers; it is below
it by less than one per worker. While shards change hands, both may count a shard for one heartbeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from late.knobs import LOCAL, REMOTE, Knobs, effective
from late.scheduler.adaptive import Adaptive, SlowStart
from late.scheduler.breaker import Breaker
from late.scheduler.bucket import TokenBucket
from late.scheduler.entry import Entry
from late.task import BATCH_POOL, PULL_POOL, Attempt, Outcome, Record, TaskId

LOCAL_POOL = "local"
STREAK = 5
"""So many different tasks in a row failed at a target: it is the target that fails."""
STALL_US = 5_000_000
BUDGET_SPAN_S = 10.0
ABSENT = ("unavailable", "overloaded", "timeout")
"""Reasons of a failure that say that nobody answered, or that it was too much."""
PAUSED_LOOK_US = 30_000_000
"""A paused task that was parked is looked at again after this, and up to twice as long."""
_headers = msgspec.json.Decoder(dict[str, str])

Owner = tuple[str, TaskId]
"""(consumer group, task)."""


class Flow(NamedTuple):
    """What a task is limited with."""

    queue: str
    target: str
    tenant: str = ""


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
        if self.budget is not None:
            if retry:
                self.budget.take()
            else:
                self.budget.earn(self.knobs.retry_budget or 0.0)

    def undo(self) -> None:
        """It did not start after all; nothing of it was told to anyone."""
        self.running -= 1
        if self.bucket is not None:
            self.bucket.give_back()
        if self.breaker is not None:
            self.breaker.undone()

    def ended(self, outcome: Outcome, now_us: int) -> None:
        """Learn from how an attempt ended."""
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


class Limits:
    """All knobs of a worker, and what runs under them.

    Args:
        remote: names of the pools that are other services: they are protected by default.
        slots: of the worker's own pool; a tenant's share is counted from them.
    """

    def __init__(self, remote: Collection[str] = (), *, slots: int = 16) -> None:
        self._remote = frozenset(remote)
        self._slots = slots
        self._queues: dict[str, Part] = {}
        self._targets: dict[str, Part] = {
            name: Part(_default(name), 0) for name in sorted(self._remote)
        }
        self._any = False
        self._counted: dict[Owner, Flow] = {}
        self.opens_at_us: int | None = None
        """When the first of those that were refused since `begin` may start, by time alone."""
        self.started = 0
        """Starts under a limit, ever."""
        self.version = 0
        """Rises when flows may have changed."""

    def set(self, queues: Mapping[str, Knobs], targets: Mapping[str, Knobs], now_us: int) -> None:
        """The knobs as the database has them now."""
        self._any = bool(queues or targets)
        self._set(self._queues, {n: effective(k, LOCAL) for n, k in queues.items()}, now_us)
        wanted = {n: effective(targets.get(n, Knobs()), _default(n)) for n in self._remote}
        if LOCAL_POOL in targets:
            wanted[LOCAL_POOL] = effective(targets[LOCAL_POOL], LOCAL)
        self._set(self._targets, wanted, now_us)

    def _set(self, parts: dict[str, Part], wanted: Mapping[str, Knobs], now_us: int) -> None:
        for name in parts.keys() - wanted.keys():
            del parts[name]
            self.version += 1
        for name, knobs in wanted.items():
            part = parts.get(name)
            if part is None:
                parts[name] = Part(knobs, now_us)
                self.version += 1
            elif part.knobs != knobs:
                part.set(knobs, now_us)
                self.version += 1

    def begin(self, mine: int, total: int, now_us: int) -> None:
        """A new pass: this worker has `mine` of `total` shards."""
        self.opens_at_us = None
        for parts in (self._queues, self._targets):
            for part in parts.values():
                part.share(max(1, mine), max(1, mine, total), now_us)

    def recovered(self, now_us: int) -> None:
        """The worker was cut off, or has just started: begin slowly."""
        for parts in (self._queues, self._targets):
            for part in parts.values():
                part.slow.begin(now_us)

    # ------------------------------------------------------------------ of one task

    @property
    def any(self) -> bool:
        """Whether there is any knob of a queue, or of a target that is set by hand."""
        return self._any

    def timed(self, attempt: Attempt) -> Attempt:
        """`attempt` with the time-out that the knobs give it: the shortest."""
        parts = self._parts(Flow(attempt.record.queue, attempt.target))
        found = [part.knobs.timeout_s for part in parts if part.knobs.timeout_s is not None]
        if not found:
            return attempt
        return msgspec.structs.replace(attempt, timeout_us=round(min(found) * 1_000_000))

    def expires_at_us(self, entry: Entry, asked_us: int | None) -> int | None:
        """When `entry` must no longer start, by its queue's knob and as its producer `asked`."""
        knobs = self.knobs(entry.record.queue)
        if knobs is None or knobs.expires_s is None:
            return asked_us
        ends_us = entry.record.created_at_us + round(knobs.expires_s * 1_000_000)
        return ends_us if asked_us is None else min(asked_us, ends_us)

    def spread_us(self, entry: Entry) -> int:
        """How much later than it is due `entry` starts, so that a crowd becomes a stream: by its
        id, so that it is the same after a takeover."""
        knobs = self.knobs(entry.record.queue)
        if knobs is None or not knobs.spread_s:
            return 0
        return int(entry.record.task_id[-8:], 16) * round(knobs.spread_s * 1_000_000) >> 32

    def flow(self, entry: Entry) -> Flow | None:
        """What `entry` is limited with, or None."""
        if not (self._queues or self._targets):
            return None
        queue, target = entry.record.queue, entry.policy.target
        part = self._queues.get(queue)
        if part is None and target not in self._targets:
            return None
        tenant = ""
        if part is not None and part.knobs.fair_key is not None:
            tenant = _tenant(entry.record, part.knobs.fair_key)
        return Flow(queue, target, tenant)

    def admits(self, flow: Flow, *, retry: bool, now_us: int) -> bool:
        """Whether a task of `flow` may start now."""
        opens_us: int | None = now_us
        for part in self._parts(flow):
            at_us = part.opens_at_us(retry=retry, now_us=now_us)
            opens_us = None if at_us is None or opens_us is None else max(opens_us, at_us)
        if opens_us == now_us:
            return not self._full(flow)
        if opens_us is not None:
            self.opens_at_us = min(self.opens_at_us or opens_us, opens_us)
        return False

    def _full(self, flow: Flow) -> bool:
        """Whether the tenant has its share of the slots."""
        part = self._queues.get(flow.queue)
        if part is None or part.knobs.fair_key is None:
            return False
        limits = [p.limit(0) for p in self._parts(flow)]
        slots = min([self._slots, *(limit for limit in limits if limit is not None)])
        return part.tenants[flow.tenant] >= max(1, int(slots * (part.knobs.fair_share or 0.25)))

    def start(self, owner: Owner, flow: Flow, *, retry: bool, now_us: int) -> None:
        """It starts, after `admits`."""
        self._counted[owner] = flow
        self.started += 1
        for part in self._parts(flow):
            part.start(retry=retry, now_us=now_us)
            part.tenants[flow.tenant] += 1

    def undo(self, owner: Owner) -> None:
        """It did not start after all, or its shard is lost: nothing will be heard of it."""
        flow = self._counted.pop(owner, None)
        if flow is not None:
            for part in self._parts(flow):
                part.undo()
                _less(part.tenants, flow.tenant)

    def ended(self, outcomes: Sequence[Outcome], now_us: int) -> None:
        """Learn from attempts that ended. Those that were not counted are fine."""
        if not self._counted:
            return
        for outcome in outcomes:
            owner = (outcome.attempt.group, outcome.attempt.record.task_id)
            flow = self._counted.pop(owner, None)
            for part in () if flow is None else self._parts(flow):
                assert flow is not None
                part.running -= 1
                _less(part.tenants, flow.tenant)
                part.ended(outcome, now_us)

    def stalled(self, entry: Entry) -> bool:
        """Whether a failure of `entry` says nothing of it, because its whole target fails."""
        parts = self._parts(Flow(entry.record.queue, entry.policy.target))
        return any(part.knobs.smart_retry and part.failing for part in parts)

    def knobs(self, queue: str) -> Knobs | None:
        """Those of a queue that has any."""
        part = self._queues.get(queue)
        return None if part is None else part.knobs

    def look_again_us(self, flow: Flow, ahead: int, now_us: int) -> int:
        """When a task with `ahead` others before it may start, as far as one can say: what is
        parked until then leaves room for others, and is spread so that not all come back at once.
        """
        at_us = now_us + STALL_US + (ahead * 7_919_000) % STALL_US
        for part in self._parts(flow):
            if part.knobs.paused:
                at_us = max(at_us, now_us + PAUSED_LOOK_US + (ahead * 7_919_000) % PAUSED_LOOK_US)
            if part.bucket is not None:
                at_us = max(at_us, part.bucket.next_at_us(now_us, ahead))
            if part.breaker is not None and part.breaker.state == "open":
                at_us = max(at_us, part.breaker.until_us)
        return at_us

    def _parts(self, flow: Flow) -> list[Part]:
        found = (self._queues.get(flow.queue), self._targets.get(flow.target))
        return [part for part in found if part is not None]


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


def _default(pool: str) -> Knobs:
    """Consumers that fetch their tasks say themselves how many they want: nothing protects them
    from more. Batch handlers run in this process."""
    return LOCAL if pool.startswith((PULL_POOL, BATCH_POOL)) else REMOTE


def _tenant(record: Record, key: str) -> str:
    if record.headers is None:
        return ""
    try:
        return _headers.decode(record.headers).get(key, "")
    except msgspec.DecodeError:
        return ""


def _less(tenants: Counter[str], tenant: str) -> None:
    tenants[tenant] -= 1
    if tenants[tenant] <= 0:
        del tenants[tenant]
