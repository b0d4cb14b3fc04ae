"""What is refused is counted once, and told once, also when the telling fails at first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from late.errors import StoreUnavailable
from late.events import DISPATCHED, Emitter, Event
from late.model.queue_settings import QueueSettings
from late.model.task import Attempt, Cursor, Epoch, Outcome, ShardId
from late.scheduler.events_effects import Dispatch, Stop
from late.scheduler.limits.limits import Limits
from late.scheduler.scheduler import Scheduler
from late.store.base import Lease, Settlement, SettleResult, Store
from late.worker.watch.fence_report import Counts, FenceReport
from tests.conformance.kit import record

SHARD = ("default", ShardId(3))


class Slots:
    load = 0
    queued: tuple[Any, ...] = ()

    def submit(self, attempts: Any) -> None:
        pass

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        pass


class Empty:
    """A store without parked tasks."""

    async def due(self, *_: Any, **__: Any) -> list[Any]:
        return []


class Watched:
    """A scheduler and what it tells."""

    def __init__(self, **options: Any) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.forgotten: list[Any] = []
        emitter = Emitter()
        emitter.subscribe(self._listen)
        self.scheduler = Scheduler(
            cast(Store, Empty()),
            {},
            slots=Slots(),
            concurrency=1,
            now_us=lambda: 1,
            settle_soon=lambda shard, outcomes, urgent: None,
            read_soon=lambda: None,
            on_fenced=self.forgotten.append,
            emitter=emitter,
            **options,
        )

    def _listen(self, event: Event, values: Mapping[str, Any]) -> None:
        self.heard.append((event.name, dict(values)))

    def own(self, epoch: int) -> None:
        lease = Lease(*SHARD, "me", Epoch(epoch), 1, Cursor(""), (), {})
        self.scheduler.acquired([lease])


def settlement(epoch: int) -> Settlement:
    return Settlement("id", *SHARD, 2, Epoch(epoch), "me", Cursor(""), ())


async def test_a_fence_is_counted_for_a_shard_that_is_held() -> None:
    it = Watched()
    it.own(7)
    it.scheduler.settled(settlement(7), SettleResult.FENCED)
    assert it.scheduler.fenced == {SHARD: 1}
    assert it.scheduler.cores == {}
    assert it.forgotten == [SHARD]


async def test_a_fence_is_counted_for_a_shard_that_was_lost_meanwhile() -> None:
    """The usual order after a pause: the view tells of the loss before the answer comes."""
    it = Watched()
    it.own(7)
    it.scheduler.lost(SHARD)
    it.scheduler.settled(settlement(7), SettleResult.FENCED)
    assert it.scheduler.fenced.total() == 1
    assert it.forgotten == []
    # And for one that was acquired anew, whose state it must leave alone.
    it.own(9)
    it.scheduler.settled(settlement(7), SettleResult.FENCED)
    assert it.scheduler.fenced.total() == 2
    assert SHARD in it.scheduler.cores
    assert [v["epoch"] for name, v in it.heard if name == "fenced"] == [7, 7]


async def test_a_result_for_a_shard_that_is_gone_is_late() -> None:
    it = Watched()
    attempt = Attempt("default", record(3), 1, 0, Epoch(7), 0, None, None)
    it.scheduler.finished([Outcome(attempt, "done", 1, 1, "local")] * 2)
    assert it.scheduler.late_results == {SHARD: 2}
    it.own(9)  # an attempt of an older epoch: the new core has not started it
    it.scheduler.finished([Outcome(attempt, "done", 1, 1, "local")])
    assert it.scheduler.late_results == {SHARD: 3}
    told = [v for name, v in it.heard if name == "late_result"]
    assert [v["count"] for v in told] == [2, 1]


async def test_only_what_is_new_is_told_and_a_failure_is_made_up_for() -> None:
    counts: dict[tuple[str, ShardId], tuple[int, int]] = {}
    told: list[Counts] = []
    faults: list[Exception] = []

    def add(more: Counts) -> None:
        if faults:
            raise faults.pop()
        told.append(dict(more))

    refusals = FenceReport(lambda: counts, add)
    await refusals.tell()
    assert told == []
    counts[SHARD] = (1, 2)
    faults.append(StoreUnavailable("away"))
    await refusals.tell()
    assert told == []
    counts[SHARD] = (1, 5)
    counts["audit", ShardId(0)] = (0, 1)
    await refusals.tell()
    await refusals.tell()
    counts[SHARD] = (3, 5)
    await refusals.tell()
    assert told == [{SHARD: (1, 5), ("audit", ShardId(0)): (0, 1)}, {SHARD: (2, 0)}]


async def test_a_shard_that_is_handed_over_has_its_grace_to_become_clean() -> None:
    it = Watched()
    state = SimpleNamespace(clean=False)
    it.scheduler.cores[SHARD] = cast(Any, SimpleNamespace(state=state, step=lambda event: []))
    lost: list[Any] = []
    it.scheduler.lost = lost.append  # type: ignore[method-assign]
    task = asyncio.create_task(it.scheduler.hand_over([SHARD], 60))
    for _ in range(5):
        await asyncio.sleep(0)
    assert lost == []
    state.clean = True
    it.scheduler._changed.set()
    async with asyncio.timeout(120):
        await task
    assert lost == [SHARD]


async def test_attempts_that_start_are_told_with_their_group() -> None:
    it = Watched()
    attempt = Attempt("default", record(3), 1, 0, Epoch(7), 0, None, None)
    core: Any = SimpleNamespace(step=lambda event: [Dispatch([attempt])])
    assert it.scheduler._step(SHARD, core, Stop()) == 1
    assert [v for name, v in it.heard if name == DISPATCHED.name] == [
        {"count": 1, "group": "default"}
    ]


async def test_each_shard_of_a_group_gets_its_own_schedules() -> None:
    it = Watched()
    for group, shard in (SHARD, ("default", ShardId(4)), ("audit", ShardId(3))):
        it.scheduler.acquired([Lease(group, shard, "me", Epoch(1), 1, Cursor(""), (), {})])
    got: list[Any] = []
    it.scheduler._step = lambda shard, _, event: got.append((shard, event.schedules))  # type: ignore
    here, elsewhere = (cast(Any, SimpleNamespace(shard_id=shard)) for shard in (3, 5))
    it.scheduler.schedules([here, elsewhere], "default")
    assert got == [(SHARD, [here]), (("default", ShardId(4)), [])]


async def test_empty_shards_beyond_the_lane_claim_no_part_of_the_fleets_limits() -> None:
    limits = Limits(slots=1)
    limits.set({"mail": QueueSettings(rate=5.0)}, {}, 0)
    shares: list[tuple[Any, Any]] = []
    limits.begin = lambda mine, total, now_us: shares.append((mine, total))  # type: ignore[method-assign]
    it = Watched(
        limits=limits, shards_total=lambda: {"default": 8}, shards_beyond=lambda: {"default": 3}
    )
    for shard in range(5):
        lease = Lease("default", ShardId(shard), "me", Epoch(1), 1, Cursor(""), (), {})
        it.scheduler.acquired([lease])
    it.scheduler._pass()
    assert shares == [({"default": 2}, {"default": 8})]


async def test_the_settlements_of_the_journal_are_counted_and_no_others() -> None:
    it = Watched()
    it.own(7)
    assert it.scheduler.settlements == it.scheduler.loads == 0
    assert it.scheduler.fenced.total() == it.scheduler.late_results.total() == 0
    it.scheduler.settled(settlement(7), SettleResult.FENCED)
    assert it.scheduler.settlements == 0
    it.own(9)
    it.scheduler._step = lambda *_: None  # type: ignore[method-assign]
    for count in (1, 2):
        it.scheduler.settled(settlement(9), SettleResult.SETTLED)
        assert it.scheduler.settlements == count
