"""What the log says of a hand-over."""

from __future__ import annotations

import logging

import pytest

from late.testing.clock import VirtualClock
from tests.unit.lease_keeper_kit import Fleet, placed, running


async def test_the_log_has_one_line_for_all_shards_of_a_hand_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with VirtualClock() as clock, caplog.at_level(logging.INFO, logger="late.tailer"):
        fleet = Fleet(clock, shards=10)
        async with running(fleet):
            await fleet.show(fleet.view())
            [line] = [each.getMessage() for each in caplog.records]
            assert line == (
                "10 shards acquired: default/0, default/1, default/2, default/3, default/4"
                " and 5 more"
            )
            caplog.clear()
            theirs = placed("peer", ["me", "peer"], shards=10)
            for _ in range(3):
                await fleet.show(fleet.view("peer"))
            [line] = [each.getMessage() for each in caplog.records]
            assert line.startswith(f"{len(theirs)} shard")
            assert f" released: default/{theirs[0]}" in line
    released = [values["shard"] for name, values in fleet.heard if name == "lease_released"]
    assert released == theirs, "each has its event all the same"
