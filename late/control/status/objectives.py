"""The objectives of queues and groups: which part of the starts was in time, by the journal.

A queue with `objective_s` promises that `SHARE` of its attempts start within so many seconds of
when they are due, and a group with one the same of all queues together. The rest is its error
budget. Its burn rate is the part that was late, in parts of the budget: at 1 the budget lasts just
as long as the journal is looked at.

Settlements are read from the latest backwards, of one shard after the other. Tasks are spread over
shards by chance, so where the journal is long some whole shards stand for all of their group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from sqlalchemy import Connection, Engine, select

from late.control.groups.settings import all_of as settings_of_groups
from late.control.sql.knob_rows import of_queues
from late.control.sql.rows import now_us
from late.control.status_views import Burn, ObjectiveView
from late.control.views import QueueStatus
from late.errors import InvalidPolicy
from late.model.group_settings import GroupSettings
from late.model.histogram import bucket
from late.model.queue_settings import QueueSettings
from late.model.task import CONTROL_QUEUE, ENQUEUED, Usage
from late.schema.engine import reading
from late.schema.tables import group, lease, settlement

SHARE = 0.99
"""The part of the starts that must be in time."""
WINDOWS = {"5m": 300.0, "30m": 1_800.0, "1h": 3_600.0, "6h": 21_600.0, "7d": 604_800.0}
BUDGET = "7d"
"""The window that the error budget is for."""
ROWS, ROWS_MAX = 1_000, 20_000
"""Settlements of one statement, and of one group."""
_usage_of = msgspec.json.Decoder(tuple[Usage, ...]).decode
Key = tuple[str, str]
"""(group, queue); `WHOLE` for all queues of a group together."""
WHOLE = ""


class Starts(msgspec.Struct):
    """Attempts that started in one window."""

    started: int = 0
    late: int = 0


class Counted(msgspec.Struct):
    """The starts of one group."""

    windows: dict[tuple[str, str], Starts]
    """By queue and window."""
    shards: int = 0
    """The shards that were read."""
    shards_all: int = 0


def objectives(
    engine: Engine,
    seen: Iterable[QueueStatus],
    settings: Mapping[str, QueueSettings] | None = None,
    groups: Mapping[str, GroupSettings] | None = None,
) -> tuple[ObjectiveView, ...]:
    """Judge each group that has an objective, and each of its queues that has one, ascending by
    both. What is paused is not judged.

    Args:
        seen: the queues of a status that was just read: what waits now counts too.
        settings: of the queues, if they were just read.
        groups: the settings of groups, if they were just read.
    """
    none = groups is not None and all(each.objective_s is None for each in groups.values())
    if none and settings is not None and not _limits(settings):
        return ()
    with reading(engine) as connection:
        try:
            known = of_queues(connection) if settings is None else settings
            limits, whole = _limits(known), _limits_of_groups(connection)
        except InvalidPolicy:  # a row of a later version: the rest of the look is told all the same
            return ()
        if not limits and not whole:
            return ()
        now = now_us(connection)
        shards: dict[str, list[int]] = defaultdict(list)
        for row in connection.execute(select(lease.c.consumer_group, lease.c.shard_id)):
            shards[row.consumer_group].append(row.shard_id)
        counted = {}
        for name, of in shards.items():
            ours = limits | ({WHOLE: whole[name]} if name in whole else {})
            counted[name] = _count(connection, name, of, ours, now)
    return tuple(view(counted, limits, _oldest(seen, known, whole), whole))


def _oldest(
    seen: Iterable[QueueStatus], known: Mapping[str, QueueSettings], whole: Mapping[str, float]
) -> dict[Key, float]:
    """Return the age of the oldest task of each queue, and of those groups: there without the
    queues that are paused. Pure."""
    found: dict[Key, float] = {(name, WHOLE): 0.0 for name in whole}
    for each in seen:
        age_s = found[each.group, each.queue] = each.oldest_age_s or 0.0
        if each.group in whole and not known.get(each.queue, QueueSettings()).paused:
            found[each.group, WHOLE] = max(found[each.group, WHOLE], age_s)
    return found


def _limits_of_groups(connection: Connection) -> dict[str, float]:
    kept = {
        name: each.objective_s
        for name, each in settings_of_groups(connection).items()
        if each.objective_s is not None
    }
    if not kept:
        return {}
    rows = connection.execute(select(group.c.name, group.c.paused)).all()
    return {row.name: kept[row.name] for row in rows if row.name in kept and row.paused == 0}


def _limits(settings: Mapping[str, QueueSettings]) -> dict[str, float]:
    return {
        name: each.objective_s
        for name, each in settings.items()
        if each.objective_s is not None and not each.paused
    }


def view(
    counted: Mapping[str, Counted],
    limits: Mapping[str, float],
    oldest: Mapping[Key, float],
    whole: Mapping[str, float] | None = None,
) -> Iterator[ObjectiveView]:
    """Make the answer of each (group, queue) that has started something or has tasks, and of each
    group of `whole`. Pure."""
    known = {(name, queue) for name, of in counted.items() for queue, _ in of.windows}
    known |= {key for key in oldest if key[1] in limits or key[1] == WHOLE}
    for name, queue in sorted(known):
        of = counted.get(name, Counted({}))
        limit_s = (whole or {})[name] if queue == WHOLE else limits[queue]
        overdue_s = max(0.0, oldest.get((name, queue), 0.0) - limit_s)
        starts = {window: of.windows.get((queue, window), Starts()) for window in WINDOWS}
        burns = {
            window: _burn(starts[window], overdue_s, span_s) for window, span_s in WINDOWS.items()
        }
        budget = starts[BUDGET]
        yield ObjectiveView(
            group=name, queue=queue, objective_s=limit_s, share=SHARE, started=budget.started,
            late=budget.late, overdue_s=overdue_s, budget_left=max(0.0, 1.0 - burns[BUDGET]),
            burns=tuple(Burn(name, rate, starts[name].started) for name, rate in burns.items()),
            shards=of.shards, shards_all=of.shards_all,
        )  # fmt: skip


def _burn(starts: Starts, overdue_s: float, span_s: float) -> float:
    """Return the burn rate. If nothing has started and the oldest is overdue, all is late, for as
    much of the window as it is overdue."""
    if starts.started:
        return starts.late / starts.started / (1 - SHARE)
    return min(1.0, overdue_s / span_s) / (1 - SHARE)


def _count(
    connection: Connection, group: str, shards: list[int], limits: Mapping[str, float], now: int
) -> Counted:
    """Count the starts of one group, shard by shard until enough was read."""
    least = {queue: bucket(round(seconds * 1e6)) for queue, seconds in limits.items()}
    found, left = Counted({}, shards_all=len(shards)), ROWS_MAX
    for shard_id in sorted(shards):
        if left <= 0:
            break
        left -= _read(connection, (group, shard_id), least, found.windows, now)
        found.shards += 1
    return found


def _read(
    connection: Connection,
    shard: tuple[str, int],
    least: Mapping[str, int],
    windows: dict[tuple[str, str], Starts],
    now: int,
) -> int:
    """Add the starts of one shard; return the number of its settlements."""
    since_us, read = now - round(WINDOWS[BUDGET] * 1e6), 0
    before: int | None = None
    of_shard = (settlement.c.consumer_group == shard[0], settlement.c.shard_id == shard[1])
    query = select(settlement.c.seq, settlement.c.settled_at_us, settlement.c.usage)
    query = query.where(*of_shard).order_by(settlement.c.seq.desc()).limit(ROWS)
    while True:
        more = query if before is None else query.where(settlement.c.seq < before)
        rows = connection.execute(more).all()
        for row in rows:
            if row.settled_at_us < since_us:
                return read
            read, before = read + 1, row.seq
            add(windows, row.usage, now - row.settled_at_us, least)
        if len(rows) < ROWS:
            return read


def add(
    windows: dict[tuple[str, str], Starts], text: str | None, ago_us: int, least: Mapping[str, int]
) -> None:
    """Add the starts of one settlement; buckets above `least` are late, by queue. Pure."""
    try:
        usage = _usage_of(text or "[]")
    except msgspec.MsgspecError:
        return  # `late verify` tells of it
    for each in usage:
        if each.outcome == ENQUEUED or each.queue == CONTROL_QUEUE or not each.waiting:
            continue
        started = sum(count for _, count in each.waiting)
        for key in {each.queue, WHOLE} & least.keys():
            late = sum(count for index, count in each.waiting if index > least[key])
            for name, span_s in WINDOWS.items():
                if ago_us <= span_s * 1e6:
                    of = windows.setdefault((key, name), Starts())
                    of.started, of.late = of.started + started, of.late + late
