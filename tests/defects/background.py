"""Defects in what the background may have."""

from __future__ import annotations

from typing import Any

from late.scheduler.core.state import CoreState
from late.scheduler.limits import background
from late.scheduler.limits.ready_queues import ReadyQueues
from tests.defects.components import replace
from tests.defects.defect import Defect

FIRST_WORLD = 920_000
"""Worlds from 800,000 on have background tasks."""
UNIT = "tests/unit/test_background_slots.py::"


def ends_are_not_counted() -> None:
    """What has run keeps its part of the slots for good."""

    def ran(self: Any, entry: Any) -> None:
        self.running -= 1

    replace(CoreState, "ran", ran)


def none_while_slow() -> None:
    """While settlements are slow no background starts at all, so that none is settled either."""

    def room(*args: int, slots: int, slow: bool) -> int:
        return 0 if slow else old(*args, slots=slots, slow=slow)

    old = replace(background, "background_room", room)


def every_slot() -> None:
    """The background may have all slots of a pool."""
    replace(background, "reserve", lambda slots: 0)


def fills_the_window() -> None:
    """A backlog of the background stays in the window until it has run."""
    replace(ReadyQueues, "background_surplus", lambda self, keep: [])


DEFECTS = (
    Defect(
        "background-for-ever", "background that has ended is counted as if it ran",
        ends_are_not_counted, "worlds", r"S23:|E1:", worlds=20, first=FIRST_WORLD,
    ),
    Defect(
        "background-without-floor", "while settlements are slow no background starts",
        none_while_slow, UNIT + "test_slow_settlements_hold_the_background_back_and_leave_it_one",
        r"assert ",
    ),
    Defect(
        "background-everywhere", "background may have all slots of a pool",
        every_slot, UNIT + "test_background_leaves_slots_for_the_foreground", r"assert ",
    ),
    Defect(
        "background-fills-window", "a backlog of the background keeps its shard from reading on",
        fills_the_window, UNIT + "test_the_foreground_behind_a_backlog_is_read", r"assert ",
    ),
)  # fmt: skip
