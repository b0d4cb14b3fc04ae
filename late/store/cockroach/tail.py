"""The tail of the CockroachDB store: passes of `cursor.py`, a page of each shard per call.

One call is one read-only transaction AS OF SYSTEM TIME `now - 20 ms`, by the clock of the gateway
that it goes through, with a scan for each shard. It ends before the pages are returned.

A pass takes many calls, each at a later time than its end T, and takes only versions up to T. That
loses nothing that a read at T itself would find: a version that is gone by then was deleted, which
happens to settled rows only, or written again, and then it is above T, where the next pass looks.
So a pass may last as long as its reader is busy, whatever the garbage collector has removed by
then, and returns no row that was settled during the pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from late.model.task import Cursor, OpenTask, Record, ShardId, TaskId
from late.store.base import Page, cursor_within
from late.store.cockroach import statements as sql
from late.store.cockroach.cursor import LAG_US, RECENT_US, CockroachWindow, parse, position_of
from late.store.postgres.connection import Connection, rows_of
from late.store.postgres.statements import CLOCK

HANDED_MAX = 20_000
"""The most rows of one shard that are remembered; the prune deletes the others."""


class RowsRead:
    """The rows that this process has read and not yet deleted: their moments, by shard and id.

    For the deletes only. To forget a row is harmless: it goes with the next prune.
    """

    def __init__(self) -> None:
        self._shards: dict[int, dict[str, int]] = {}

    def add(self, shard_id: int, task_id: str, moment: int) -> None:
        rows = self._shards.setdefault(shard_id, {})
        rows[task_id] = moment
        if len(rows) > HANDED_MAX:
            del rows[next(iter(rows))]

    def settled(self, shard_id: int, cursor: Cursor, opened: Sequence[OpenTask]) -> list[str]:
        """Return the rows that `cursor` covers and that are not in `opened`."""
        window = parse(cursor)
        kept = {task.task_id for task in opened}
        return [
            task_id
            for task_id, moment in self._shards.get(shard_id, {}).items()
            if window.covers(moment, task_id) and task_id not in kept
        ]

    def only(self, shard_id: int, task_ids: Sequence[str], window: CockroachWindow) -> list[str]:
        """Return those of `task_ids` that another group's window covers as well."""
        rows = self._shards.get(shard_id, {})
        return [i for i in task_ids if i in rows and window.covers(rows[i], i)]

    def remove(self, shard_id: int, task_ids: Sequence[str]) -> None:
        rows = self._shards.get(shard_id, {})
        for task_id in task_ids:
            rows.pop(task_id, None)

    def forget(self, shard_id: int) -> None:
        """Forget a shard that another worker owns now, which deletes the rows that it reads."""
        self._shards.pop(shard_id, None)


async def read(
    connection: Connection, cursors: Mapping[ShardId, Cursor], limit: int, rows_read: RowsRead
) -> list[Page]:
    """Read the next page of each shard; those with nothing new are left out."""
    ((now_us,),) = await rows_of(connection, CLOCK)
    at = now_us - LAG_US
    given = {shard_id: parse(cursor) for shard_id, cursor in cursors.items()}
    windows = {
        shard_id: window
        for shard_id, before in given.items()
        if (window := before.next(shard_id, at)) is not None
    }
    if not windows:
        return []
    asked = []
    async with connection.pipeline():
        await connection.execute(sql.begin_at(at))
        for shard_id, window in windows.items():
            cursor = connection.cursor(binary=True)
            await cursor.execute(sql.PAGE, values_of(shard_id, window, limit))
            asked.append((shard_id, window, cursor))
        await connection.execute("commit")
    pages = []
    for shard_id, window, cursor in asked:
        rows: list[Any] = await cursor.fetchall()
        # An empty sweep moves the cursor, as the next one is due later; an empty recent pass not.
        begun = given[shard_id].until is None
        if rows or window.sweep or not begun:
            pages.append(page_of(shard_id, window, rows, limit, now_us, rows_read))
        await asyncio.sleep(0)
    return pages


def values_of(shard_id: int, window: CockroachWindow, limit: int) -> dict[str, Any]:
    """Return the parameters of `sql.PAGE`. Moments are microseconds, timestamps nanoseconds."""
    assert window.until is not None
    return {
        "shard": shard_id,
        "first": window.first_key,
        "key": window.key,
        "swept": f"{window.swept}000",
        "seen": f"{window.seen}000",
        "until": f"{window.until}000",
        "recent": window.recent_from,
        "limit": limit,
    }


def page_of(
    shard_id: ShardId,
    window: CockroachWindow,
    rows: list[Any],
    limit: int,
    now_us: int,
    rows_read: RowsRead,
) -> Page:
    """Build the page of a scan of `window`. A page that is not full is the end of the pass."""
    records = []
    for row in rows:
        record = record_of(shard_id, row)
        rows_read.add(shard_id, record.task_id, moment_of(row[0]))
        records.append(record)
    full = len(records) == limit
    if full:
        end = cursor_within(window.mark, records[-1])
    else:
        end = window.end().text
    return Page(shard_id, records, end, window.mark, full, now_us)


def moment_of(nanoseconds: int) -> int:
    """Return the first whole microsecond that is not before a commit: `moment <= bound` here then
    means the same as `timestamp <= bound` in SQL."""
    return -(-nanoseconds // 1_000)


def record_of(shard_id: int, row: Any) -> Record:
    """Build a record from a row of `sql.PAGE` or `sql.FETCH`.

    The order within an ordering key is that of the inserts, by the clock of the gateway: between
    two gateways it is as exact as the clocks of the cluster.
    """
    _, task_id, queue, name, payload, headers, options, created_at_us = row
    return Record(
        shard_id=shard_id,
        position=position_of(task_id),
        task_id=TaskId(task_id),
        queue=queue,
        name=name,
        payload=payload,
        headers=headers,
        options=in_order(options, created_at_us),
        created_at_us=created_at_us,
        sequence=created_at_us,
    )


def in_order(options: str | None, created_at_us: int) -> str | None:
    """Say, with an ordering key, below which position its earlier tasks are, which the order of the
    ids does not: an id is made before the insert, by a producer's clock. No clock is ahead of the
    gateway's by more than the range of a recent pass, which rests on the same."""
    if options is None or '"ordering_key":' not in options:
        return options
    below = (created_at_us + RECENT_US) // 1_000
    return f'{options[:-1]},"committed_below":{below}}}'


async def fetch(
    connection: Connection, shard_id: ShardId, keys: Sequence[OpenTask], rows_read: RowsRead
) -> list[Record]:
    """Read the records of `keys` that are still in the log, by id, which contains the position."""
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(sql.FETCH, (shard_id, [key.task_id for key in keys]))
        rows: list[Any] = await cursor.fetchall()
    found = []
    for row in rows:
        record = record_of(shard_id, row)
        rows_read.add(shard_id, record.task_id, moment_of(row[0]))
        found.append(record)
    return found
