"""What commands need of a store: parked tasks by id, and dead letters that go back, once."""

from __future__ import annotations

from late.model.task import HELD_US, AttemptError, ShardId
from late.store.base import Revival, Store
from tests.conformance.kit import dead, ids, own, parked, record

SHARD = ShardId(0)
LATE_US = 2**61


async def test_parked_tasks_are_found_by_id_whatever_they_wait_for(store: Store) -> None:
    owner = await own(store)
    far, held, other = parked(2**50), parked(HELD_US, reason="held", held_key="k"), parked(5)
    await owner.settle(parked=(far, held, other))
    wanted = [far.record.task_id, held.record.task_id, record().task_id]

    async def found(shard: int = 0, group: str = "default", limit: int = 10) -> list:
        return await store.due(
            group, ShardId(shard), until_us=HELD_US, limit=limit, task_ids=wanted
        )

    assert sorted(await found(), key=lambda p: p.due_at_us) == [far, held]
    assert len(await found(limit=1)) == 1
    assert await found(shard=1) == []
    assert await found(group="audit") == []


async def test_a_dead_letter_goes_back_with_its_errors_and_without_its_attempts(
    store: Store,
) -> None:
    owner = await own(store)
    errors = (AttemptError(1, 7, "w", "boom"),)
    letter = dead(of=record(payload=b"[1]"), errors=errors, attempts=3, deaths=2)
    await owner.settle(dead=(letter,))

    await owner.settle(revived=(Revival(letter.record.task_id, 77),))

    (back,) = await store.due("default", SHARD, until_us=100, limit=9)
    assert back == parked(77, of=letter.record, reason="retry", errors=errors)
    # The claim is the delete: asked again, there is nothing left to move.
    await owner.settle(revived=(Revival(letter.record.task_id, 99),))
    assert await store.due("default", SHARD, until_us=100, limit=9) == [back]


async def test_a_dead_letter_can_go_back_with_another_payload(store: Store) -> None:
    owner = await own(store)
    letters = [dead(of=record(payload=b"old \x00\xff")) for _ in range(3)]
    await owner.settle(dead=tuple(letters))
    first, second, third = (letter.record.task_id for letter in letters)

    await owner.settle(revived=(Revival(first, 10, b"new \x00\xff"), Revival(second, 20)))

    back = await store.due("default", SHARD, until_us=LATE_US, limit=9)
    assert [(p.record.task_id, p.record.payload) for p in back] == [
        (first, b"new \x00\xff"),
        (second, b"old \x00\xff"),
    ]
    assert third not in ids(back)


async def test_what_dies_in_the_same_settlement_can_go_back(store: Store) -> None:
    owner = await own(store)
    letter = dead()
    await owner.settle(dead=(letter,), revived=(Revival(letter.record.task_id, 30, b"{}"),))

    assert ids(await store.due("default", SHARD, until_us=100, limit=9)) == [letter.record.task_id]


async def test_the_dead_letter_of_another_group_stays(store: Store) -> None:
    owner = await own(store)
    other = await own(store, name="w2", group="audit")
    letter = dead()
    await owner.settle(dead=(letter,))
    await other.settle(dead=(letter,))

    await owner.settle(revived=(Revival(letter.record.task_id, 30),))
    assert await store.due("audit", SHARD, until_us=100, limit=9) == []
    await other.settle(revived=(Revival(letter.record.task_id, 40),))
    assert ids(await store.due("audit", SHARD, until_us=100, limit=9)) == [letter.record.task_id]
