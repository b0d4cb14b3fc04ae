"""Remove rows that are no longer needed: inbox rows, unique keys, offers, results, histories and
reports of workers.

A row of the inbox is needed for as long as its task can be delivered again. That is the case while
its record is in the log (for this group or for a replay), in the timer table, or among the dead
letters. The row is then kept for another hour, because a run that was given up learns of it only
at its next step.
"""

from __future__ import annotations

from functools import partial

import msgspec
from sqlalchemy import Connection, Delete, Engine, Table, delete, exists, select

from late.control import offers, reports
from late.control.sql.rows import log_table_of, now_us
from late.control.sql.shards import groups_of
from late.schema.engine import reading, write
from late.schema.tables import dead, history, inbox, result, timer, unique

KEEP_S = 3_600.0
HISTORY_KEEP_S = 7 * 86_400.0
BATCH = 5_000
"""The number of rows that one query looks for."""
CHUNK = 500
"""The number of rows that one statement removes. Spanner takes at most 950 parameters."""
ROUNDS_MAX = 200
"""The number of batches in one sweep. The next sweep removes the rest."""


class Swept(msgspec.Struct, frozen=True):
    """The number of rows that were removed."""

    inbox: int = 0
    keys: int = 0
    results: int = 0
    steps: int = 0


def sweep(
    engine: Engine, *, keep_s: float = KEEP_S, history_keep_s: float = HISTORY_KEEP_S
) -> Swept:
    """Carry out one sweep. Several processes may do so at the same time.

    Raises:
        StoreError: the database failed; rows that were removed before stay removed.
    """
    write(engine, offers.sweep)
    write(engine, reports.sweep)
    keys = write(engine, _free_keys)
    total = 0
    for _ in range(ROUNDS_MAX):
        # A task that has ended stays ended, so the delete needs no second check.
        with reading(engine) as connection:
            found = _forgettable(connection, round(keep_s * 1_000_000))
        for start in range(0, len(found), CHUNK):
            chunk = found[start : start + CHUNK]
            total += write(engine, partial(_forget, chunk, inbox))
        if len(found) < BATCH:
            break
    return Swept(total, keys, _sweep_results(engine), _sweep_history(engine, history_keep_s))


def _sweep_history(engine: Engine, keep_s: float) -> int:
    """Remove steps that are older than `keep_s`, and return their number.

    An id begins with the time at which it was made, so only the part of the table that can be old
    is read.
    """
    total = 0
    with reading(engine) as connection:
        before_us = now_us(connection) - round(keep_s * 1_000_000)
        names = groups_of(connection)
    if before_us <= 0:
        return 0
    made = f"{before_us // 1_000:012x}"
    first = f"{made[:8]}-{made[8:]}-0000-0000-000000000000"
    for name in names:
        old = (history.c.consumer_group == name, history.c.task_id < first,
               history.c.at_us < before_us)  # fmt: skip
        for _ in range(ROUNDS_MAX):
            with reading(engine) as connection:
                query = select(history.c.task_id).where(*old).distinct().limit(CHUNK)
                ids = [str(task_id) for task_id in connection.execute(query).scalars()]
            if ids:
                gone = delete(history).where(*old, history.c.task_id.in_(ids))
                total += write(engine, partial(_rows, gone))
            if len(ids) < CHUNK:
                break
    return total


def _rows(statement: Delete, connection: Connection) -> int:
    return int(connection.execute(statement).rowcount)


def _sweep_results(engine: Engine) -> int:
    total = 0
    for _ in range(ROUNDS_MAX):
        with reading(engine) as connection:
            over = result.c.expires_at_us <= now_us(connection)
            query = select(result.c.consumer_group, result.c.task_id).where(over).limit(BATCH)
            found = [(group, str(task_id)) for group, task_id in connection.execute(query)]
        for start in range(0, len(found), CHUNK):
            total += write(engine, partial(_forget, found[start : start + CHUNK], result))
        if len(found) < BATCH:
            break
    return total


def _free_keys(connection: Connection) -> int:
    over = unique.c.expires_at_us.between(1, now_us(connection))
    return int(connection.execute(delete(unique).where(over)).rowcount)


def _forgettable(connection: Connection, keep_us: int) -> list[tuple[str, str]]:
    """Return (group, task) of inbox rows that are no longer needed.

    It is one statement, so it sees all tables at one moment, and no task moves between them.
    """
    log = log_table_of(connection)
    needed = [exists().where(log.c.task_id == inbox.c.task_id)]
    needed += [
        exists().where(
            table.c.consumer_group == inbox.c.consumer_group, table.c.task_id == inbox.c.task_id
        )
        for table in (timer, dead)
    ]
    old = inbox.c.done_at_us < now_us(connection) - keep_us
    rows = connection.execute(
        select(inbox.c.consumer_group, inbox.c.task_id)
        .where(old, *(~each for each in needed))
        .limit(BATCH)
    )
    return [(group, str(task_id)) for group, task_id in rows]


def _forget(rows: list[tuple[str, str]], table: Table, connection: Connection) -> int:
    count = 0
    for name in sorted({group for group, _ in rows}):
        ids = [task_id for group, task_id in rows if group == name]
        of_group = delete(table).where(table.c.consumer_group == name, table.c.task_id.in_(ids))
        count += int(connection.execute(of_group).rowcount)
    return count
