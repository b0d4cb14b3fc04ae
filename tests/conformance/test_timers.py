"""Parked tasks: by due time, by page, by ordering key."""

from __future__ import annotations

from late.model.task import HELD_US, Parked, ShardId
from late.store.base import Store
from tests.conformance.kit import ids, own, parked, record

SHARD = ShardId(0)


async def test_due_is_ascending_and_includes_its_bound(store: Store) -> None:
    owner = await own(store)
    timers = [parked(due_at_us) for due_at_us in (300, 100, 200, 201)]
    await owner.settle(parked=tuple(timers))

    due = await store.due("default", SHARD, until_us=200, limit=10)

    assert [p.due_at_us for p in due] == [100, 200]
    assert await store.due("default", SHARD, until_us=99, limit=10) == []
    assert await store.due("default", ShardId(1), until_us=2**61, limit=10) == []


async def test_due_pages_by_time_and_id(store: Store) -> None:
    owner = await own(store)
    timers = [parked(due_at_us) for due_at_us in (100, 200, 200, 200, 300)]
    await owner.settle(parked=tuple(timers))
    expected = sorted(timers, key=lambda p: (p.due_at_us, p.record.task_id))

    found, after = [], (0, "")
    while page := await store.due("default", SHARD, until_us=1000, limit=2, after=after):
        assert len(page) <= 2
        found += page
        after = (page[-1].due_at_us, page[-1].record.task_id)

    assert found == expected


async def test_due_times_keep_every_microsecond(store: Store) -> None:
    owner = await own(store)
    exact = 1_700_000_000_123_457
    await owner.settle(parked=(parked(exact), parked(exact + 1)))

    (due,) = await store.due("default", SHARD, until_us=exact, limit=10)

    assert due.due_at_us == exact


async def test_only_the_timer_that_is_taken_away_goes(store: Store) -> None:
    """Its group, its shard, its due time and its task all count."""
    owner, audit = await own(store), await own(store, group="audit")
    elsewhere = await own(store, 1)
    gone = parked(100)
    again, beside = parked(101, of=gone.record), parked(100)
    of_shard_1 = parked(100, of=record(1))
    await owner.settle(parked=(gone, again, beside))
    await audit.settle(parked=(gone,))
    await elsewhere.settle(parked=(of_shard_1,))

    await owner.settle(unparked=((100, gone.record.task_id), (100, of_shard_1.record.task_id)))

    async def due(group: str, shard: int) -> list[Parked]:
        return await store.due(group, ShardId(shard), until_us=1000, limit=10)

    assert await due("default", 0) == [beside, again]
    assert await due("audit", 0) == [gone]
    assert await due("default", 1) == [of_shard_1]


async def test_held_tasks_never_fall_due(store: Store) -> None:
    owner = await own(store)
    held = parked(HELD_US, reason="held", held_key="trip-1")
    await owner.settle(parked=(held,))

    assert await store.due("default", SHARD, until_us=HELD_US - 1, limit=10) == []
    assert await store.due("default", SHARD, until_us=0, limit=10, held_key="trip-1") == [held]


async def test_a_keys_tasks_come_in_their_own_order(store: Store) -> None:
    owner = await own(store)
    # Neither in the order of their due times, nor of their ids, nor of insertion.
    first = parked(HELD_US, of=record(sequence=3), held_key="trip-1", reason="held")
    second = parked(50, of=record(sequence=9), held_key="trip-1", reason="retry")
    ties = sorted(
        (parked(HELD_US, of=record(sequence=20), held_key="trip-1") for _ in range(2)),
        key=lambda p: p.record.task_id,
    )
    foreign = parked(40, of=record(sequence=1), held_key="trip-2")
    free = parked(40, of=record(sequence=2))
    await owner.settle(parked=(second, *ties[::-1], foreign, first, free))

    async def of_key(limit: int) -> list:
        return await store.due("default", SHARD, until_us=0, limit=limit, held_key="trip-1")

    assert await of_key(10) == [first, second, *ties]
    assert await of_key(2) == [first, second]
    assert ids(await store.due("default", SHARD, until_us=1000, limit=9)) == sorted(
        ids([foreign, free])
    ) + ids([second])
