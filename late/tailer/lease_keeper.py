"""Take and give up shards as `ownership.plan` says.

With every view of the fleet that the heartbeat brings:

1. **lost** shards (a higher epoch in the view than ours) are dropped, before anything else;
2. only then is the new **trust** taken over, so that a worker which was paused, and whose shards
   went to others meanwhile, never works on them in between;
3. shards of live peers are handed over, once every peer must know of it (`release_notice.py`), and
   each as soon as it is quiet: `before_release` stops its starts and settles, then the lease is
   released. One whose task runs for long holds no other up;
4. free shards that are ours are acquired, a few at a time, because each begins with a cold read.

A shard whose settlement the store refuses for good is dropped, released with the next view, and
left alone for a while (`shard_quarantine.py`): in between it has no owner, so that everybody can
see it, and whoever placement names meanwhile finds it free.

A worker that is about to stop says so first (`Heartbeat.leave`) and works on until its peers must
have seen it (`leave`). From then on they look often, and take each shard as soon as it is released.

Trust runs out by the monotonic clock when no heartbeat gets through. Then `on_distrusted` is
called, and no shard is acquired; the leases stay, and the next heartbeat tells which were lost.

All methods belong to one event loop. The keeper has no deadlines of its own: calls of the store
have theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from late import events
from late.clock import Monotonic
from late.errors import StoreError, StoreRefused
from late.events import Emitter
from late.model.backoff import Backoff
from late.model.lanes import Layout
from late.model.task import ShardId
from late.store.base import Lease, Membership, Settlement, WorkerInfo
from late.tailer import lease_log, ownership
from late.tailer.membership import SILENCE_UNKNOWN_S, Roster, SilentPeers, worked
from late.tailer.ownership import Key
from late.tailer.release_notice import ReleaseNotice
from late.tailer.shard_quarantine import ShardQuarantine
from late.tailer.standby import Standby

HURRIES_MAX = 50
"""Quick looks in a row at a shard that a peer should hand over; then the usual pace will do."""


class LeaseStore(Protocol):
    """The part of a `Store` that the keeper needs."""

    async def acquire(self, worker_id: str, shards: Sequence[Key]) -> list[Lease]: ...

    async def release(self, leases: Sequence[Lease]) -> None: ...

    async def heartbeat(self, worker: WorkerInfo, ttl_s: float) -> Membership: ...


class LeaseKeeper:
    """Holds this worker's leases.

    Args:
        store: open.
        me: this worker's id.
        on_acquired: takes new leases; each is a beginning, also for a shard that was held before.
        before_release: stop reading this, settle what is done; the lease goes when it returns.
            Called for each shard by itself.
        on_lost: this shard has another owner: throw away what is in memory for it.
        on_distrusted: start no task from now on.
        on_trusted: tasks may be started (again). Called after `on_lost` of the same view.
        kept: shards that must not be handed over now, though a peer is to have them: a handler of
            theirs runs on after its time-out, and a repeat must not start beside it.
        hurry: asks for a view soon (`Heartbeat.hurry`).
        seen: the fleet as placement is to see it (`members.MemberList.view`).
        layout: returns the lanes that are known; needed only by a worker of a fleet in which some
            serve some lanes alone.
        announce: tells the peers the place that this worker has from now on.
        notice: how long a hand-over waits; by default not at all.
        takeovers_max: shards acquired at a time.
        ttl_s: this worker's lease.
        standby_s: the longest wait for a worker that leaves (`standby.py`).
    """

    def __init__(
        self,
        store: LeaseStore,
        me: str,
        *,
        on_acquired: Callable[[list[Lease]], None],
        before_release: Callable[[list[Key]], Awaitable[None]],
        on_lost: Callable[[Key], None],
        on_distrusted: Callable[[], None],
        on_trusted: Callable[[], None] = lambda: None,
        hurry: Callable[[], None] = lambda: None,
        kept: Callable[[], set[Key]] = set,
        seen: Callable[[Membership], Membership] = lambda membership: membership,
        announce: Callable[[str], None] = lambda place: None,
        layout: Callable[[], Layout] = Layout,
        notice: ReleaseNotice | None = None,
        takeovers_max: int = 4,
        ttl_s: float = 5.0,
        standby_s: float = 0.0,
        rng: random.Random | None = None,
        monotonic: Monotonic = time.monotonic,
        emitter: Emitter = events.default,
    ) -> None:
        self._store = store
        self._me = me
        self._on_acquired = on_acquired
        self._before_release = before_release
        self._on_lost = on_lost
        self._on_distrusted = on_distrusted
        self._on_trusted = on_trusted
        self._hurry, self._kept = hurry, kept
        self._seen, self._layout = seen, layout
        self._standby = Standby(me, standby_s, monotonic)
        self._announce = announce
        self._notice = notice or ReleaseNotice(0.0, list_s=0.0)
        self._takeovers_max = takeovers_max
        self._rng = rng or random.Random()
        self._monotonic = monotonic
        self._emitter = emitter
        self._held: dict[Key, Lease] = {}
        self._epochs: dict[Key, int] = {}
        """Highest epoch under which each shard was ever ours: tells an old view from news."""
        self._granted: dict[Key, int] = {}
        """The same, and never forgotten: an epoch that does not rise is no news either."""
        self.quarantine = ShardQuarantine(self._rng, monotonic)
        self._dropped: set[Key] = set()
        """Held, and nobody works on it: to be released with the next view."""
        self._releasing: set[Key] = set()
        self._acquiring = False
        """A takeover is under way: what it brings counts as held, for it may be ours already."""
        self._roster = Roster()
        self._silent = SilentPeers(ttl_s, max(SILENCE_UNKNOWN_S, 4 * ttl_s))
        self._gone: list[WorkerInfo] = []
        """Silent for longer than their leases: to be taken out of the fleet."""
        self._unsteady: frozenset[str] = frozenset()
        self._membership: Membership | None = None
        self._beyond, self._total = Counter[str](), dict[str, int]()
        self._news = asyncio.Event()
        self._trusted_until = -math.inf
        self._back_until = -math.inf
        """Until when the first heartbeat after a gap holds: a view within it can be trusted."""
        self._trust_told = asyncio.Event()
        """Set while the worker knows that it is trusted."""
        self._awaited: tuple[Key, ...] = ()
        self._hurries = 0
        self._stopped = asyncio.Event()
        self._announced = asyncio.Event()
        """Set once a view shows that this worker is about to leave."""
        self._returning: list[Lease] = []
        self._returns = asyncio.Lock()

    # ------------------------------------------------------------------ what others ask

    @property
    def leases(self) -> Mapping[Key, Lease]:
        """The leases that this worker holds now, as far as it knows."""
        return self._held

    @property
    def trusted(self) -> bool:
        """True while a task may be started **now**.

        It follows the clock and not what was told: after a pause of the process it is False at
        once, before any callback has run.
        """
        return self._monotonic() < self._trusted_until

    def lowest_shard(self, group: str) -> ShardId | None:
        """The lowest shard that workers of the group serve; None before the first view. Its owner
        in any group does what one worker must do for all."""
        seen = self._membership
        return ownership.lowest_shard(seen, group, self._layout()) if seen else None

    @property
    def shards_total(self) -> Mapping[str, int]:
        """The shards that the live workers of each group share among them; empty before the first
        view."""
        return self._total

    @property
    def fleet(self) -> Membership | None:
        """The fleet as it was seen last, without groups that nobody may work."""
        return self._membership

    def others(self, group: str) -> frozenset[str]:
        """The live workers of a group, without this one."""
        workers = self._membership.workers if self._membership else ()
        return frozenset(w.worker_id for w in workers if group in w.groups) - {self._me}

    @property
    def shards_beyond(self) -> Mapping[str, int]:
        """Number of held shards of each group that are not among these: their lane was made
        narrower, and nothing is in them any more. They are kept, because a task may still come by
        the old width."""
        return self._beyond

    def observe(self, membership: Membership, trusted_until: float, sent_s: float) -> None:
        """Take in what a heartbeat has brought: for `Heartbeat(on_membership=...)`."""
        held_epochs = {key: lease.epoch for key, lease in self._held.items()}
        for key in ownership.lost(membership, held_epochs):
            lease_log.tell(self._emitter, events.LEASE_LOST, self._held.pop(key))
            self._on_lost(key)
        mine = self._held or self._acquiring
        if not self.trusted and mine and self._monotonic() >= self._back_until:
            # The heartbeat had run out, and a peer may be taking over at this moment what this view
            # still shows as ours. No peer can from now on, so the next view is the whole truth.
            self._back_until = trusted_until
            self._hurry()
        else:
            self._trusted_until = trusted_until
        if self.trusted and not self._trust_told.is_set():
            if self._membership is not None:
                self._emitter.emit(events.TRUST_REGAINED, shards=len(self._held))
            self._trust_told.set()
            self._on_trusted()
        self._unsteady = self._roster.observe(membership)
        self._gone = self._silent.observe(membership, sent_s, self._monotonic())
        self._membership = worked(self._seen(membership))
        if (place := self._standby.observe(self._membership)) is not None:
            self._announce(place)
        listed = set(membership.shards)
        self._beyond = Counter(group for group, shard in self._held if shard not in listed)
        served = {group for each in self._membership.workers for group in each.groups}
        self._total = dict.fromkeys(served, len(membership.shards))
        if any(w.worker_id == self._me and w.capacity == 0 for w in membership.workers):
            self._announced.set()
        else:
            self._announced.clear()  # it had withdrawn, and is back
        self._news.set()

    def forget(self, key: Key) -> None:
        """Forget a shard that the worker has dropped because it was fenced. If it is ours all the
        same, it is acquired anew. It ignores unknown keys."""
        self._held.pop(key, None)
        self._epochs.pop(key, None)

    def refused(self, settlements: Sequence[Settlement], error: StoreError) -> None:
        """Drop the shards of settlements that the store will never take: they begin again from the
        journal, later. Of a term that is over, nothing is left to drop."""
        for each in settlements:
            key = (each.group, each.shard_id)
            lease = self._held.get(key)
            if lease is None or lease.epoch != each.epoch:
                continue
            wait_s = self.quarantine.add(key, str(error), again=each.seq == lease.seq + 1)
            self._emitter.emit(
                events.SETTLEMENT_REFUSED,
                retry_in_s=wait_s,
                group=each.group,
                shard=each.shard_id,
                epoch=each.epoch,
                kept=False,
                error=error,
            )
            self._dropped.add(key)
            self._on_lost(key)

    def drop_all(self) -> None:
        """Drop all shards, since the database may not have what is in memory of them. They begin
        again from the journal."""
        for key in list(self._held):
            self._dropped.add(key)
            self._on_lost(key)

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Keep shards until `stop`, and until the releases under way are done. Cancelling it is
        safe: what was being acquired is then ours without our knowing, until the last heartbeat.

        Raises:
            StoreError: one that is not transient (in a group, from a release).
        """
        async with asyncio.TaskGroup() as tasks:
            loops = [tasks.create_task(self._watch()), tasks.create_task(self._keep(tasks))]
            await self._stopped.wait()
            for loop in loops:
                loop.cancel()

    def stop(self) -> None:
        """Plan nothing more; the leases stay (`release_all`), and so does the watch over what is
        lost. Calling it twice, or before `run`, is fine."""
        self._stopped.set()

    async def leave(self, notice_s: float) -> None:
        """`stop`, and return when it is time to hand over: `notice_s` (a heartbeat's pace) after
        the first view that tells of this worker's leave, by when every peer has seen one too. At
        once if there is no peer to take anything. May be cancelled."""
        self.stop()
        seen = self._membership
        if seen is None or not ownership.has_heirs(self._me, seen, self._held, self._layout()):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * notice_s):  # no view comes: do not wait for one
                await self._announced.wait()
                await asyncio.sleep(notice_s)

    async def hand_over(self, keys: Iterable[Key]) -> None:
        """Give up `keys`, each as soon as `before_release` has returned for it. What is lost
        meanwhile, or is not held, is fine.

        Raises:
            StoreError: one that is not transient (in a group).
        """
        async with asyncio.TaskGroup() as tasks:
            for key in sorted(self._held.keys() & set(keys)):
                self._releasing.add(key)
                tasks.create_task(self._hand_over(self._held[key]))

    async def release_all(self) -> None:
        """Give every lease back, after `stop`, once all that ran is settled. Tried until it works:
        whoever calls bounds it with a time-out, after which the last heartbeat frees them too."""
        assert self._stopped.is_set(), "a keeper that goes on would take them back"
        await self._give_back(list(self._held.values()))

    async def _watch(self) -> None:
        """Tell when trust runs out."""
        while True:
            await self._trust_told.wait()
            left_s = self._trusted_until - self._monotonic()
            if left_s > 0:
                await asyncio.sleep(left_s)
                continue
            self._trust_told.clear()
            self._emitter.emit(events.TRUST_LOST, shards=len(self._held))
            self._on_distrusted()

    async def _keep(self, tasks: asyncio.TaskGroup) -> None:
        """Carry out the plan that follows from each view, oldest steps first."""
        while True:
            await self._news.wait()
            self._news.clear()
            membership = self._membership
            assert membership is not None
            plan = ownership.plan(
                self._me,
                membership,
                self._held.keys(),
                unsteady=self._unsteady,
                layout=self._layout(),
            )
            noticed = self._notice.due(plan.release, membership.shards, self._monotonic())
            leaving = (noticed - self._kept() | self._dropped) - self._releasing
            self._dropped.clear()
            if leaving:
                tasks.create_task(self.hand_over(leaving))
            await self._remove_silent()
            self._look_soon(plan.awaited)
            unheard = ownership.orphans(self._me, membership, self._epochs)
            wanted = {*plan.acquire, *unheard}
            free = sorted(key for key in wanted if not self.quarantine.waits(key))
            lease_log.log("acquired", await self._acquire(free))

    async def _remove_silent(self) -> None:
        """Take workers out of the fleet whose leases the clock keeps alive and nobody renews. One
        that is there all the same loses its shards, as after a lease that ran out, and comes back
        with its next heartbeat."""
        gone, self._gone = self._gone, []
        for worker in gone:
            if worker.worker_id == self._me or not self.trusted:
                continue
            try:
                await self._store.heartbeat(worker, 0)  # says that it has left
            except StoreError as error:
                self._report(error, retry_in_s=0.0)
                return
            self._emitter.emit(
                events.SILENT_WORKER, worker=worker.worker_id, address=worker.address
            )
            self._hurry()

    async def _acquire(self, keys: list[Key]) -> list[Lease]:
        """Acquire `keys` a few at a time, for as long as the view they come from is the latest;
        return what was acquired. What fails is tried again with the next view: heartbeats set the
        pace."""
        acquired: list[Lease] = []
        for start in range(0, len(keys), self._takeovers_max):
            if not self.trusted or (start and self._news.is_set()):
                return acquired
            self._acquiring = True
            try:
                leases = await self._store.acquire(
                    self._me, keys[start : start + self._takeovers_max]
                )
            except StoreError as error:
                self._report(error, retry_in_s=0.0)
                return acquired
            finally:
                self._acquiring = False
            self._check(leases)
            leases = self._present(leases)
            for lease in leases:
                self._held[_key(lease)] = lease
                self._epochs[_key(lease)] = self._granted[_key(lease)] = lease.epoch
                lease_log.tell(self._emitter, events.LEASE_ACQUIRED, lease)
                lease_log.tell_suspects(self._emitter, lease)
            if leases:
                acquired += leases
                self._on_acquired(leases)
        return acquired

    def _present(self, leases: list[Lease]) -> list[Lease]:
        """Return the leases that nobody took over while the answer came, by the last view.

        That view told of the loss before there was anything to lose.
        """
        assert self._membership is not None
        gone = ownership.lost(self._membership, {_key(each): each.epoch for each in leases})
        return [lease for lease in leases if _key(lease) not in gone]

    def _check(self, leases: list[Lease]) -> None:
        """Every grant has a higher epoch than the one before, or the database is another one.

        Raises:
            StoreRefused: it was made again or restored behind this worker's back. What is in
                memory is of the old one, and cannot be told from the new by its epoch.
        """
        for lease in leases:
            if lease.epoch <= self._granted.get(_key(lease), -1):
                raise StoreRefused(
                    f"the database has gone back: epoch {lease.epoch} of shard {lease.shard_id} "
                    "was granted before. It was restored or made again: start the workers anew"
                )

    async def _hand_over(self, lease: Lease) -> None:
        try:
            await self._before_release([_key(lease)])
            await self._give_back([lease])
        finally:
            self._releasing.discard(_key(lease))

    async def _give_back(self, leases: Iterable[Lease]) -> None:
        """Release `leases`, with those that others give back at the same time. Repeated until the
        answer is known: a lease that is held by a worker that does not read it would leave its
        tasks waiting."""
        self._returning += [lease for lease in leases if lease not in self._returning]
        backoff = Backoff(self._rng, cap_s=1.0)
        async with self._returns:
            await asyncio.sleep(0)  # others that became quiet at the same moment come along
            # Time passes in here. What was lost, or lost and acquired anew, is not ours to give.
            while mine := [each for each in self._returning if self._held.get(_key(each)) is each]:
                try:
                    await self._store.release(mine)
                except StoreError as error:
                    retry_in_s = backoff.next_s()
                    self._report(error, retry_in_s)
                    await asyncio.sleep(retry_in_s)
                    continue
                for lease in mine:
                    if self._held.get(_key(lease)) is lease:
                        del self._held[_key(lease)]
                    lease_log.tell(self._emitter, events.LEASE_RELEASED, lease)
                lease_log.log("released", mine)
            self._returning.clear()

    def _look_soon(self, awaited: tuple[Key, ...]) -> None:
        """While a peer is about to hand a shard over, look often; but not for ever, because its
        tasks may run for an hour."""
        self._hurries = self._hurries + 1 if awaited == self._awaited else 0
        self._awaited = awaited
        if awaited and self._hurries < HURRIES_MAX:
            self._hurry()

    def _report(self, error: StoreError, retry_in_s: float) -> None:
        if not error.transient:
            raise error
        self._emitter.emit(
            events.STORE_ERROR,
            component="keeper",
            transient=True,
            retry_in_s=retry_in_s,
            error=error,
        )


def _key(lease: Lease) -> Key:
    return (lease.group, lease.shard_id)
