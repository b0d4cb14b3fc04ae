"""Compare a shadow with the real group: outcomes, errors and run times, by task name.

The counts come from the journals of both groups, so they are sums; a settlement counts from the
moment on that the shadow begins at. The tasks that ended otherwise are found by the dead letters of
both, and by the parked tasks that have failed. Others that one of the two has not ended yet are not
compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec
from sqlalchemy import Connection, Engine, Table, and_, func, or_, select

from late.control.groups import lag, shadow
from late.control.groups.comparison import (
    Comparison,
    RunCounts,
    TaskComparison,
    TaskDifference,
)
from late.control.sql.last_settlement import journals
from late.control.sql.rows import errors_of, open_of
from late.control.status import task as tasks
from late.control.status.usage import Key, usage_since
from late.control.views import Count
from late.model.histogram import percentile_us
from late.model.task import ENQUEUED, Usage
from late.schema.engine import reading
from late.schema.tables import dead, timer

LIMIT = 50
"""The differences that are returned, unless another number is asked for."""
LOOK_MAX = 1_000
"""The failed tasks of one group that are looked at, the oldest first."""
CHUNK = 500
COUNT_MAX = 10_000
"""Counting parked tasks stops here."""
ERROR_CHARS = 500
_FAILED = or_(
    timer.c.reason.in_(("retry", "unknown")),
    # In an outage, at a limit or behind its key a task that has failed waits under another reason.
    and_(timer.c.errors.is_not(None), timer.c.reason != "snooze"),
)
"""A parked task that did not go well."""
_ENDED = {"settled": "done", "unknown": "done", "dead": "dead"}
"""The end of a task that did not fail there: one whose row is gone was settled by every group."""
Name = tuple[str, str]
"""(queue, task name)."""


class _Failed(msgspec.Struct, frozen=True):
    """A task that did not go well in one group."""

    task_id: str
    name: Name
    state: str
    error: str
    created_at_us: int


def compare(engine: Engine, name: str, *, limit: int = LIMIT) -> Comparison:
    """Compare the shadow `name` with the group that it is a shadow of.

    Args:
        limit: the most differences that are returned.

    Raises:
        ConfigError: there is no such group, or it is no shadow.
    """
    known = shadow.of(engine, name)
    usages = _usages(engine, (name, known.of), known.since_us)
    with reading(engine) as connection:
        ours = _failed(connection, name, 0)
        real = _failed(connection, known.of, known.since_us)
        here = _of(connection, name, real.keys() - ours.keys())
        there = _of(connection, known.of, ours.keys() - real.keys())
        unended = _unended(connection, name)
    # A failed task that was not among the first ones of its group has failed in both.
    only_ours = [each for task, each in ours.items() if task not in real and task not in there]
    only_real = [each for task, each in real.items() if task not in ours and task not in here]
    view = lag.groups(engine, name=name)[0]
    only_real = [each for each in only_real if view.queues is None or each.name[0] in view.queues]
    found = [*_differences(engine, known.of, only_ours, limit, ours=True)]
    made_us = view.created_at_us or 0
    found += _differences(engine, name, only_real, limit - len(found), ours=False, since_us=made_us)
    capped = max(len(ours), len(real)) >= LOOK_MAX or len(only_ours) + len(only_real) > limit
    return Comparison(
        shadow=name,
        real=known.of,
        since_us=known.since_us,
        until_us=known.until_us,
        tasks=tuple(_tasks(usages[name], usages[known.of], found)),
        differences=tuple(found),
        capped=capped,
        unread=view.lag,
        unended=unended,
    )


def _unended(connection: Connection, group: str) -> Count:
    """Count the tasks that a group has read and not ended: the open ones and the parked ones."""
    first = select(timer.c.task_id).where(timer.c.consumer_group == group).limit(COUNT_MAX)
    parked = connection.execute(select(func.count()).select_from(first.subquery())).scalar_one()
    found = journals(connection).items()
    opened = sum(len(open_of(each.open)) for (name, _), each in found if name == group)
    return Count(parked + opened, parked >= COUNT_MAX)


# --- counts ---------------------------------------------------------------------------------------


def _usages(engine: Engine, names: Collection[str], since_us: int) -> Mapping[str, list[Usage]]:
    """Read the usage of these groups since that moment."""
    found: dict[str, list[Usage]] = defaultdict(list)
    read: Mapping[Key, int] = {}
    while True:
        part = usage_since(engine, since_us, read)
        if part.anew:
            found.clear()
        for group, usage in part.usage:
            if group in names:
                found[group].append(usage)
        read = part.read
        if part.whole:
            return found


def _tasks(
    ours: Iterable[Usage], real: Iterable[Usage], found: Iterable[TaskDifference]
) -> Iterator[TaskComparison]:
    """Yield one row for each name that the shadow has run, or that ends otherwise there."""
    mine, theirs = _by_name(ours), _by_name(real)
    differ = Counter((each.queue, each.name) for each in found)
    for name in sorted(mine.keys() | differ.keys()):
        shadow_counts, real_counts = counts(mine.get(name, ())), counts(theirs.get(name, ()))
        ratio = None
        if shadow_counts.mean_s is not None and real_counts.mean_s:
            ratio = shadow_counts.mean_s / real_counts.mean_s
        yield TaskComparison(*name, shadow_counts, real_counts, ratio, differ[name])


def _by_name(usages: Iterable[Usage]) -> dict[Name, list[Usage]]:
    found: dict[Name, list[Usage]] = defaultdict(list)
    for usage in usages:
        if usage.outcome != ENQUEUED:
            found[usage.queue, usage.name].append(usage)
    return found


def counts(usages: Iterable[Usage]) -> RunCounts:
    """Add up the usage of one name in one group."""
    ends: Counter[str] = Counter()
    busy: Counter[int] = Counter()
    attempts = busy_us = 0
    for usage in usages:
        ends[usage.outcome] += usage.count
        attempts += usage.attempts
        busy_us += usage.busy_us
        busy.update(dict(usage.busy))
    p95_us = percentile_us(busy, 0.95)
    return RunCounts(
        done=ends["done"],
        dead=ends["dead"],
        other=ends["expired"] + ends["discarded"] + ends["cancelled"],
        failed=ends["retried"] + ends["stalled"],
        attempts=attempts,
        mean_s=busy_us / attempts / 1e6 if attempts else None,
        p95_s=None if p95_us is None else p95_us / 1e6,
    )


# --- differences ----------------------------------------------------------------------------------


def _failed(connection: Connection, group: str, since_us: int) -> dict[str, _Failed]:
    """Read the tasks of a group that are dead, or have failed and are to be tried again."""
    rows = select(dead).where(dead.c.consumer_group == group, dead.c.created_at_us >= since_us)
    found = [_row(row, "dead") for row in connection.execute(rows.limit(LOOK_MAX))]
    parked = select(timer).where(
        timer.c.consumer_group == group,
        timer.c.created_at_us >= since_us,
        _FAILED,
    )
    found += [
        _row(row, "unknown" if row.reason == "unknown" else "retries")
        for row in connection.execute(parked.limit(LOOK_MAX))
    ]
    found.sort(key=lambda each: (each.created_at_us, each.task_id))
    return {each.task_id: each for each in found[:LOOK_MAX]}


def _row(row: object, state: str) -> _Failed:
    columns = row._mapping  # type: ignore[attr-defined]
    errors = errors_of(columns["errors"])
    text = errors[-1].error[:ERROR_CHARS] if errors else str(columns["reason"])
    name = (str(columns["queue"]), str(columns["name"]))
    return _Failed(str(columns["task_id"]), name, state, text, columns["created_at_us"])


def _of(connection: Connection, group: str, task_ids: Collection[str]) -> set[str]:
    """Return those of the tasks that did not go well in a group either."""
    found: set[str] = set()
    ids = sorted(task_ids)
    for start in range(0, len(ids), CHUNK):
        some = ids[start : start + CHUNK]
        found.update(_ids(connection, dead, group, some))
        found.update(_ids(connection, timer, group, some))
    return found


def _ids(connection: Connection, table: Table, group: str, task_ids: list[str]) -> Iterator[str]:
    query = select(table.c.task_id).where(
        table.c.consumer_group == group, table.c.task_id.in_(task_ids)
    )
    if table is timer:
        query = query.where(_FAILED)
    for task_id in connection.execute(query).scalars():
        yield str(task_id)


def _differences(
    engine: Engine,
    other: str,
    failed: Iterable[_Failed],
    limit: int,
    *,
    ours: bool,
    since_us: int = 0,
) -> Iterator[TaskDifference]:
    """Yield those tasks of one group that have ended well in the `other`, up to `limit`.

    Args:
        since_us: the `other` was made then. An older task whose row is gone may have gone before it
            was read there, so nothing is said of it.
    """
    for each in failed:
        if limit <= 0:
            return
        (there,) = tasks.show(engine, each.task_id, group=other).groups
        ended = there.outcome or _ENDED.get(there.state)
        if ended is None or (there.state == "unknown" and each.created_at_us < since_us):
            continue  # it waits there, is not for that group, or nobody knows
        limit -= 1
        shadow_state, real = (each.state, ended) if ours else (ended, each.state)
        yield TaskDifference(each.task_id, *each.name, shadow_state, real, each.error)
