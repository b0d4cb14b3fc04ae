"""Defects above the stores: in a core, in what the loops trust, in what is counted."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
from sqlalchemy import true

from late.clock import DatabaseClock
from late.control import offers
from late.dispatcher.local.chunks import Chunks
from late.dispatcher.local.timeouts import TimeoutWatcher
from late.dispatcher.offers.declared import DeclaredHandlers
from late.model.task import Cursor
from late.scheduler.core import reads, starts, transitions
from late.scheduler.core.crash_suspects import CrashSuspects
from late.scheduler.core.ordering_keys import OrderingKeys
from late.scheduler.core.settlements.pending_settlement import PendingSettlement
from late.scheduler.core.shard_core import ShardCore
from late.scheduler.core.state import CoreState
from late.scheduler.core.window import Window
from late.scheduler.limits.limiter import Limiter
from late.scheduler.limits.limits import Limits
from late.scheduler.limits.outages import Ends, Outages
from late.scheduler.limits.ready_queues import ReadyQueues
from late.scheduler.scheduler import Scheduler
from late.scheduler.schedules import ShardSchedules
from late.scheduler.usage import UsageCounters
from late.store.common.fleet_view import FleetView
from late.store.postgres import cursor as postgres_cursor
from late.tailer import ownership
from late.tailer.heartbeat import Heartbeat
from late.tailer.lease_keeper import LeaseKeeper
from late.tailer.tailer import Tailer
from tests.simulator import logs


def replace(owner: Any, name: str, new: Any) -> Any:
    """Set an attribute and return what it was.

    Raises:
        TypeError: the new function cannot be called as the old one is. A test would find that, and
            not the defect.
    """
    old = getattr(owner, name)
    if inspect.isfunction(old) and inspect.isfunction(new):
        asked = inspect.signature(old).parameters.values()
        named = {each.name: None for each in asked if each.kind is each.KEYWORD_ONLY}
        others = [each.name for each in asked if each.name not in named]
        inspect.signature(new).bind(*others, **named)
    setattr(owner, name, new)
    return old


def asleep_at_once() -> None:
    """A tail sleeps as soon as it has announced that, without one more look."""

    async def announce(self: Any, wake_ups: Any) -> None:
        due_s = self._due_s
        await old(self, wake_ups)
        self._due_s = due_s

    old = replace(Tailer, "_announce", announce)


def scalar_cursor() -> None:
    """Positions below the highest one that was seen count as read."""
    replace(postgres_cursor.Snapshot, "sees", lambda self, xid: xid < self.xmax)


def placement_by_the_own_version() -> None:
    """A worker places shards by the highest placement that it knows, whatever others announce."""

    def plan(me: str, membership: Any, mine: Any, **how: Any) -> Any:
        own = next((w.version for w in membership.workers if w.worker_id == me), "")
        workers = tuple(msgspec.structs.replace(w, version=own) for w in membership.workers)
        return old(me, msgspec.structs.replace(membership, workers=workers), mine, **how)

    old = replace(ownership, "plan", plan)


def ends_untold() -> None:
    """In a large fleet a neighbour that sees the end of a lease keeps it for itself."""
    replace(FleetView, "dead", lambda self, now_us, ends: False)


def scalar_checkpoint() -> None:
    """The checkpoint is a cursor alone: what started and has not ended is not in it."""
    replace(Window, "open", lambda self, **_: ())


def settled_before_run() -> None:
    """A task counts as settled once it was handed to a slot."""

    def grant(core: Any, rooms: Any, background: Any, care: str, effects: list[Any]) -> None:
        known = len(effects)
        old(core, rooms, background, care, effects)
        for effect in effects[known:]:
            for attempt in effect.attempts:
                core.window.forget_all([attempt.record.task_id])

    old = replace(starts, "grant", grant)


def stuck_runs_are_settled() -> None:
    """A run that cannot be ended has failed at its time-out, and its task is free."""
    old = replace(
        TimeoutWatcher,
        "_give_up",
        lambda self, slot, *, settles=True: old(self, slot, settles=True),
    )


def given_back_and_kept() -> None:
    """A thread keeps the attempts that were taken from it."""

    def put_back(self: Any, chunk: Any) -> bool:
        self._waiting.extendleft(reversed(chunk.waiting))
        return bool(chunk.waiting)

    replace(Chunks, "_put_back", put_back)


def a_cursor_that_is_never_due() -> None:
    """An empty page moves the cursor, and not the time at which it is due in the journal."""

    def skip_page(self: Any, page: Any) -> bool:
        until_us = self.state.quiet_until_us
        skipped = old(self, page)
        if skipped:
            self.state.quiet_until_us = until_us
        return skipped

    old = replace(ShardCore, "skip_page", skip_page)


def retries_without_a_budget() -> None:
    """A retry starts whenever its time has come."""

    def opens(self: Any, *, retry: bool, now_us: int) -> int | None:
        return old(self, retry=False, now_us=now_us)

    old = replace(Limiter, "opens_at_us", opens)


def a_knob_that_blocks_others() -> None:
    """What is limited stands in the same line as everything else."""

    def following(self: Any, put_off: Any = None) -> Any:
        waiting = [entry for queue in self._flows.values() for entry in queue]
        first = min(waiting, key=lambda entry: entry.order, default=None)
        if first is not None and any(first.order < other.order for other in self.main):
            return None
        return old(self, put_off)

    replace(ReadyQueues, "unlimited", lambda self: [])
    old = replace(ReadyQueues, "next", following)


def parked_for_a_knob_without_a_mark() -> None:
    """The due time of a parked task is taken for the time at which it last may have run."""

    def needs_mark(self: Any, entry: Any) -> bool:
        entry.postponed = False
        return old(self, entry)

    old = replace(CrashSuspects, "needs_mark", needs_mark)


def last_rows_timestamp() -> None:
    """The cursor is the timestamp of the last row instead of the one that was read at."""

    def read(self: Any, shard_id: int, cursor: Cursor, limit: int) -> logs.Read:
        found: logs.Read = old(self, shard_id, cursor, limit)
        if not found.records:
            return found
        return msgspec.structs.replace(found, cursor=Cursor(str(found.records[-1].position)))

    old = replace(logs.SpannerLog, "read", read)


def memory_outlives_the_lease() -> None:
    """A shard that is acquired anew goes on with what is in memory, under the new epoch."""

    def acquired(self: Any, leases: Any) -> None:
        for lease in leases:
            core = self.cores.get((lease.group, lease.shard_id)) or kept.get(
                (id(self), lease.group, lease.shard_id)
            )
            if core is None:
                old(self, [lease])
                continue
            core.state.lease = core.state.pending._lease = lease
            core.state.pending.seq = lease.seq
            core.state.pending.out = None
            self.cores[lease.group, lease.shard_id] = core
        self._work.set()

    def lost(self: Any, shard: Any) -> None:
        if shard in self.cores:
            kept[id(self), *shard] = self.cores[shard]
        forget(self, shard)

    kept: dict[Any, Any] = {}
    old = replace(Scheduler, "acquired", acquired)
    forget = replace(Scheduler, "lost", lost)


def timer_deleted_when_read() -> None:
    """A parked task's row goes with the next settlement once it is in memory."""

    def take(core: Any, row: Any) -> Any:
        entry = old(core, row)
        core.pending._unpark(entry)
        return entry

    old = replace(reads, "take_parked", take)


