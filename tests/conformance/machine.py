"""One state machine for every store, fake or real: producers, readers, owners, in any order.

Hypothesis chooses the steps; `machine_model` says what each must give. A sequence on which a store
and the model disagree is a defect of one of them, and where the fakes of the simulator and the real
stores pass the same machine, what the simulator proves holds for what runs.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from late.control import Control
from late.model.task import ShardId
from late.store.base import Lease, Settlement, SettleResult
from tests.conformance.kit import worker
from tests.conformance.machine_model import FAR_US, GROUP, KEY, Draft, Owner, Reader, ShardModel
from tests.conformance.machine_reading import ANY, LIMITS, SHARDS, ReadingMachine
from tests.conformance.machine_worlds import World

WORKERS = ("w0", "w1", "w2")
UPTO_3 = st.integers(0, 3)
FATES = st.lists(
    st.sampled_from(("done", "open", "later", "dead", "behind", "head")), min_size=2, max_size=9
)
WAKES = st.lists(st.sampled_from(("open", "done", "later", "dead", "behind")), max_size=3)
LOST = st.sampled_from((False, False, False, True))


class Machine(ReadingMachine):
    """See the module."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.owners: list[Owner] = []
        self.alive: set[str] = set()
        self.shards = {shard: ShardModel(shard) for shard in SHARDS}
        self.prunes = 0
        self.heartbeat("w0", leave=False)
        self.acquire(0, set(SHARDS))
        # From the start something is open, parked, dead and waiting, and where it can be, beside a
        # transaction that began before: chance alone rarely gets there.
        if not world.exclusive:
            self.insert(0, SHARDS[0], 2)
        for index, shard in enumerate(SHARDS):
            self.enqueue(shard, 7)
            fates = ["open", "behind", "later", "dead", "done"]
            self.settle(2 * index, limit=7, cover=5, fates=fates, wakes=[], lost=False)

    def teardown(self) -> None:
        super().teardown()
        # What is open outlives maintenance, and who was fenced stays so without the row that did.
        self.clean()
        for owner in self.owners:
            if owner.unsure is None:
                draft = owner.draft(0, (), ())
                self.answered(owner, draft, *self.send(owner, draft.settlement), lost=False)
        for owner in self.owners:
            self.read_on(owner.reader, 3)
        if self.world.url is not None:
            self.books(self.world.url)

    # ------------------------------------------------------------------ ownership

    @precondition(lambda self: self.quiet)
    @rule(name=st.sampled_from(WORKERS), leave=st.booleans())
    def heartbeat(self, name: str, leave: bool) -> None:
        store = self.world.stores[WORKERS.index(name) % 2]
        found = self.world.run(store.heartbeat(worker(name), 0.0 if leave else 600.0))
        self.alive.discard(name) if leave else self.alive.add(name)
        assert [info.worker_id for info in found.workers] == sorted(self.alive)
        leases = {view.shard_id: (view.owner, view.epoch) for view in found.leases}
        assert leases == {
            shard: (model.holder, model.epoch)
            for shard, model in self.shards.items()
            if model.epoch
        }

    @precondition(lambda self: self.quiet and self.alive)
    @rule(index=ANY, shards=st.sets(st.sampled_from(SHARDS), min_size=1))
    def acquire(self, index: int, shards: set[ShardId]) -> None:
        name = sorted(self.alive)[index % len(self.alive)]
        store = self.world.stores[WORKERS.index(name) % 2]
        wanted = [(GROUP, shard) for shard in sorted(shards)]
        leases = {lease.shard_id: lease for lease in self.world.run(store.acquire(name, wanted))}
        free = {
            shard for shard in shards
            if self.shards[shard].holder in (None, name)
            or self.shards[shard].holder not in self.alive
        }  # fmt: skip
        assert set(leases) == free
        for shard in sorted(free):
            self.granted(name, leases[shard])

    def granted(self, name: str, lease: Lease) -> None:
        model = self.shards[lease.shard_id]
        model.take(name)
        assert (lease.group, lease.owner, lease.epoch, lease.seq) == (
            GROUP, name, model.epoch, model.seq,
        )  # fmt: skip
        assert (lease.cursor, lease.open) == (model.cursor, model.open)
        assert lease.held_keys == model.held()
        store = self.world.stores[WORKERS.index(name) % 2]
        records = self.world.run(store.fetch(lease.shard_id, lease.open))
        assert {r.task_id: r for r in records} == {
            key.task_id: self.records[key.task_id] for key in lease.open
        }
        self.owners = [*self.owners[-3:], Owner(lease, records, model)]

    @precondition(lambda self: self.quiet and self.owners)
    @rule(index=ANY)
    def release(self, index: int) -> None:
        lease = self.owners[index % len(self.owners)].lease
        self.world.run(self.world.stores[0].release([lease]))
        model = self.shards[lease.shard_id]
        if (model.holder, model.epoch) == (lease.owner, lease.epoch):
            model.holder = None

    # ------------------------------------------------------------------ settling

    def chosen(self, index: int) -> Owner:
        """As a rule the last one to take a shard."""
        return self.owners[-1 - (index // 2) % len(self.owners)]

    @precondition(lambda self: self.owners)
    @rule(index=ANY, limit=LIMITS, pages=st.integers(1, 3))
    def owner_reads(self, index: int, limit: int, pages: int) -> None:
        self.reads(self.chosen(index), limit, pages)

    def reads(self, owner: Owner, limit: int, pages: int) -> None:
        for _ in range(pages):
            page = self.read(owner.reader, limit, WORKERS.index(owner.lease.owner))
            if page is not None:
                owner.ahead += [(record, page.window) for record in page.records]

    @precondition(lambda self: self.quiet and self.owners)
    @rule(index=ANY, limit=LIMITS, cover=st.integers(0, 9), fates=FATES, wakes=WAKES, lost=LOST)
    def settle(
        self, index: int, limit: int, cover: int, fates: list[str], wakes: list[str], lost: bool
    ) -> None:
        """An owner, or one that was; with `lost` it does not hear what became of it."""
        owner = self.chosen(index)
        if owner.unsure is None:
            self.reads(owner, limit, 1)
            draft = owner.draft(cover, fates, wakes)
            self.answered(owner, draft, *self.send(owner, draft.settlement), lost=lost)

    @precondition(lambda self: self.quiet and len(self.owners) > 1)
    @rule(index=ANY, fates=FATES, cover=st.integers(0, 9))
    def settle_both(self, index: int, fates: list[str], cover: int) -> None:
        """One call for both shards, whoever of the two may settle."""
        chosen: dict[ShardId, Owner] = {}
        for n in range(len(self.owners)):
            owner = self.owners[(index + n) % len(self.owners)]
            if owner.unsure is None:
                chosen.setdefault(owner.lease.shard_id, owner)
        drafts = [owner.draft(cover, fates, ()) for owner in chosen.values()]
        results = self.send(None, *(draft.settlement for draft in drafts))
        for owner, draft, result in zip(chosen.values(), drafts, results, strict=True):
            self.answered(owner, draft, result, lost=False)

    @precondition(lambda self: self.quiet and any(o.unsure or o.last for o in self.owners))
    @rule(index=ANY)
    def again(self, index: int) -> None:
        """The same settlement once more: after a lost answer, or by a network that repeats."""
        owners = [o for o in self.owners if o.unsure or o.last]
        owner = owners[index % len(owners)]
        draft, settlement = owner.unsure, owner.last
        if draft is not None:
            settlement, owner.unsure = draft.settlement, None
        assert settlement is not None
        model = self.shards[owner.lease.shard_id]
        (result,) = self.world.run(self.world.stores[0].settle([settlement]))
        if model.ids.get(settlement.seq) == settlement.settlement_id:
            if settlement.seq >= model.kept_from:
                assert result is SettleResult.SETTLED
        else:
            assert result is SettleResult.FENCED, "S1: a zombie has settled"
        if draft is not None and result is SettleResult.SETTLED:
            owner.accept(draft)

    def send(self, owner: Owner | None, *settlements: Settlement) -> list[SettleResult]:
        number = WORKERS.index(owner.lease.owner) if owner is not None else 0
        results = self.world.run(self.world.stores[number % 2].settle(settlements))
        assert len(results) == len(settlements)
        return results

    def answered(self, owner: Owner, draft: Draft, result: SettleResult, *, lost: bool) -> None:
        settlement = draft.settlement
        model = self.shards[settlement.shard_id]
        follows = settlement.seq == model.seq + 1
        assert result is (SettleResult.SETTLED if follows else SettleResult.FENCED), model
        if follows:
            assert settlement.epoch == model.epoch
            model.write(settlement, draft.covered)
        owner.last = settlement
        if lost:
            owner.unsure = draft
        elif follows:
            owner.accept(draft)

    # ------------------------------------------------------------------ looking, and maintenance

    @rule(shard=st.sampled_from(SHARDS), limit=LIMITS, skip=UPTO_3, until=UPTO_3)
    def timers(self, shard: ShardId, limit: int, skip: int, until: int) -> None:
        """By due time, and by ordering key."""
        model, store = self.shards[shard], self.world.stores[1]
        after = sorted(model.timers)[skip] if skip < len(model.timers) else (0, "")
        until_us = FAR_US + until if until < 3 else 2**63 - 1
        due = store.due(GROUP, shard, until_us=until_us, limit=limit, after=after)
        assert self.world.run(due) == model.due(after, until_us, limit)
        held = store.due(GROUP, shard, until_us=0, limit=limit, held_key=KEY)
        assert self.world.run(held) == model.waiting_for_key(limit)

    @precondition(lambda self: self.quiet and self.prunes < self.world.prunes_max)
    @rule()
    def prune(self) -> None:
        """What is needed stays."""
        self.prunes += 1
        self.clean()

    def clean(self) -> None:
        for model in self.shards.values():
            self.maybe_gone |= model.settled
            model.kept_from = model.seq
        self.world.run(self.world.stores[0].prune(journal_keep_s=0.0))
        for shard, model in self.shards.items():
            self.read_on(Reader(shard), 4)
            keys = list(model.open)
            found = self.world.run(self.world.stores[0].fetch(shard, keys))
            assert {r.task_id for r in found} == {key.task_id for key in keys}

    def books(self, url: str) -> None:
        """`late verify` has nothing to say, and counts what the model counts."""
        with Control(url) as control:
            found = control.verify()
        assert found.problems == (), found.problems
        models = self.shards.values()
        waiting = sum(len(self.committed[m.shard_id].keys() - m.covered) for m in models)
        expected: dict[str, Any] = {
            "waiting": waiting,
            "open": sum(len(m.open) for m in models),
            "parked": sum(len(m.timers) for m in models),
            "dead": sum(len(m.dead) for m in models),
        }
        counted = {name: getattr(found.totals, name) for name in expected}
        assert counted == expected, f"{counted} {expected}"
