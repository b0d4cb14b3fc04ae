"""Delete a queue that nobody uses any more.

A queue is a name that tasks carry. So a deletion takes its knobs away and marks the name as
deleted: nothing of the log, the journal, the history or the dead letters is touched. A task that is
enqueued at the same moment or later runs as any other, and brings the queue back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from sqlalchemy import Connection, Engine, Select, delete, func, select

from late.control import audit
from late.control.sql import deleted_queues, full_rows, positions
from late.control.sql.knob_rows import locked, of_queues
from late.control.sql.last_settlement import Journal, journals
from late.control.sql.rows import log_of, now_us, open_of
from late.control.sql.shards import groups_of, survey
from late.control.status import backlog
from late.control.status.counts import summed
from late.control.status.usage import usage_since
from late.control.views import Count
from late.control.workers import declared
from late.errors import Conflict
from late.model import validation as validate
from late.model.handlers import ROUTE
from late.model.queue_settings import QueueSettings
from late.model.task import OpenTask, Reads
from late.model.workflow import WAITING
from late.schema.engine import reading, write
from late.schema.tables import dead, queue, schedule, stage, timer

ACTION = "queue.delete"
"""The action in the audit."""
LIMIT = 1_000
"""Tasks of one group and shard that are counted at most."""
LATELY_US = 86_400_000_000
NAMES = 5
"""Names that one line shows."""


class QueueDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """The deletion of a queue, or with a dry run what it would do."""

    queue: str
    dry_run: bool
    waiting: Count
    """Tasks in the log that some group has not read, and stages that wait in workflows."""
    running: Count
    """Tasks that have started, as the last settlement says."""
    parked: Count
    dead: Count
    """Dead letters: they stay until they are purged or redriven."""
    schedules: tuple[str, ...]
    """Schedules that enqueue into it."""
    workers: int
    """Live workers that take all of its tasks, or handle a task that ran in it within a day."""
    knobs: QueueSettings
    """Its knobs, which are taken back."""
    refused: str | None
    """The reason why it cannot be deleted; None if it can."""
    audit_id: str | None = None
    """None for a dry run."""


def remove(
    engine: Engine, name: str, *, force: bool = False, dry_run: bool = False
) -> QueueDeletion:
    """Take the knobs of a queue away, and leave its name out of status, page and metrics.

    Args:
        force: also while live workers serve it. Never while it has tasks or a schedule.

    Raises:
        InvalidName: not a name of a queue.
        Conflict: it is in use; the message says by what.
    """
    validate.name(name, "queue")
    found = _look(engine, name, force=force)
    if dry_run:
        return found
    if found.refused is not None:
        raise Conflict(found.refused)

    def work(connection: Connection) -> QueueDeletion:
        knobs = locked(connection, "queue", name)
        connection.execute(delete(queue).where(queue.c.name == name))
        full_rows.follow(connection, name, QueueSettings())
        deleted_queues.mark(connection, name, now_us(connection))
        audit_id = audit.record(
            connection, action=ACTION, subject=f"queue:{name}",
            before=knobs, after=QueueSettings(),
        )  # fmt: skip
        return msgspec.structs.replace(found, dry_run=False, knobs=knobs, audit_id=audit_id)

    return write(engine, work)


def _look(engine: Engine, name: str, *, force: bool) -> QueueDeletion:
    """Find what uses the queue."""
    lately = _names_of(engine, name)
    with reading(engine) as connection:
        waiting, running = _logged(connection, name)
        parked, letters = (
            _count(connection, select(table.c.task_id).where(table.c.queue == name))
            for table in (timer, dead)
        )
        staged = select(stage.c.task_id).where(stage.c.queue == name, stage.c.state == WAITING)
        named = select(schedule.c.name).where(schedule.c.queue == name).order_by(schedule.c.name)
        found = QueueDeletion(
            queue=name, dry_run=True, waiting=waiting + _count(connection, staged),
            running=running, parked=parked, dead=letters,
            schedules=tuple(connection.execute(named).scalars()),
            workers=_serving(connection, {*lately, ROUTE + name}),
            knobs=of_queues(connection).get(name, QueueSettings()), refused=None,
        )  # fmt: skip
    return msgspec.structs.replace(found, refused=_why_refused(found, force=force))


def _why_refused(found: QueueDeletion, *, force: bool) -> str | None:
    """Return why a queue cannot be deleted. Pure."""
    counts = (found.waiting, "waiting"), (found.running, "running"), (found.parked, "parked")
    tasks = [f"{count} {word}" for count, word in counts if count.n]
    if tasks:
        return f"queue {found.queue} has tasks: {', '.join(tasks)}; let them end, or cancel them"
    if found.schedules:
        names = ", ".join(found.schedules[:NAMES])
        return f"queue {found.queue} is used by a schedule: {names}; late schedule remove NAME"
    if found.workers and not force:
        return (
            f"live workers serve queue {found.queue} ({found.workers}): stop them, or give --force"
        )
    return None


def _names_of(engine: Engine, name: str) -> set[str]:
    """Return the names of the tasks that ran in the queue within a day, as far as one look."""
    with reading(engine) as connection:
        since_us = now_us(connection) - LATELY_US
    return {each.name for _, each in usage_since(engine, since_us, {}).usage if each.queue == name}


def _serving(connection: Connection, names: Iterable[str]) -> int:
    """Count the live workers that have declared one of these names."""
    wanted = set(names)
    return sum(each.workers for each in declared(connection) if wanted & set(each.handlers or ()))


def _logged(connection: Connection, name: str) -> tuple[Count, Count]:
    """Count the tasks of the queue that some group has not read, and those that are open.

    The limit is of tasks of this queue: a task behind any number of others is found.
    """
    asked, opened = [], []
    for ahead, of_shard in _places(connection, name):
        asked.append(ahead)
        opened.append(of_shard)
    waiting = sum(
        (summed(rows, LIMIT)[0] for rows in backlog.per_queue(connection, asked, LIMIT)),
        start=Count(),
    )
    running = sum(row.queue == name for rows in backlog.by_keys(connection, opened) for row in rows)
    return waiting, Count(running)


def _places(
    connection: Connection, name: str
) -> Iterator[tuple[backlog.Ahead, tuple[int, tuple[OpenTask, ...]]]]:
    last, reads = journals(connection), positions.registered(connection)
    of_queue, logged = log_of(connection).c.queue == name, survey(connection).logged
    for group in groups_of(connection):
        among = [*positions.taken(connection, reads.get(group, Reads())), of_queue]
        for shard_id in logged:
            journal = last.get((group, shard_id), Journal())
            ahead = backlog.Ahead(shard_id, journal.cursor, among)
            yield ahead, (shard_id, open_of(journal.open))


def _count(connection: Connection, rows: Select[tuple[str]]) -> Count:
    some = rows.limit(LIMIT).subquery()
    count = connection.execute(select(func.count()).select_from(some)).scalar_one()
    return Count(count, count >= LIMIT)