def heartbeat_in_the_works_loop() -> None:
    """Renewals share the event loop with the work."""

    def start(self: Any) -> None:
        self._callers_loop = self._loop = asyncio.get_running_loop()
        self._living = self._loop.create_task(self._live())

    replace(Heartbeat, "start", start)
    replace(Heartbeat, "stop", lambda self: self._living.cancel())


def trust_without_end() -> None:
    """Whoever was trusted once is trusted at every later start."""
    replace(LeaseKeeper, "trusted", property(lambda self: True))


def trust_from_the_reply() -> None:
    """Trust counts from when the answer to a heartbeat came, instead of when it was asked."""

    def observe(self: Any, membership: Any, trusted_until: float, sent_s: float) -> None:
        beat_s = self._monotonic() - trusted_until
        old(self, membership, trusted_until + max(0.0, beat_s) + TTL_S, sent_s)

    old = replace(LeaseKeeper, "observe", observe)


TTL_S = 1.0


def clock_ahead() -> None:
    """The estimate of the database's clock is 50 ms ahead, instead of a lower bound."""
    old = replace(DatabaseClock, "now_us", lambda self: old(self) + 50_000)
    due = replace(DatabaseClock, "confirmed_us", lambda self: due(self) + 50_000)


def usage_twice() -> None:
    """A settlement that carries usage leaves it for the next one, too."""

    def take(self: Any) -> Any:
        kept = copy.deepcopy(self._rows)
        rows = old(self)
        self._rows = kept if not getattr(self, "_again", False) else {}
        self._again = bool(self._rows)
        return rows

    old = replace(UsageCounters, "take", take)


def deferring_burns_an_attempt() -> None:
    """A snooze, or a stop of the worker, counts as an attempt."""

    def decide(entry: Any, outcome: Any, *args: Any, **kwargs: Any) -> Any:
        found = old(entry, outcome, *args, **kwargs)
        if outcome.kind in ("snooze", "interrupted"):
            return msgspec.structs.replace(found, attempts=found.attempts + 1)
        return found

    old = replace(transitions, "decide_outcome", decide)


def open_set_forgotten() -> None:
    """A new owner tails from the checkpoint's cursor and does not fetch what was open."""

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        old(self, *args, **kwargs)
        self.recovered = True

    old = replace(CoreState, "__init__", begin)


