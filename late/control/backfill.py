"""Backfill a schedule: enqueue the ticks of a past time that were not enqueued.

A tick has the same id whoever enqueues it. So a tick that a table still knows is left out, and two
backfills of one time enqueue it once. Only ticks before the next due time are looked at, since the
others belong to the owner of the shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice, takewhile

import msgspec
from sqlalchemy import Connection, Engine, func, insert, select, update

from late.control import audit
from late.control.schedule_rows import one, schedule_of
from late.control.sql.rows import log_of, log_table_of, now_us
from late.errors import ConfigError, Conflict
from late.model.cron import dues_us
from late.model.task import NewTask, Schedule, TaskId
from late.model.ticks import tick
from late.payload.terms import is_bound
from late.schema.engine import reading, write
from late.schema.tables import dead, group, history, result, schedule, timer

TICKS_MAX = 1_000
"""Ticks of one backfill: databases bound a transaction."""
BYTES_MAX = 16 * 2**20
"""Bytes of the payloads of one backfill."""
SPAN_US_MAX = 366 * 86_400_000_000
CHUNK = 250
"""Rows or ids of one statement."""
TRIES = 5


class Backfill(msgspec.Struct, frozen=True):
    """The effect of a backfill; with `dry_run` the effect that it would have."""

    schedule: str
    dry_run: bool
    ticks: int
    """Due times in that time, by the present rule."""
    known: int
    """Those of them whose task a table still knows: they are left out."""
    enqueued: int
    first_us: int | None = None
    """The first due time that is enqueued."""
    last_us: int | None = None
    """The last due time that is enqueued."""
    kept_us: int | None = None
    """The time at which the first task of the log of this shard was created. A task of an earlier
    tick may have run and be gone. None: there is none."""


class _Changed(Exception):
    """The schedule changed between the look and the change."""


class _Plan(msgspec.Struct, frozen=True):
    updated_at_us: int
    tasks: Sequence[NewTask]
    found: Backfill


def backfill(
    engine: Engine, name: str, since_us: int, until_us: int | None = None, *, dry_run: bool = False
) -> Backfill:
    """Enqueue the ticks from `since_us` until before `until_us` (by default now).

    The rule and the zone are those that the schedule has now. Ticks are enqueued at once, and start
    as limits of their queue allow. They do not count for the overlap of later ticks.

    Raises:
        ConfigError: there is no such schedule, or the time has no end, or has too many ticks.
        Conflict: the schedule ticks again and again during this.
    """
    for _ in range(TRIES):
        with reading(engine) as connection:
            plan = _plan(connection, name, since_us, until_us, dry_run=dry_run)
        if dry_run or not plan.tasks:
            return plan.found
        try:
            write(engine, partial(_apply, name=name, plan=plan))
        except _Changed:
            continue
        return plan.found
    raise Conflict(f"schedule {name!r} changes all the time: pause it, then try again")


def _plan(
    connection: Connection, name: str, since_us: int, until_us: int | None, *, dry_run: bool
) -> _Plan:
    row = one(connection, name, lock=False)
    spec = schedule_of(row)
    now = now_us(connection)
    until = now if until_us is None else until_us
    if until <= since_us:
        raise ConfigError("the time ends before it begins: give a later end")
    if until - since_us > SPAN_US_MAX:
        raise ConfigError("a backfill is of a year at most: give a later beginning")
    if since_us > now:
        raise ConfigError("that time has not come: a backfill enqueues ticks of the past")
    due_us = spec.next_due_at_us
    ticks = _ticks(spec, since_us, min(until, now, now if due_us is None else due_us))
    known = _known(connection, spec.shard_id, [task.task_id for task in ticks.values()])
    new = {due: task for due, task in ticks.items() if task.task_id not in known}
    log = log_of(connection)
    first = select(func.min(log.c.created_at_us)).where(log.c.shard_id == spec.shard_id)
    found = Backfill(
        name, dry_run, len(ticks), len(ticks) - len(new), len(new),
        min(new, default=None), max(new, default=None), connection.execute(first).scalar(),
    )  # fmt: skip
    return _Plan(row["updated_at_us"], list(new.values()), found)


def _ticks(spec: Schedule, since_us: int, before_us: int) -> dict[int, NewTask]:
    """Return the tasks of the due times from `since_us` until before `before_us`.

    Raises:
        ConfigError: they are too many for one transaction.
    """
    most = max(1, min(TICKS_MAX, BYTES_MAX // max(1, len(spec.payload))))
    later = dues_us(spec.rule, spec.zone, anchor_us=spec.anchor_us, after_us=since_us - 1)
    dues = list(islice(takewhile(lambda due_us: due_us < before_us, later), most + 1))
    if len(dues) > most:
        raise ConfigError(
            f"schedule {spec.name!r} has more than {most} ticks in that time: backfill a shorter "
            "one, then the next"
        )
    bound = is_bound(spec.payload)
    return {due_us: tick(spec, due_us, is_bound=bound) for due_us in dues}


def _known(connection: Connection, shard_id: int, ids: Sequence[TaskId]) -> set[TaskId]:
    """Return those of the tasks that a table still knows."""
    log, found = log_of(connection), set[TaskId]()
    groups = select(group.c.name)
    for at in range(0, len(ids), CHUNK):
        some = ids[at : at + CHUNK]
        looks = [select(log.c.task_id).where(log.c.shard_id == shard_id, log.c.task_id.in_(some))]
        for table in (timer, dead):
            here = table.c.consumer_group.in_(groups), table.c.shard_id == shard_id
            looks.append(select(table.c.task_id).where(*here, table.c.task_id.in_(some)))
        for table in (result, history):
            here = table.c.consumer_group.in_(groups), table.c.task_id.in_(some)
            looks.append(select(table.c.task_id).where(*here))
        for look in looks:
            found.update(TaskId(str(task_id)) for task_id in connection.execute(look).scalars())
    return found


def _apply(connection: Connection, name: str, plan: _Plan) -> None:
    row = one(connection, name)
    if row["updated_at_us"] != plan.updated_at_us:
        raise _Changed
    # Another backfill, which has looked before this one, finds another time here.
    moved = {"updated_at_us": max(now_us(connection), plan.updated_at_us + 1)}
    connection.execute(update(schedule).where(schedule.c.name == name).values(**moved))
    values = [
        {
            "shard_id": task.shard_id,
            "task_id": task.task_id,
            "queue": task.queue,
            "name": task.name,
            "payload": task.payload,
            "headers": task.headers,
            "options": task.options,
        }
        for task in plan.tasks
    ]
    for at in range(0, len(values), CHUNK):
        connection.execute(insert(log_table_of(connection)), values[at : at + CHUNK])
    after = {
        "enqueued": plan.found.enqueued,
        "first_us": plan.found.first_us,
        "last_us": plan.found.last_us,
    }
    audit.record(connection, action="schedule.backfill", subject=f"schedule:{name}", after=after)
