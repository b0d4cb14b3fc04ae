"""Parked tasks of all shards in the order in which they come due."""

from __future__ import annotations

import pytest

from late.control import Control
from late.errors import ConfigError
from late.model.task import HELD_US
from late.store import open_store
from tests.conformance.kit import own, parked, read_all, task
from tests.integration.control_kit import insert


async def test_the_next_to_come_due_of_all_shards_come_first(url: str) -> None:
    made = {shard: [task(shard, queue=f"q{shard}") for _ in range(4)] for shard in (0, 1, 5)}
    insert(url, *(each for tasks in made.values() for each in tasks))
    dues = {0: (50, 20, HELD_US, 90), 1: (30, 60, 80, 10), 5: (2_000, 1_000, 40, 70)}
    store = open_store(url)
    await store.open()
    try:
        for shard, tasks in made.items():
            owner = await own(store, shard)
            records, cursor = await read_all(store, tasks)
            put_off = [
                parked(due, of=record, held_key="trip-7" if due == HELD_US else None)
                for due, record in zip(dues[shard], records, strict=True)
            ]
            await owner.settle(cursor=cursor, open=(), parked=tuple(put_off))
    finally:
        await store.close()
    with Control(url) as control:
        everything = sorted(due for each in dues.values() for due in each)
        found = control.status.timers()
        assert [each.due_at_us for each in found] == everything
        assert [(each.shard_id, each.held_key) for each in found][-1] == (0, "trip-7")
        assert {(each.queue, each.shard_id) for each in found} == {("q0", 0), ("q1", 1), ("q5", 5)}
        # Also where a page ends: nothing of a shard that was not looked at would have been in it.
        for limit in range(1, 12):
            assert [t.due_at_us for t in control.status.timers(limit=limit)] == everything[:limit]
        later = [each for each in everything if each >= 60]
        assert [each.due_at_us for each in control.status.timers(from_us=60)] == later
        assert control.status.timers(group="never") == []
        with pytest.raises(ConfigError):
            control.status.timers(limit=0)
