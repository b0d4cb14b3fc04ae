"""The loop: carries events into the cores and their effects out, and decides nothing.

One instance per worker, on its event loop. It is called by the tailer (pages), the dispatcher
(outcomes), the settler (what to write, what became of it) and the keeper (shards won and lost).
Those are handed in as plain callables: components never import each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from late import events
from late.errors import StoreError
from late.model.lanes import Gate, Layout
from late.model.queue_settings import QueueSettings
from late.model.task import PULL_POOL, Attempt, Cursor, Outcome, Policy, Schedule, ShardId
from late.observability import repeats
from late.scheduler import settlement_events as report
from late.scheduler.core.shard_core import ShardCore
from late.scheduler.core.window import NONE
from late.scheduler.events_effects import (
    Care,
    Dispatch,
    Event,
    Fetch,
    Finished,
    Grant,
    Load,
    LoadFailed,
    OpenFetched,
    PageRead,
    ParkedLoaded,
    Read,
    Replayed,
    SchedulesRead,
    Settled,
    SettleSoon,
    Stop,
)
from late.scheduler.limits.background import background_rooms
from late.scheduler.limits.limits import LOCAL_POOL, Limits
from late.scheduler.limits.ready_queues import NOTHING
from late.scheduler.passes import totals_of
from late.scheduler.pools import Pool, Slots, dispatch, queued_by_group
from late.scheduler.read_ahead import ReadAhead
from late.scheduler.settings import CoreSettings
from late.scheduler.turns import NEXT_US, Turns
from late.store.base import Lease, Page, Settlement, SettleResult, Store, taken

logger = logging.getLogger("late.scheduler")

Shard = tuple[str, ShardId]

PASS_MAX_S, CALM_PASS_S = 0.25, 2.5
"""The longest time between two passes, and with nothing to do: bounds the delay of a lost hint. A
view of the fleet brings a pass too, so that a calm worker is hardly ever woken for it alone."""
TURN_S = 0.002
"""A pass keeps the event loop for so long at most; the shards that it has not come to are next,
after what has just started. When many park a jam, or a crowd falls due, each takes a millisecond or
two."""
UNRECORDED_MAX = 2_000
"""Tasks of one worker that have run, or run in it, and are not recorded: the most that its death
can repeat, beside what other services execute for it at that moment."""
RETRY_S = 0.5


class Scheduler:
    """Runs all shards of one worker. No method may be called from another thread."""

    def __init__(
        self,
        store: Store,
        policies: Mapping[str, Policy],
        *,
        slots: Slots,
        concurrency: int,
        now_us: Callable[[], int],
        settle_soon: Callable[[Shard, int, bool], None],
        read_soon: Callable[[], None],
        pools: Mapping[str, Pool] | None = None,
        limits: Limits | None = None,
        shards_total: Callable[[], Mapping[str, int]] = dict,
        shards_beyond: Callable[[], Mapping[str, int]] = dict,
        trusted: Callable[[], bool] = lambda: True,
        commit_s: Callable[[], float] = lambda: 0.0,
        on_fenced: Callable[[Shard], None] = lambda shard: None,
        on_held: Callable[[], None] = lambda: None,
        settings: CoreSettings | None = None,
        rng: random.Random | None = None,
        emitter: events.Emitter = events.default,
    ) -> None:
        self.cores: dict[Shard, ShardCore] = {}
        self.settlements = 0
        """Number of settlements that are in the journal."""
        self.loads = 0
        """Number of answers to requests for open and parked tasks."""
        self.fenced: Counter[Shard] = Counter()
        """Settlements that the journal refused, because the shard had another owner."""
        self.late_results: Counter[Shard] = Counter()
        """Results that nobody waited for, or whose shard went before they were recorded."""
        self._store = store
        self._policies = policies
        self._slots = slots
        self._pools = dict(pools or {})
        self.limits = limits or Limits(self._pools, slots=concurrency)
        """The limits of all shards of this worker, from the settings of queues and targets."""
        self.gate = Gate(on_held)
        """Says which keys may move to another shard, after their lane was resized."""
        self._shards_total = shards_total
        self._shards_beyond = shards_beyond
        self._rooms: dict[str, int] = {}
        self._background: dict[str, int] = {}
        self._concurrency = concurrency
        self._now_us = now_us
        self._settle_soon = settle_soon
        self._read_soon = read_soon
        self._trusted = trusted
        self._commit_s = commit_s
        self._on_fenced = on_fenced
        self._settings = settings
        self._rng = rng or random.Random()
        self.emitter = emitter
        self._reads: dict[Shard, Cursor] = {}
        self._behind: set[Shard] = set()  # the last page was full: there is more to read at once
        self._turns = Turns()
        self._unseen: list[Shard] = []  # shards that the pass has not come to
        self._ahead = ReadAhead()
        self._work = asyncio.Event()
        self._changed = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> int:
        """Number of tasks that could start now, over all shards."""
        return sum(core.state.ready for core in self.cores.values())

    @property
    def loading(self) -> bool:
        """True while open or parked tasks are asked for, or are to be asked for again."""
        return bool(self._calls)

    @property
    def gated(self) -> bool:
        """True while tasks wait until another shard has ended older ones of their keys."""
        return any(core.state.keys.gated for core in self.cores.values())

    @property
    def unrecorded(self) -> int:
        """Tasks that have ended, or are to be parked, and are not in the journal yet."""
        return sum(core.state.pending.unrecorded for core in self.cores.values())

    # ------------------------------------------------------------------ from the keeper

    def acquired(self, leases: Iterable[Lease]) -> None:
        """Begin with shards that were won; a core of an older epoch is thrown away."""
        for lease in leases:
            shard = (lease.group, lease.shard_id)
            if shard in self.cores:
                self.lost(shard)
            core = ShardCore(lease, self._policies, self._settings, self.limits, self.gate)
            self.cores[shard] = core
            # Its first read must not wait for the pace of an idle tail: tasks may have waited.
            self._behind.add(shard)
            self._step(shard, core, Grant(self._now_us(), 0))
        self._work.set()

    def lost(self, shard: Shard) -> None:
        """Throw a shard's state away: its attempts go on, and their results change nothing."""
        core = self.cores.pop(shard, None)
        self._reads.pop(shard, None)
        self._behind.discard(shard)
        if core is not None:
            core.state.abandon()
            holders: list[Slots | Pool] = [self._slots, *self._pools.values()]
            for pool in holders:
                pool.abandon(shard[0], shard[1], core.state.lease.epoch)
            if core.state.pending.unrecorded:
                self._count_late(shard, core.state.pending.unrecorded)
        self._changed.set()

    async def hand_over(
        self, shards: Sequence[Shard], grace_s: float, stuck: Callable[[], set[Shard]] = set
    ) -> None:
        """Stop starting tasks of `shards`, wait up to `grace_s` until all that ran is settled, and
        longer for those that are `stuck`. The successor starts again what runs on after that."""
        for shard in shards:
            if shard in self.cores:
                self._reads.pop(shard, None)
                self._step(shard, self.cores[shard], Stop())
        deadline = asyncio.get_running_loop().time() + grace_s
        while any(not self.cores[s].state.clean for s in shards if s in self.cores):
            for shard in shards:
                self._settle_soon(shard, 0, True)
            self._changed.clear()
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 and stuck().isdisjoint(shards):
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(max(left, 0.1), PASS_MAX_S)):
                    await self._changed.wait()
        for shard in shards:
            self.lost(shard)

    def change_settings(
        self, queues: Mapping[str, QueueSettings], targets: Mapping[str, QueueSettings]
    ) -> None:
        """Take in the settings as the database has them now."""
        self.limits.set(queues, targets, self._now_us())
        self._work.set()

    def resized(self, layout: Layout) -> None:
        """Take in the lanes as the database has them now."""
        if self.gate.set(layout):
            self._work.set()

    def recovered(self) -> None:
        """Note that the worker may start tasks (again): what is protected starts slowly."""
        self.limits.recovered(self._now_us())
        self._work.set()

    def wake(self) -> None:
        """Pass over the cores soon: something outside has changed."""
        self._work.set()

    # ------------------------------------------------------------------ the life of a task

    def wanted(self) -> Mapping[Shard, Cursor]:
        """Return the shards that want to be read, and the cursor of each."""
        return self._reads

    def pages(self, group: str, pages: Sequence[Page]) -> None:
        """Take in what the tail has read."""
        for page in pages:
            shard = (group, page.shard_id)
            core = self.cores.get(shard)
            # The tailer gives no page of a read that was on its way when the shard changed hands.
            if core is None or self._reads.pop(shard, None) is None:
                continue
            (self._behind.add if page.more else self._behind.discard)(shard)
            if core.skip_page(page):
                self._reads[shard] = page.cursor
                continue
            page = taken(page, core.state.lease.reads)
            self._step(shard, core, PageRead(page))
            if page.records:
                self._work.set()

    def finished(self, outcomes: Sequence[Outcome]) -> None:
        """Take in how attempts ended."""
        now_us = self._now_us()
        by_shard: dict[Shard, list[Outcome]] = {}
        self.limits.ended(outcomes, now_us)
        last: tuple[str, int] | None = None
        part: list[Outcome] = []
        for outcome in outcomes:
            attempt = outcome.attempt
            key = (attempt.group, attempt.record.shard_id)
            if key != last:  # as they were started: mostly one shard after the other
                last = key
                part = by_shard.setdefault((key[0], ShardId(key[1])), [])
            part.append(outcome)
        for shard, part in by_shard.items():
            core = self.cores.get(shard)
            late = len(part)
            if core is not None:
                before = core.state.late_results
                self._step(shard, core, Finished(part, now_us))
                late = core.state.late_results - before
            if late:
                self._count_late(shard, late)
        if self.emitter.wants(events.ATTEMPT_ENDED):
            report.ended(self.emitter, outcomes)
        if self.emitter.wants(events.ATTEMPT_FAILED):
            report.failed(self.emitter, outcomes)
        if self.limits.outages.changed:
            report.outages(self.emitter, self.limits.outages)
        self._ahead.ended += len(outcomes)
        if any(core.state.waits for core in self.cores.values()):
            self._work.set()  # Else there is nothing to start, and what is due by time can wait.

    def _count_late(self, shard: Shard, count: int) -> None:
        self.late_results[shard] += count
        self.emitter.emit(events.LATE_RESULT, count=count, group=shard[0], shard=shard[1])

    def cancel_asked(self, attempt: Attempt) -> bool:
        """Return whether a cancel of its task was read here. Any thread may ask."""
        core = self.cores.get((attempt.group, ShardId(attempt.record.shard_id)))
        return core is not None and core.cancel_asked(attempt)

    def schedules(self, schedules: Sequence[Schedule], group: str) -> None:
        """Take in all schedules as the database has them; the owner of its shard fires each."""
        by_shard: dict[int, list[Schedule]] = {}
        for schedule in schedules:
            by_shard.setdefault(schedule.shard_id, []).append(schedule)
        for shard, core in list(self.cores.items()):
            if shard[0] == group:
                self._step(shard, core, SchedulesRead(by_shard.get(shard[1], [])))
        self._work.set()

    def collect(self, urgent: bool = False) -> list[Settlement]:
        """Build all settlements that are due, or only the `urgent` ones, for which somebody waits;
        none of a shard whose last one is still out."""
        now_us = self._now_us()
        waiting = queued_by_group((self._slots, *self._pools.values()))
        found = []
        for shard, core in self.cores.items():
            state = core.state
            if urgent and not state.urgent:
                continue
            if state.told is None and state.quiet_from_us <= now_us < state.quiet_until_us:
                state.now_us = max(state.now_us, now_us)
                continue  # nothing is due there, or its last settlement is out
            settlement = core.settlement(now_us, waiting.get(shard[0], NONE))
            if settlement is not None:
                found.append(settlement)
        return found

    def settled(self, settlement: Settlement, result: SettleResult) -> None:
        """Take in the result of a settlement that `collect` gave out."""
        shard = (settlement.group, settlement.shard_id)
        core = self.cores.get(shard)
        if core is not None and core.state.lease.epoch != settlement.epoch:
            core = None
        if result is SettleResult.FENCED:
            # Also one of a shard that was given up meanwhile: it is a former owner's all the same.
            self.fenced[shard] += 1
            epoch = settlement.epoch
            self.emitter.emit(events.FENCED, group=shard[0], shard=shard[1], epoch=epoch)
        if core is None:
            return
        if result is SettleResult.FENCED:
            self.lost(shard)
            self._on_fenced(shard)
            return
        now_us = self._now_us()
        self.settlements += 1
        self._step(shard, core, Settled(now_us))
        report.settled(self.emitter, settlement, now_us)
        self._changed.set()
        self._work.set()

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Pass over the cores whenever there is something to do, until cancelled."""
        try:
            while True:
                self._work.clear()
                wake_us = self._pass()
                while self._unseen:
                    await asyncio.sleep(0)
                    wake_us = min(wake_us, self._pass())
                with contextlib.suppress(TimeoutError):
                    wait_s = max(0, wake_us - self._now_us()) / 1_000_000
                    # Not for longer than planned, if the clock was set back just now; and not
                    # again and again for what is due in a moment, while the clock stands still.
                    wait_s = min(wait_s, CALM_PASS_S) if self._trusted() else CALM_PASS_S
                    async with asyncio.timeout(wait_s):
                        await self._work.wait()
        finally:
            for call in self._calls:
                call.cancel()

    def _pass(self) -> int:
        """Grant slots to the cores in turn, for `TURN_S`; return when to come again, microseconds
        by the database's clock."""
        now_us, ends_s = self._now_us(), asyncio.get_running_loop().time() + TURN_S
        room, care = self._begin_pass(now_us)
        limited = self.limits.started
        shards, self._unseen = self._unseen or self._turns.order(self.cores), []
        left = len(shards)
        self._turns.begin(room, self._ahead.last)
        asked = [n for n, free in self._rooms.items() if free > 0 and n.startswith(PULL_POOL)]
        if asked:  # A consumer gets the highest priority of all shards that are here.
            cores = self.cores
            tops = {s: cores[s].state.ready_queues.top(asked) for s in shards if s in cores}
            shards.sort(key=lambda shard: tops.get(shard, NOTHING), reverse=True)
        wake_us = now_us + int(CALM_PASS_S * 1_000_000)
        soon_us = now_us + int(PASS_MAX_S * 1_000_000)
        ready = False
        for shard in shards:
            core = self.cores.get(shard)
            if core is not None:
                state = core.state
                quiet = state.quiet_from_us <= now_us < state.quiet_until_us
                wanted = asked and state.unclaimed.may_have(asked)
                if quiet and not wanted:
                    state.now_us = now_us
                    wake_us = min(wake_us, max(soon_us, state.quiet_until_us))
                elif not wanted and room <= 0 and self._turns.grain:
                    self._turns.skip(len(shards) - left)
                    wake_us = min(wake_us, now_us + NEXT_US)
                elif not wanted and core.skip_grant(now_us, room, self._rooms):
                    if room <= 0:
                        self._turns.skip(len(shards) - left)
                    wake_us = min(wake_us, soon_us)
                else:
                    wake_us = min(wake_us, soon_us)
                    share, marking = self._turns.share(room, left), state.suspects.marking
                    rooms = self._turns.rooms(self._rooms, left)
                    had, below = dict(state.background), self._background
                    room -= self._step(shard, core, Grant(now_us, share, care, rooms, below))
                    for name, count in state.background.items():
                        if name in below:
                            below[name] -= count - had.get(name, 0)
                    room -= state.suspects.marking - marking
                    care = state.suspects.restricted(care, now_us)
                    ready = ready or state.can_start(background=self._background[LOCAL_POOL] > 0)
                    if asyncio.get_running_loop().time() >= ends_s:
                        wake_us = min(wake_us, state.wake_us)
                        self._unseen = shards[1 - left :] if left > 1 else []
                        break
                wake_us = min(wake_us, state.wake_us)
            left -= 1
        if (room and ready) or self.limits.started > limited:
            self._work.set()  # a share that one core did not use is another's next turn
        return min(wake_us, self.limits.opens_at_us or wake_us)

    def _begin_pass(self, now_us: int) -> tuple[int, Care]:
        """Return how many attempts fit into the worker's own pool, and what may start under a mark.

        The room of the other pools is in `_rooms` then, that of the background in `_background`.
        """
        # Asked at the last moment: after a pause of the process the answer is no at once.
        trusted = self._trusted()
        repeated, marking, care, below = totals_of(self.cores.values(), now_us)
        # The brake: what has run and is not in the journal would run again after a kill. A slow
        # database slows the work down instead of making that number large. What was parked without
        # having run does not count: nothing would start while a jam of thousands is written.
        most = max(0, UNRECORDED_MAX - repeated) if trusted else 0
        ahead = self._ahead.attempts(asyncio.get_running_loop().time())
        load = self._slots.load
        room = max(0, min(self._concurrency + ahead, most) - load - marking) if trusted else 0
        if load >= self._concurrency + ahead // 2:
            room = 0  # Half of it waits still: several are handed over at once, not each alone.
        self._rooms = {name: min(pool.room, most) for name, pool in self._pools.items()}
        self._background = background_rooms(
            room, load, self._rooms, below, slots=self._concurrency,
            commit_s=self._commit_s(), full=repeated > UNRECORDED_MAX // 2,
        )  # fmt: skip
        mine = Counter[str]()
        if self.limits.shares:
            mine.update(group for group, _ in self.cores)
            # Those that are not in the total have nothing to start: they must claim no part of it.
            mine.subtract(self._shards_beyond())
        self.limits.begin(mine, self._shards_total(), now_us)
        return room, care

    def _step(self, shard: Shard, core: ShardCore, event: Event) -> int:
        """Take a step and carry out its effects; return how many attempts were started."""
        started = 0
        for effect in core.step(event):
            match effect:
                case Dispatch():
                    count = len(effect.attempts)
                    self.emitter.emit(events.DISPATCHED, count=count, group=shard[0])
                    started += dispatch(effect.attempts, self._slots, self._pools, self._rooms)
                case Read():
                    self._reads[shard] = effect.cursor
                    if shard in self._behind:  # else the tailer's own pace is right
                        self._read_soon()
                case SettleSoon():
                    self._settle_soon(shard, effect.outcomes, effect.urgent)
                case Replayed():
                    report.replayed(self.emitter, shard, effect.task_ids)
                case Load() | Fetch():
                    call = asyncio.get_running_loop().create_task(self._ask(shard, core, effect))
                    self._calls.add(call)
                    call.add_done_callback(self._calls.discard)
        return started

    async def _ask(self, shard: Shard, core: ShardCore, request: Load | Fetch) -> None:
        event: Event
        try:
            if isinstance(request, Fetch):
                event = OpenFetched(await self._store.fetch(shard[1], request.keys), self._now_us())
            else:
                parked = await self._store.due(
                    *shard,
                    until_us=request.until_us,
                    limit=request.limit,
                    after=request.after,
                    held_key=request.held_key,
                    task_ids=request.task_ids,
                )
                event = ParkedLoaded(request, parked, self._now_us())
        except StoreError as error:
            repeats.default.log(logger, "load failed: %s", error)
            await asyncio.sleep(RETRY_S * (0.5 + self._rng.random()))
            event = LoadFailed(request)
        else:
            self.loads += 1
        if self.cores.get(shard) is core:
            self._step(shard, core, event)
            self._work.set()
