"""Decide what the settings allow now: one object per worker, asked before each start. Pure.

A task's *flow* is what it is limited with: its queue, its target, and its tenant where the queue
is fair. Tasks without any limit have no flow and cost nothing here.

**How a limit of the fleet is kept by workers that do not talk:** each takes the share of its
shards. Producers spread over the shards evenly, and a shard has one owner, so with `k` of `n`
shards it starts `rate * k / n` a second and runs `floor(concurrency * k / n)` at once, one at
least. The shards are those of the groups that read the queue (`fleet_share.py`), and of all groups
for a target. The sum is never above the limit, if that is not below the number of workers; it is
below it by less than one per worker. While shards change hands, both may count a shard for one
heartbeat.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from late.model.group_settings import GroupSettings
from late.model.offers import ELSEWHERE
from late.model.queue_settings import LOCAL, REMOTE, QueueSettings, binds, effective
from late.model.task import (
    BATCH_POOL,
    LIMIT_KEY,
    PULL_POOL,
    TRANSACTION_POOL,
    Attempt,
    Outcome,
    Record,
    TaskId,
)
from late.scheduler.limits.fleet_share import FleetShare
from late.scheduler.limits.key_limits import limits_keys
from late.scheduler.limits.limiter import Limiter, shows_health
from late.scheduler.limits.outages import Name, Outages
from late.scheduler.task_state import Entry, first_due_us

LOCAL_POOL = "local"
PAUSED_LOOK_US = 30_000_000
"""A paused task that was parked is looked at again after this, and up to twice as long."""
_headers = msgspec.json.Decoder(dict[str, str])

Limited = TypeVar("Limited", str, Name)
"""A limiter has the name of a queue or target, or the name of tasks that are in an outage."""
Owner = tuple[str, TaskId]
"""(consumer group, task)."""


class Flow(NamedTuple):
    """The queue, target, tenant and limit key by which a task is limited."""

    queue: str
    target: str
    tenant: str = ""
    out: Name | None = None
    """The name of its tasks, while that is in an outage."""
    key: str = ""
    """The limit key, where the queue has a limit per key."""


PROBES = QueueSettings(concurrency=1)
"""The settings of a name that is in an outage: one task at a time tries whether it is over."""


class Limits:
    """Hold all settings of a worker, and what runs under them.

    Args:
        remote: names of the pools that are other services: they are protected by default.
        slots: of the worker's own pool; a tenant's share is counted from them.
    """

    def __init__(self, remote: Collection[str] = (), *, slots: int = 16) -> None:
        self._remote = frozenset(remote)
        self._slots = slots
        self._queues: dict[str, Limiter] = {}
        self._targets: dict[str, Limiter] = {
            name: Limiter(_default(name), 0) for name in sorted(self._remote)
        }
        self._share = FleetShare()
        self.shares = bool(self._targets)
        """True while a limit is shared among workers, so that `begin` needs the shards."""
        self.outages = Outages()
        """The outages of what handlers in this process need. A protected target has a circuit
        breaker."""
        self._probes: dict[Name, Limiter] = {}
        """The limits of the names that are in an outage here; not shared with other workers."""
        self.any = False
        """True when a queue has a setting, one of a target is set by hand, or a group has a highest
        age."""
        self.max_ages_us: dict[str, int] = {}
        """By group: the age from which a task does not begin any more."""
        self._waiting: dict[str, Counter[str]] = defaultdict(Counter)
        """By queue: the tenants whose tasks are ready in a shard of this worker."""
        self._counted: dict[Owner, tuple[Flow, bool]] = {}
        """The flow of each task that runs, and whether it is a retry."""
        self.opens_at_us: int | None = None
        """The time at which the first of those that were refused since `begin` may start, by time
        alone."""
        self.started = 0
        """Number of starts under a limit so far."""
        self.version = 0
        """Rises when flows may have changed."""

    def set_groups(
        self, groups: Mapping[str, GroupSettings], reads: Mapping[str, Collection[str]] = {}
    ) -> None:
        """Take in the settings of groups as the database has them now; `set` is to follow.

        Args:
            reads: the queues of each group that does not read all.
        """
        self._share.reads = reads
        self.max_ages_us = {
            name: round(each.max_age_s * 1_000_000)
            for name, each in groups.items()
            if each.max_age_s is not None
        }

    def set(
        self, queues: Mapping[str, QueueSettings], targets: Mapping[str, QueueSettings], now_us: int
    ) -> None:
        """Take in the settings as the database has them now."""
        # A queue with nothing but an owner is not limited, so its tasks take the short way.
        queues = {name: each for name, each in queues.items() if binds(each)}
        self.any = bool(queues or targets or self.max_ages_us)
        self._set(self._queues, {n: effective(k, LOCAL) for n, k in queues.items()}, now_us)
        wanted = {n: effective(targets.get(n, QueueSettings()), _default(n)) for n in self._remote}
        if LOCAL_POOL in targets:
            wanted[LOCAL_POOL] = effective(targets[LOCAL_POOL], LOCAL)
        self._set(self._targets, wanted, now_us)
        self.shares = bool(self._queues or self._targets)

    def _set(
        self, limiters: dict[Limited, Limiter], wanted: Mapping[Limited, QueueSettings], now_us: int
    ) -> None:
        for name in limiters.keys() - wanted.keys():
            del limiters[name]
            self.version += 1
        for name, settings in wanted.items():
            limiter = limiters.get(name)
            if limiter is None:
                limiters[name] = limiter = Limiter(settings, now_us)
                self._adopt(limiter)
                self.version += 1
            elif limiter.settings != settings:
                limiter.set(settings, now_us)
                self.version += 1

    def _adopt(self, limiter: Limiter) -> None:
        """Count what runs already: as it ends, it is taken off every limiter that it has then."""
        for flow, _ in self._counted.values():
            if limiter in self._limiters_of(flow):
                limiter.running += 1
                limiter.tenants[flow.tenant] += 1

    def begin(self, mine: Mapping[str, int], total: Mapping[str, int], now_us: int) -> None:
        """Begin a pass of a worker that has `mine` of the `total` shards, by group; only with
        `shares` they are looked at."""
        self.opens_at_us = None
        if self.shares:
            self._share.begin(mine, total)
            for name, limiter in self._queues.items():
                _take(limiter, self._share.of(name), now_us)
            for limiter in self._targets.values():
                _take(limiter, self._share.whole, now_us)
        if self.outages.out != self._probes.keys():
            known = {name: limiter.settings for name, limiter in self._probes.items()}
            wanted = {name: known.get(name, PROBES) for name in self.outages.out}
            self._set(self._probes, wanted, now_us)

    def recovered(self, now_us: int) -> None:
        """Begin slowly: the worker was cut off, or has just started."""
        for limiters in (self._queues, self._targets):
            for limiter in limiters.values():
                limiter.slow.begin(now_us)

    # ------------------------------------------------------------------ of one task

    @property
    def restricts(self) -> bool:
        """True when a task may have a flow."""
        return bool(self._queues or self._targets or self._probes)

    def timed(self, attempt: Attempt) -> Attempt:
        """Return `attempt` with the shortest time-out that the settings give it."""
        limiters = self._limiters_of(Flow(attempt.record.queue, attempt.target))
        found = [
            limiter.settings.timeout_s
            for limiter in limiters
            if limiter.settings.timeout_s is not None
        ]
        if not found:
            return attempt
        return msgspec.structs.replace(attempt, timeout_us=round(min(found) * 1_000_000))

    def expires_at_us(self, entry: Entry, asked_us: int | None) -> int | None:
        """Return when `entry` must no longer start, by its queue's setting and its producer."""
        settings = self.settings(entry.record.queue)
        if settings is None or settings.expires_s is None:
            return asked_us
        ends_us = entry.record.created_at_us + round(settings.expires_s * 1_000_000)
        return ends_us if asked_us is None else min(asked_us, ends_us)

    def too_old_at_us(self, group: str, entry: Entry) -> int | None:
        """Return when `entry` is too old to begin in its group; None: never.

        The age counts from the insert, or from the time that the producer asked for. What has begun
        goes on with its retries.
        """
        max_age_us = self.max_ages_us.get(group)
        if max_age_us is None or entry.attempts or entry.deaths:
            return None
        return first_due_us(entry.record, entry.options) + max_age_us

    def spread_us(self, entry: Entry) -> int:
        """Return how much later than it is due `entry` starts, so that a crowd becomes a stream.

        It follows from the id, so that it is the same after a takeover.
        """
        settings = self.settings(entry.record.queue)
        if settings is None or not settings.spread_s:
            return 0
        return int(entry.record.task_id[-8:], 16) * round(settings.spread_s * 1_000_000) >> 32

    def flow(self, group: str, entry: Entry) -> Flow | None:
        """Return the flow of `entry`, or None: it has no limit."""
        if not self.restricts:
            return None
        queue, target = entry.record.queue, entry.policy.target
        out = self._outage_of(group, entry) if self._probes else None
        if out is None and queue not in self._queues and target not in self._targets:
            return None
        key = self._limit_key(entry.record)
        return Flow(queue, target, self.tenant(entry.record) or "", out, key)

    def _outage_of(self, group: str, entry: Entry) -> Name | None:
        """Return the name of the task, if it is in an outage that says something of this task."""
        name = Name(group, entry.record.queue, entry.record.name)
        judged = name in self._probes and self._is_own(entry.policy.target)
        return name if judged and self._retries(Flow(name.queue, entry.policy.target)) else None

    def _is_own(self, target: str) -> bool:
        """Return whether handlers of `target` are judged by their names: no breaker judges it."""
        return target not in self._remote or _default(target) is LOCAL

    def _retries(self, flow: Flow) -> bool:
        """Return whether no setting turns the smart retry off."""
        return all(each.settings.smart_retry is not False for each in self._limiters_of(flow))

    def tenant(self, record: Record) -> str | None:
        """Return the tenant of a task, by the fair key of its queue; None: the queue has none."""
        limiter = self._queues.get(record.queue)
        if limiter is None or limiter.settings.fair_key is None:
            return None
        return _header(record, limiter.settings.fair_key)

    def _limit_key(self, record: Record) -> str:
        """Return the limit key of a task; empty: it has none, or its queue no limit per key."""
        limiter = self._queues.get(record.queue)
        if limiter is None or not limits_keys(limiter.settings):
            return ""
        return _header(record, LIMIT_KEY)

    def admits(self, flow: Flow, *, retry: bool, now_us: int) -> bool:
        """Return whether a task of `flow` may start now."""
        return self.opens(flow, retry=retry, now_us=now_us) and not self.is_full(flow)

    def opens(self, flow: Flow, *, retry: bool = False, now_us: int) -> bool:
        """Return whether a task of `flow` may start now, whatever its tenant has."""
        opens_us: int | None = now_us
        for limiter in self._limiters_of(flow):
            at_us = limiter.opens_at_us(retry=retry, now_us=now_us)
            opens_us = None if at_us is None or opens_us is None else max(opens_us, at_us)
        return self.notes_opening(opens_us, now_us)

    def notes_opening(self, opens_us: int | None, now_us: int) -> bool:
        """Return whether `opens_us` is now; a later time is one to come again."""
        if opens_us is not None and opens_us != now_us:
            self.opens_at_us = min(self.opens_at_us or opens_us, opens_us)
        return opens_us == now_us

    def wait(self, flow: Flow, count: int) -> None:
        """Note that `count` more tasks of `flow` are ready and not started; negative: fewer."""
        waiting = self._waiting[flow.queue]
        waiting[flow.tenant] += count
        if waiting[flow.tenant] <= 0:
            del waiting[flow.tenant]

    def is_full(self, flow: Flow) -> bool:
        """Return whether the tenant has its share of the slots, and another one that has less than
        that waits. What nobody else can use is anybody's: a lone tenant has all slots."""
        limiter = self._queues.get(flow.queue)
        if limiter is None or limiter.settings.fair_key is None:
            return False
        limits = [p.limit(0) for p in self._limiters_of(flow)]
        slots = min([self._slots, *(limit for limit in limits if limit is not None)])
        share, has = max(1, int(slots * (limiter.settings.fair_share or 0.25))), limiter.tenants
        if has[flow.tenant] < share:
            return False
        # No more tenants than slots have their share, so one that has less is found soon.
        waiting = self._waiting[flow.queue]
        return any(other != flow.tenant and has[other] < share for other in waiting)

    def start(self, owner: Owner, flow: Flow, *, retry: bool, now_us: int) -> None:
        """Count a start, after `admits`."""
        self._counted[owner] = flow, retry
        self.started += 1
        for limiter in self._limiters_of(flow):
            limiter.start(retry=retry, now_us=now_us)
            limiter.tenants[flow.tenant] += 1

    def undo(self, owner: Owner) -> None:
        """Take back a start: it did not happen, or its shard is lost."""
        counted = self._counted.pop(owner, None)
        if counted is not None:
            flow, _ = counted
            for limiter in self._limiters_of(flow):
                limiter.undo()
                _less(limiter.tenants, flow.tenant)

    def ended(self, outcomes: Sequence[Outcome], now_us: int) -> None:
        """Learn from attempts that ended. It ignores those that were not counted."""
        if not self._counted:
            return
        for outcome in outcomes:
            owner = (outcome.attempt.group, outcome.attempt.record.task_id)
            counted = self._counted.pop(owner, None)
            if counted is None:
                continue
            flow, retry = counted
            for limiter in self._limiters_of(flow):
                _less(limiter.tenants, flow.tenant)
                limiter.ended(outcome, retry=retry, now_us=now_us)
            if flow.out is not None and flow.out in self._probes:
                self._probed(flow.out, outcome, now_us)

    def _probed(self, name: Name, outcome: Outcome, now_us: int) -> None:
        """Let twice as many try it after each that worked: a handler may take minutes. After one
        that failed nothing of the name starts for a while: it may have taken a millisecond."""
        limiter = self._probes[name]
        running = limiter.limit(now_us) or 1
        if outcome.kind == "done":
            limiter.set(QueueSettings(concurrency=min(2 * running, self._slots)), now_us)
            limiter.rests_until_us = 0
        elif shows_health(outcome) is False:
            limiter.set(PROBES, now_us)
            limiter.rests_until_us = now_us + self.outages.pause_us(name, now_us)

    def stalled(self, group: str, entry: Entry, outcome: Outcome, now_us: int) -> bool:
        """Learn from how an attempt of `entry` ended; return whether it failed in a way that says
        nothing of it: its whole target fails, or what the handlers of its name need is away.

        A task that is never to be repeated is not repeated for an outage either.
        """
        if outcome.kind != "failed":
            return False
        target, out = entry.policy.target, False
        if self._is_own(target) and shows_health(outcome) is False:
            # An error of this very attempt, which was made again, is one of an outage.
            last = entry.errors[-1].attempt if entry.errors else outcome.attempt.number
            counts = last == outcome.attempt.number
            out = self.outages.failed(
                group, entry.record, now_us, error=outcome.error or "", counts=counts
            )
            out = out and entry.policy.max_attempts > 1
        flow = Flow(entry.record.queue, target)
        if not self._retries(flow):
            return False
        return out or any(limiter.failing for limiter in self._limiters_of(flow))

    def settings(self, queue: str) -> QueueSettings | None:
        """Return the settings of a queue that has any."""
        limiter = self._queues.get(queue)
        return None if limiter is None else limiter.settings

    def look_again_us(self, flow: Flow, ahead: int, now_us: int) -> int:
        """Return when a task with `ahead` others before it may start, as far as the settings say.

        A flow that moves has a time of its own (`ThrottledQueue`). Spread, so that not all come
        back at once.
        """
        at_us = now_us
        for limiter in self._limiters_of(flow):
            if limiter.settings.paused:
                at_us = max(at_us, now_us + PAUSED_LOOK_US + (ahead * 7_919_000) % PAUSED_LOOK_US)
            if limiter.bucket is not None:
                at_us = max(at_us, limiter.bucket.next_at_us(now_us, ahead))
            if limiter.breaker is not None and limiter.breaker.state == "open":
                at_us = max(at_us, limiter.breaker.until_us)
        return at_us

    def limiters(self) -> list[tuple[str, str, Limiter]]:
        """Return (`queue` or `target`, its name, its limiter) of all, for metrics."""
        queues = [("queue", name, limiter) for name, limiter in self._queues.items()]
        return queues + [("target", name, limiter) for name, limiter in self._targets.items()]

    def _limiters_of(self, flow: Flow) -> list[Limiter]:
        found = [self._queues.get(flow.queue), self._targets.get(flow.target)]
        if flow.out is not None:
            found.append(self._probes.get(flow.out))
        return [limiter for limiter in found if limiter is not None]


def _default(pool: str) -> QueueSettings:
    """Return the settings of a pool that has none by hand.

    Consumers that fetch their tasks say themselves how many they want, workers that take offers
    have slots for them, and handlers with a pool of their own run in this process: none needs
    protection.
    """
    own = (PULL_POOL, BATCH_POOL, TRANSACTION_POOL, ELSEWHERE)
    return LOCAL if pool.startswith(own) else REMOTE


def _header(record: Record, key: str) -> str:
    if record.headers is None:
        return ""
    try:
        return _headers.decode(record.headers).get(key, "")
    except msgspec.DecodeError:
        return ""


def _take(limiter: Limiter, share: tuple[int, int], now_us: int) -> None:
    mine, total = share
    limiter.share(max(1, mine), max(1, mine, total), now_us)


def _less(tenants: Counter[str], tenant: str) -> None:
    tenants[tenant] -= 1
    if tenants[tenant] <= 0:
        del tenants[tenant]
