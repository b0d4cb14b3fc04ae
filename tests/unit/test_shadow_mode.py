"""A worker of shadows: which groups it works, and at which pace it takes tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from late.model.replay import Replay
from late.model.shadow import Shadow
from late.model.task import Cursor, Reads, Record, ShardId, TaskId
from late.store.base import Lease, Membership, Page, WorkerInfo
from late.tailer.membership import worked
from late.worker.shadow import SHORTEST_US, ShadowMode

SHARD = ShardId(0)
KEY = ("try", SHARD)
SINCE_US, BEGAN_US = 1_000_000_000, 5_000_000_000


class World:
    """A mode on a clock that the test moves."""

    def __init__(self, *, on: bool = True, owned: int = 1, **settings: Any) -> None:
        self.now_us = BEGAN_US
        self.woken = 0
        self.mode = ShadowMode(
            ("try",),
            owned=lambda group: owned,
            reads=lambda key: Reads(frozenset({"orders"}), shadow=True),
            now_us=lambda: self.now_us,
            wake=self.wake,
        )
        if on:
            shadow = Shadow("default", 2**60, SINCE_US, began_us=BEGAN_US, **settings)
            self.mode.shadows = {"try": shadow}

    def wake(self) -> None:
        self.woken += 1

    def taken(self, page: Page) -> list[int]:
        """The positions that are handed on."""
        pages = self.mode.paced("try", [page])
        return [record.position for each in pages for record in each.records]


def page(*created_s: float, queue: str = "orders", **changes: Any) -> Page:
    records = [
        Record(0, n, TaskId(f"t{n}"), queue, "ship", b"", None, None,
               SINCE_US + round(at * 1e6), n)
        for n, at in enumerate(created_s)
    ]  # fmt: skip
    made = Page(SHARD, records, Cursor("end"), "w", more=True, now_us=0)
    return msgspec.structs.replace(made, **changes)


def test_without_a_pace_a_page_goes_on_as_it_is() -> None:
    world = World()
    made = page(0, 5, 10)
    assert world.mode.paced("try", [made])[0] is made
    assert World(on=False, speed=1.0).mode.paced("try", [made])[0] is made


async def test_tasks_come_at_the_pace_at_which_they_were_created() -> None:
    """At ten times the pace a task of the fifth second is due after half a second."""
    world = World(speed=10.0)
    made = page(0, 0, 5, 10)
    (part,) = world.mode.paced("try", [made])
    assert [record.position for record in part.records] == [0, 1]
    assert (part.cursor, part.more) == ("w@1,t1", False)
    assert world.mode.wanted({KEY: Cursor("w@1,t1")}) == {}, "not before the next is due"
    world.now_us += 499_999
    assert world.mode.wanted({KEY: Cursor("")}) == {}
    world.now_us += 1
    assert world.mode.wanted({KEY: Cursor("")}) == {KEY: ""}
    assert world.taken(page(5, 10)) == [0]
    world.now_us += 500_000
    assert world.mode.paced("try", [page(10)])[0].cursor == "end"
    world.mode.close()


async def test_nothing_due_is_no_page_and_is_looked_at_again() -> None:
    world = World(speed=1.0)
    assert world.mode.paced("try", [page(3_600)]) == []
    world.now_us += 1_000_000
    assert world.mode.wanted({KEY: Cursor("")}) != {}, "a second later at the latest"
    assert world.mode.paced("try", [page(1.000_001)]) == []
    async with asyncio.timeout(60):
        while not world.woken:
            world.now_us += SHORTEST_US
            await asyncio.sleep(0)
    world.mode.close()


async def test_a_rate_is_shared_by_the_shards() -> None:
    """Of 100 a second half of the shards has 50: five at once, and then one in 20 ms."""
    world = World(rate=100.0)
    seen = Membership(0, (), (), tuple(map(ShardId, range(2))), groups=frozenset({"try"}),
                      shadows=frozenset({"try"}))  # fmt: skip
    world.mode.view(seen)
    assert world.taken(page(*range(10))) == [0, 1, 2, 3, 4]
    assert world.taken(page(*range(10))) == []
    world.now_us += 40_000
    assert world.taken(page(*range(10))) == [0, 1]
    assert world.taken(page(*range(10), queue="mail")) == list(range(10)), "it is passed over"
    world.mode.close()


def lease(**reads: Any) -> Lease:
    made: Any = Lease("try", SHARD, "w", 1, 1, Cursor(""), (), {}, reads=Reads(**reads))  # type: ignore[arg-type]
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("on", [False, True])
def test_a_worker_works_groups_of_its_own_kind(on: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The others are to it as paused ones, and count for no limit."""
    mode = World(on=on).mode
    workers = (WorkerInfo("a", "", ("default",)), WorkerInfo("b", "", ("try",)))
    seen = Membership(0, workers, (), (SHARD,), groups=frozenset({"default", "try"}),
                      shadows=frozenset({"try"}))  # fmt: skip
    mine = worked(mode.view(seen))
    assert {group for each in mine.workers for group in each.groups} == (
        {"try"} if on else {"default"}
    )
    assert mode.fitting([lease(shadow=True), lease(shadow=False)]) == [lease(shadow=on)]
    mode.view(seen)
    assert len(caplog.records) == (0 if on else 1)
    gone = msgspec.structs.replace(seen, shadows=frozenset())
    assert mode.view(gone).groups == (frozenset() if on else {"default", "try"})
    assert "is no shadow any more" in caplog.text or not on


def replay_world(rate: float | None, *, owned: int = 1) -> World:
    """A worker of a real group that was reset at `BEGAN_US`."""
    world = World(on=False, owned=owned)
    world.mode._reads = lambda key: Reads(replay_us=BEGAN_US)
    world.mode.fitting([lease(replay_us=BEGAN_US)])
    if rate is not None:
        world.mode.follow_replays({"try": Replay(BEGAN_US, rate)})
    return world


async def test_a_replay_begins_as_many_in_a_second_as_its_rate_says() -> None:
    world = replay_world(rate=10.0)
    made = page(*range(50))
    assert world.taken(made) == [0]
    assert world.mode.wanted({KEY: Cursor("")}) == {}
    world.now_us += 100_000
    assert world.taken(made) == [0]
    world.mode.close()


async def test_a_task_that_is_newer_than_the_reset_has_no_pace() -> None:
    world = replay_world(rate=0.001)
    new = (BEGAN_US - SINCE_US) / 1e6
    made = page(0, new, new, new)
    assert len(world.taken(made)) == 4
    assert world.taken(page(new, new, 0, new)) == [0, 1], "the next old one has to wait"
    world.mode.close()


async def test_a_replay_waits_until_its_pace_is_known() -> None:
    world = replay_world(rate=None)
    assert world.mode.lacks_replays
    assert world.taken(page(0, 1)) == []
    world.mode.follow_replays({"try": Replay(BEGAN_US - 1, None)})
    assert world.mode.lacks_replays, "that was the reset before"
    world.mode.follow_replays({"try": Replay(BEGAN_US)})
    assert not world.mode.lacks_replays
    assert world.taken(page(0, 1)) == [0, 1]
    world.mode.close()


def test_a_group_that_is_gone_is_not_asked_for_again() -> None:
    world = replay_world(rate=None)
    world.mode.follow_replays({})
    assert not world.mode.lacks_replays
