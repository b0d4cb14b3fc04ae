"""The history of a queue, a group or a target, as its screen begins with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from late.errors import StoreError
from late.model.task import DEFAULT_GROUP
from late.web.models import drawings, history
from late.web.models.drawings import QueueHour
from late.web.models.history import HOUR_US, MINUTE_US, WINDOWS, Kind, Point, Slot
from late.web.models.queues import Row
from late.web.page_context import PageContext, Visitor
from late.web.snapshot import Snapshot
from late.web.usage.past_week import KEYS_MAX


async def history_of(
    context: PageContext, visitor: Visitor, seen: Snapshot, kind: Kind, name: str,
    asked: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Return the model of the history of one queue, group or target.

    Args:
        asked: `span` is the window that is drawn; `group` that of a queue.
    """
    with suppress(StoreError):  # what was read before is shown all the same
        await asyncio.gather(context.last_hour.look(), context.past_week.look())
    groups = _groups(seen, name) if kind == "queue" else []
    group = asked.get("group", "")
    group = group if group in groups else next(iter(groups), "")
    span = asked.get("span", "")
    span = span if span in WINDOWS else "1h"
    windows = {
        window: _points(context, visitor, seen, window, kind, name, group) for window in WINDOWS
    }
    drawn = windows[span]
    waits = _waits(seen, kind, name, group)
    return {
        "windows": [history.figures(window, found) for window, found in windows.items()],
        "span": span, "history_groups": groups, "history_group": group,
        "drawings": drawings.charts(drawn, waits), "heat": drawings.heat(drawn),
        "begin_us": drawn[0].at_us, "end_us": drawn[-1].until_us,
        "reading": not context.past_week.whole,
        # A history of a task keeps no queue: so its list is for who sees all of them.
        "slowest": history.slowest(drawn) if visitor.sees_all and kind != "target" else [],
        "lookback_us": HOUR_US,
    }  # fmt: skip


async def hours_of(
    context: PageContext, seen: Snapshot, rows: Iterable[Row]
) -> dict[tuple[str, str], QueueHour]:
    """Return the last hour of each row of the list of queues, by group and queue."""
    with suppress(StoreError):
        await context.last_hour.look()
    hour = context.last_hour
    keys = {(row.status.group, row.status.queue) for row in rows}
    of = history.by_queue(hour.minutes, keys)
    known = (hour.since_us, hour.until_us)

    def drawn(slots: Mapping[int, Mapping[history.Key, Slot]]) -> QueueHour:
        found = history.points(slots, "1h", now_us=seen.status.now_us, known=known,
                               gaps=hour.gaps, takes=lambda key: True)  # fmt: skip
        return drawings.queue_hour(found)

    return {key: drawn(of.get(key, {})) for key in keys}


def _groups(seen: Snapshot, queue: str) -> list[str]:
    """Return the groups that have tasks of a queue, the default one first."""
    ours = [each for each in seen.status.queues if each.queue == queue and each.group]
    return [q.group for q in sorted(ours, key=lambda q: (q.group != DEFAULT_GROUP, q.group))]


def _waits(seen: Snapshot, kind: Kind, name: str, group: str) -> int | None:
    """Return the tasks that are open or parked now; None if counting stopped, or for a target."""
    if kind == "target":
        return None
    ours = [q for q in seen.status.queues if q.group == group and q.queue == name]
    if kind == "group":
        ours = [q for q in seen.status.queues if q.group == name]
    counts = [count for queue in ours for count in (queue.in_flight, queue.parked)]
    return None if any(each.capped for each in counts) else sum(each.n for each in counts)


def _points(
    context: PageContext, visitor: Visitor, seen: Snapshot, window: str, kind: Kind, name: str,
    group: str,
) -> tuple[Point, ...]:  # fmt: skip
    hour, week = context.last_hour, context.past_week
    takes = history.taker(kind, name, partial(visitor.caller.may, "view"), group)
    if WINDOWS[window][0] == MINUTE_US:
        slots: Mapping[int, Mapping[history.Key, Slot]] = hour.minutes
        return history.points(slots, window, now_us=seen.status.now_us, takes=takes,
                              known=(hour.since_us, hour.until_us), gaps=hour.gaps)  # fmt: skip
    return history.points(week.hours, window, now_us=seen.status.now_us, takes=takes,
                          known=(week.first_us, week.until_us), most=KEYS_MAX)  # fmt: skip
