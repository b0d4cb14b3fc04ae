"""Wait until a group has settled every task up to a token, which is a task's id.

**Up to** goes by the time of insert, on the database's clock. It means all tasks, of all shards and
queues that the group reads, that were created no later than the token's task. A dead letter is
settled; a task that waits for its time or for a retry is not.

If the token's task stays in no table for longer than a commit may take to be visible, every group
has settled it and it was removed from the log. *Up to* then goes by the time in the id, which is by
the producer's clock. A task that was never committed looks the same, so wait after the commit.

A stage of a workflow is in no table while it waits for others, and it is waited for. It is created
when it starts. One that was cancelled before that, or that can never start, has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine, func, select

from late.control.groups.groups import known
from late.control.sql import log_lookup, positions
from late.control.sql.last_settlement import Journal, journals
from late.control.sql.rows import log_of, open_of
from late.control.sql.shards import survey
from late.control.status import backlog
from late.control.status.counts import summed
from late.control.status.workflow import GOING_ON, stages_of
from late.control.views import Count, Waited
from late.errors import Conflict
from late.model.ids import made_at_us, shard_of
from late.model.task import Reads
from late.schema.engine import reading
from late.schema.tables import dead, timer
from late.store.common.groups import PAUSED

T = TypeVar("T")
LIMIT = 10_000
"""The largest number of tasks of one shard that are counted."""
GRACE_S = 1.0
"""The time in seconds for which a missing task is looked for before it counts as gone."""
EVERY_S = 0.1
EVERY_MAX_S = 1.0
_MILLISECOND_US = 1_000


def wait(engine: Engine, name: str, token: str, *, timeout_s: float | None = None) -> Waited:
    """Wait until the group has settled every task that was created no later than `token`.

    Returns when all is settled, or after `timeout_s` with the count of unsettled tasks.

    Args:
        timeout_s: the longest wait in seconds; None waits without limit.

    Raises:
        ConfigError: there is no such group, or it is paused.
        InvalidName: the token is not a task id.
    """
    return poll(Waiting(engine, name, token).look, lambda found: found.over, timeout_s)


def poll(look: Callable[[], T], over: Callable[[T], bool], timeout_s: float | None) -> T:
    """Look again and again until it is over, or until the time is up; return the last look."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    every_s = EVERY_S
    while True:
        found = look()
        if over(found) or (until is not None and time.monotonic() + every_s > until):
            return found
        time.sleep(every_s)
        every_s = min(EVERY_MAX_S, 1.2 * every_s)


class Waiting:
    """A wait as looks that do not sleep, for callers that wait in their own way.

    Raises:
        InvalidName: the token is not a task id.
    """

    def __init__(self, engine: Engine, name: str, token: str) -> None:
        self._engine = engine
        self._name = name
        self._token = token
        self._shard_id = shard_of(token)
        self._created_us: int | None = None
        self._began = time.monotonic()

    def look(self) -> Waited:
        """Read once how far the group is.

        Raises:
            ConfigError: there is no such group, or it is paused.
        """
        name, token = self._name, self._token
        with reading(self._engine) as connection:
            reads = _reads(connection, name)
            self._created_us = self._created_us or _created_us(connection, self._shard_id, token)
            stage = _stage(connection, token) if self._created_us is None else None
            if stage in GOING_ON:
                return Waited(name, token, "waiting", Count(1, capped=True))
            gone = self._created_us is None and (
                stage is not None or time.monotonic() - self._began >= GRACE_S
            )
            upto_us = made_at_us(token) + _MILLISECOND_US if gone else self._created_us
            left = Count() if upto_us is None else _left(connection, name, reads, upto_us)
        if upto_us is None:
            return Waited(name, token, "unknown", left)
        if left.n:
            return Waited(name, token, "waiting", left)
        return Waited(name, token, "gone" if gone and stage is None else "settled", left)


def _stage(connection: Connection, token: str) -> str | None:
    """Return the state of a stage; None if the task is no stage, or its row is gone."""
    return next((s.state for s in stages_of(connection, token) if s.task_id == token), None)


def _reads(connection: Connection, name: str) -> Reads:
    if known(connection, name, lock=False).paused & PAUSED:
        raise Conflict(f"group {name!r} is paused: nothing will be settled")
    return positions.registered(connection)[name]


def _created_us(connection: Connection, shard_id: int, token: str) -> int | None:
    """Return the time at which the task was created; None if it is in no table."""
    row = log_lookup.find_in_log(connection, token, everywhere=True)
    if row is not None:
        return int(row["created_at_us"])
    for table in (timer, dead):
        found: int | None = connection.execute(
            select(table.c.created_at_us)
            .where(table.c.shard_id == shard_id, table.c.task_id == token)
            .limit(1)
        ).scalar()
        if found is not None:
            return found
    return None


def _left(connection: Connection, name: str, reads: Reads, created_us: int) -> Count:
    """Count the tasks created up to `created_us` that are beyond the cursor, open, or parked."""
    last = journals(connection)
    among = [
        *positions.taken(connection, reads), log_of(connection).c.created_at_us <= created_us
    ]  # fmt: skip
    journal_of = {n: last.get((name, n), Journal()) for n in survey(connection).logged}
    asked = [backlog.Ahead(n, journal.cursor, among) for n, journal in journal_of.items()]
    counted = backlog.per_queue(connection, asked, LIMIT)
    left = sum((summed(rows, LIMIT)[0] for rows in counted), start=Count())
    opened = [(n, open_of(journal.open)) for n, journal in journal_of.items()]
    for rows in backlog.by_keys(connection, opened):
        left += Count(sum(row.created_at_us <= created_us for row in rows))
    parked = (
        select(timer.c.task_id)
        .where(timer.c.consumer_group == name, timer.c.created_at_us <= created_us)
        .limit(LIMIT)
    )
    count = connection.execute(select(func.count()).select_from(parked.subquery())).scalar_one()
    return left + Count(count, count >= LIMIT)
