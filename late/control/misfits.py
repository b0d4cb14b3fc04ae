"""Compare an app with the tasks that wait in a database: could this version run them?

It looks at what a group has not read, has open or has parked, at stages of workflows that wait for
others, and at what schedules will enqueue. A task that does not fit is not lost: it waits for a
worker that can run it, and is a dead letter after a day. This is to learn of it before a deploy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec
from sqlalchemy import Connection, Engine, Select, and_, exists, or_, select

from late.control.schedule_rows import schedule_of
from late.control.sql import beyond_cursor
from late.control.sql.last_settlement import journal
from late.control.sql.positions import ahead, registered
from late.control.sql.rows import log_of, open_of
from late.control.sql.shards import groups_of
from late.control.verify.rows_to_check import shards_of
from late.control.workers import Fleet
from late.errors import DecodeError, InvalidCron
from late.model.cron import next_due_us
from late.model.task import DEFAULT_GROUP, Options, Policy, Reads, Record, TaskId
from late.model.ticks import tick
from late.model.workflow import STARTED, STOPPING, WAITING
from late.payload.command import PREFIX
from late.payload.subject_keys import SubjectKeyNeeded
from late.payload.terms import is_bound
from late.schema.engine import reading
from late.schema.tables import dead, schedule, stage, timer

LOCAL = "local"
"""The target of handlers, which are not called with arguments that do not fit."""
LIMIT = 10_000
"""Rows that are looked at per group, shard and place, the oldest first. Stages that wait are one
place."""
_COLUMNS = ("shard_id", "task_id", "queue", "name", "payload", "headers", "options")


class Decoder(Protocol):
    """The part of a registered task that is needed. `late.Task` satisfies it."""

    @property
    def policy(self) -> Policy: ...
    def decode(self, record: Record, options: Options | None) -> Mapping[str, Any]: ...
    def check_stage(self, record: Record, options: Options | None, mark: str) -> None: ...


class Misfit(msgspec.Struct):
    """Tasks of one name that an app could not run, for one reason."""

    name: str
    why: str
    tasks: int
    """The number found; a schedule counts as one."""
    example: str
    """The id of one, or the name of the schedule."""


class Misfits(msgspec.Struct, frozen=True):
    """The result of `late check`."""

    looked: int
    capped: bool
    """True if some shard has more waiting tasks than were looked at."""
    misfits: tuple[Misfit, ...]
    fleet: Fleet | None = None
    """The app's handlers beside those of the live workers, if they were compared."""


def find(
    engine: Engine, tasks: Mapping[str, Decoder], routed: Iterable[str], *, limit: int = LIMIT
) -> Misfits:
    """Look at what waits, and find what the app could not run.

    Args:
        tasks: of the app, by name.
        routed: queues whose tasks need no handler here (`App.route`).
        limit: rows that are looked at per group, shard and place.
    """
    found: dict[tuple[str, str], Misfit] = {}
    queues, looked, capped = frozenset(routed), 0, False
    with reading(engine) as connection:
        for statement, scheduled in _statements(connection):
            rows = 0
            for row in connection.execute(statement.limit(limit)):
                rows += 1
                name = str(row.task_name if scheduled else row.name)
                why = _why_not(row, name, tasks, queues, scheduled=scheduled)
                if why is not None:
                    key = (name, why)
                    misfit = found.setdefault(key, Misfit(*key, 0, str(row.task_id)))
                    misfit.tasks += 1
            looked += rows
            capped = capped or rows >= limit
    return Misfits(looked, capped, tuple(found[key] for key in sorted(found)))


def _statements(connection: Connection) -> Iterator[tuple[Select[Any], bool]]:
    """Yield each place where tasks wait, and whether its rows are schedules."""
    log = log_of(connection)
    logged = [log.c[name] for name in _COLUMNS]
    parked = [timer.c[name] for name in _COLUMNS]
    reads = registered(connection)
    for group, shard_id in sorted(shards_of(connection, set(groups_of(connection)))):
        last = journal(connection, group, shard_id)
        waits = ahead(connection, shard_id, last.cursor, reads.get(group, Reads()))
        yield select(*logged).where(waits).order_by(*beyond_cursor.order_of(connection)), False
        if ids := [task.task_id for task in open_of(last.open)]:
            yield select(*logged).where(log.c.shard_id == shard_id, log.c.task_id.in_(ids)), False
        mine = timer.c.consumer_group == group, timer.c.shard_id == shard_id
        yield select(*parked).where(*mine).order_by(timer.c.due_at_us, timer.c.task_id), False
    yield _stages(), False
    yield select(schedule, schedule.c.name.label("task_id")).order_by(schedule.c.name), True


def _stages() -> Select[Any]:
    """Select the stages that wait, of workflows in which a task may still end."""
    other = stage.alias()
    letter = exists().where(
        dead.c.consumer_group == DEFAULT_GROUP,
        dead.c.shard_id == other.c.shard_id,
        dead.c.task_id == other.c.task_id,
    )
    goes_on = exists().where(
        other.c.workflow_id == stage.c.workflow_id,
        or_(other.c.state.in_((STARTED, STOPPING)), and_(other.c.state == "dead", letter)),
    )
    return (
        select(*[stage.c[name] for name in _COLUMNS], stage.c.mark)
        .where(stage.c.state == WAITING, goes_on)
        .order_by(stage.c.workflow_id, stage.c.stage)
    )


def _why_not(
    row: Any,
    name: str,
    tasks: Mapping[str, Decoder],
    routed: frozenset[str],
    *,
    scheduled: bool,
) -> str | None:
    """Return why the app could not run this task, or None."""
    if name.startswith(PREFIX):
        return None  # a command, for the scheduler
    if name not in tasks:
        return None if str(row.queue) in routed else "no handler"
    try:
        record = _tick(row) if scheduled else _record(row)
        options = None if record.options is None else _options(record.options)
        mark = None if scheduled else getattr(row, "mark", None)
        if mark is None:
            tasks[name].decode(record, options)
        else:
            tasks[name].check_stage(record, options, str(mark))
    except SubjectKeyNeeded:
        return None  # only the worker that runs it reads the key
    except DecodeError as error:
        target = tasks[name].policy.target
        elsewhere = f"; the target {target!r} is called all the same"
        return f"{error}{'' if target == LOCAL else elsewhere}"
    except InvalidCron as error:
        return str(error)
    except msgspec.MsgspecError as error:
        return f"options: {error}"
    return None


_options = msgspec.json.Decoder(Options).decode


def _record(row: Any) -> Record:
    return Record(row.shard_id, 0, TaskId(str(row.task_id)), str(row.queue), str(row.name),
                  bytes(row.payload), row.headers, row.options, 0, 0)  # fmt: skip


def _tick(row: Any) -> Record:
    """Return the record of one of a schedule's ticks: the next, or any if it fires no more."""
    found = schedule_of(row._mapping)
    due_us = found.next_due_at_us or next_due_us(
        found.rule, found.zone, anchor_us=found.anchor_us, after_us=0
    )
    task = tick(found, due_us or 0, is_bound=is_bound(found.payload))
    return Record(task.shard_id, 0, task.task_id, task.queue, task.name, task.payload,
                  task.headers, task.options, 0, 0)  # fmt: skip
