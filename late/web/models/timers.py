"""Parked tasks in the order in which they come due: the model of their screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from late.control.views import TimerView
from late.model.task import HELD_US

PAGE = 100
OVERDUE_S = 30.0
"""Owners look at what is overdue every few seconds: what is overdue for longer has no owner, or
one that is held back."""


class Parked(msgspec.Struct, frozen=True):
    """One row."""

    view: TimerView
    level: Literal["warn", "ok"]
    in_s: float | None
    """Until it is due; less than nothing where it is overdue, None where it waits for no time."""


class Timers(msgspec.Struct, frozen=True):
    """One page."""

    rows: tuple[Parked, ...]
    from_us: int | None
    """Where the next page begins; None on the last."""


def timers(found: Sequence[TimerView], now_us: int, *, most: int = PAGE) -> Timers:
    """What was found, which comes in the order of due times and is no more than `most`."""
    rows = tuple(_row(view, now_us) for view in found)
    return Timers(rows, _next(found) if len(found) >= most else None)


def _row(view: TimerView, now_us: int) -> Parked:
    if view.due_at_us >= HELD_US:
        return Parked(view, "ok", None)
    in_s = (view.due_at_us - now_us) / 1e6
    return Parked(view, "warn" if in_s < -OVERDUE_S else "ok", in_s)


def _next(found: Sequence[TimerView]) -> int | None:
    """With the last moment of this page once more, for several may be due in it; but where a whole
    page is of one moment it is passed over, as there would be no end to it otherwise. Nothing
    follows those that wait for no time."""
    first, last = found[0].due_at_us, found[-1].due_at_us
    if last >= HELD_US:
        return None
    return last + 1 if first == last else last