def unique_key_freed_by_a_retry() -> None:
    """A unique key is free once its task has failed for the first time."""

    def park(self: Any, entry: Any, row: Any, now_us: int, *, ran: bool) -> None:
        old(self, entry, row, now_us, ran=ran)
        if entry.options.unique_key is not None:
            self._released_keys.append((entry.options.unique_key, entry.record.task_id))

    old = replace(PendingSettlement, "park", park)


def retry_lets_its_key_go() -> None:
    """A task that waits for its retry does not hold its ordering key."""

    def park(core: Any, entry: Any, due_at_us: int, reason: Any, *, holds: bool = False) -> None:
        old(core, entry, due_at_us, reason, holds=False)
        if reason in ("retry", "snooze"):
            transitions.release_key(core, entry)

    old = replace(transitions, "park", park)
    starts.park = park


def key_before_the_page_is_read() -> None:
    """A task takes its key whatever may be earlier and is not read yet."""
    old = replace(OrderingKeys, "_may_go", lambda self, name, key: go(self, name, key))

    def go(self: Any, name: str, key: Any) -> bool:
        key.below = 0
        return cast(bool, old(self, name, key))


def overlap_forgotten() -> None:
    """A schedule that must not overlap does not remember the task of its last tick."""

    def replaced(self: Any, schedules: Sequence[Any]) -> None:
        old(self, [msgspec.structs.replace(s, open_task_id=None) for s in schedules])

    old = replace(ShardSchedules, "replace", replaced)


def awake_while_a_tick_waits() -> None:
    """A tick that is due wakes the scheduler until its settlement is in the journal."""

    def wake(self: Any) -> int | None:
        times = [t for t in (self.timers.next_due_us(), self.schedules.next_due_us) if t]
        return min(times, default=None)

    replace(CoreState, "wake_at_us", wake)


def unknown_counts_as_refused() -> None:
    """A settlement whose outcome is unknown is given up, and its shard's memory goes on."""

    def settled(self: Any, settlement: Any, result: Any) -> None:
        old(self, settlement, type(result).SETTLED)

    old = replace(Scheduler, "settled", settled)


def unmarked() -> None:
    """Nothing is marked after a death: whoever dies again leaves no suspect."""
    replace(CrashSuspects, "needs_mark", lambda self, entry: False)


def trial_in_a_crowd() -> None:
    """Suspects run beside whatever else is marked."""
    replace(CrashSuspects, "restricted", lambda self, care, now_us: "trial")
    replace(
        CrashSuspects,
        "next_trial",
        lambda self, care: [self.queue.popleft() for _ in range(len(self.queue))],
    )


def outage_of_attempts() -> None:
    """A name is in an outage after five failed attempts, also of one task."""
    old = replace(
        Ends, "add_failed", lambda self, _, *how, **more: old(self, object(), *how, **more)
    )


def outage_herd() -> None:
    """All tasks of a name that is in an outage start as ever."""
    replace(Limits, "_outage_of", lambda self, group, entry: None)


def outages_alone() -> None:
    """A worker takes in nothing of what fails in the others."""
    old = replace(Outages, "exchange", lambda self, told, now_us: old(self, (), now_us))


def order_of_the_clock() -> None:
    """A task waits until the clock has come to its insert, which a step back puts off."""
    vars(transitions)["min"] = lambda due_us, now_us: due_us

    def admit(core: Any, entries: Iterable[Any]) -> None:
        for entry in entries:  # the short way starts a task whatever its time is
            transitions.admit_one(core, entry, entry.inspect())

    vars(reads)["admit"] = admit


def offers_of_former_owners() -> None:
    """An offer may be taken whoever holds the shard by now."""
    replace(offers, "_held", true)


def unknown_workers_handle_nothing() -> None:
    """A worker of an older version, or one that was not read yet, is left out of account."""
    old = replace(
        DeclaredHandlers,
        "nobody",
        lambda self, others, *task: old(self, others & self._names.keys(), *task),
    )


def trust_from_the_first_beat() -> None:
    """The first heartbeat after a gap is trusted, whatever a peer does at that moment."""

    def observe(self: Any, membership: Any, trusted_until: float, sent_s: float) -> None:
        self._back_until = float("inf")
        old(self, membership, trusted_until, sent_s)

    old = replace(LeaseKeeper, "observe", observe)


def company_for_ever() -> None:
    """The settler hears of what is urgent, and of nothing else."""

    def tell(self: Any, effects: list[Any]) -> None:
        if self.state.awaited:
            old(self, effects)

    old = replace(ShardCore, "_tell", tell)


def callers_wait() -> None:
    """Nothing is urgent because somebody waits for it."""
    nobody = property(lambda self: False, lambda self, awaited: None)
    PendingSettlement.awaited = nobody  # type: ignore[assignment, method-assign]


def repeats_counted_twice() -> None:
    """An attempt whose worker is gone counts as two."""

    def add_lost(self: Any, record: Any, target: str) -> None:
        old(self, record, target)
        old(self, record, target)

    old = replace(UsageCounters, "add_lost", add_lost)
