"""What a shard tells of a closed version of its lane, and until when it drains it."""

from __future__ import annotations

import msgspec

from late.model.lanes import Gate, Left
from late.model.task import Cursor, Epoch, ShardId, TaskId
from late.scheduler.core.lane_drain import LaneDrain
from late.store.base import Lease

DAY_US = 86_400_000_000


def told(drain: LaneDrain) -> list[Left]:
    return [msgspec.json.decode(each.value, type=Left) for each in drain.take_results()]


def test_it_drains_until_it_has_told_that_nothing_is_left() -> None:
    left = ["k"]
    lease = Lease("g", ShardId(0), "w", Epoch(1), 0, Cursor(""), (), {})
    drain = LaneDrain(lease, Gate(), lambda _: left)
    assert not drain
    drain.read(TaskId("closing"), 1)
    assert told(drain) == [Left(("k",))]
    assert drain, "a key is left"
    assert told(drain) == [], "nothing is told twice"
    left.clear()
    drain.look()
    assert drain.due
    assert told(drain) == [Left()]
    assert not drain


def test_what_it_tells_is_kept_for_groups_that_are_far_behind() -> None:
    lease = Lease("g", ShardId(0), "w", Epoch(1), 0, Cursor(""), (), {})
    drain = LaneDrain(lease, Gate(), lambda _: ["k"])
    drain.read(TaskId("closing"), 1)
    [result] = drain.take_results()
    assert result.ttl_us >= 360 * DAY_US
