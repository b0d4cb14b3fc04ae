"""Parked tasks in the order in which they come due: the model of their screen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from late.control.views import TimerView
from late.model.task import HELD_US

PAGE = 100
OVERDUE_S = 30.0
"""Owners read due tasks every few seconds. A task that is overdue for longer than this has no
owner, or one that cannot start it."""


class Parked(msgspec.Struct, frozen=True):
    """One row."""

    view: TimerView
    level: Literal["warn", "ok"]
    in_s: float | None
    """Seconds until it is due; negative if it is overdue, None if it does not wait for a time."""


class Timers(msgspec.Struct, frozen=True):
    """One page."""

    rows: tuple[Parked, ...]
    from_us: int | None
    """The due time at which the next page begins; None on the last page."""


def timers(
    found: Sequence[TimerView],
    now_us: int,
    *,
    most: int = PAGE,
    ours: Callable[[str], bool] = lambda queue: True,
) -> Timers:
    """Make the page of `found`, which is in the order of due times and has at most `most` items.

    Args:
        ours: tells whether tasks of a queue are shown.
    """
    rows = tuple(_row(view, now_us) for view in found if ours(view.queue))
    return Timers(rows, _next(found) if len(found) >= most else None)


def _row(view: TimerView, now_us: int) -> Parked:
    if view.due_at_us >= HELD_US:
        return Parked(view, "ok", None)
    in_s = (view.due_at_us - now_us) / 1e6
    return Parked(view, "warn" if in_s < -OVERDUE_S else "ok", in_s)


def _next(found: Sequence[TimerView]) -> int | None:
    """The due time at which the next page begins.

    It is the last moment of this page, because further tasks may be due at the same moment. If all
    tasks of this page have one moment, the next page begins behind it, or paging would never end.
    No page follows tasks that do not wait for a time.
    """
    first, last = found[0].due_at_us, found[-1].due_at_us
    if last >= HELD_US:
        return None
    return last + 1 if first == last else last
