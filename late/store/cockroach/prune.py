"""Pruning on CockroachDB: the rows that a settlement could not delete itself.

Nearly every row goes with its settlement (`journal.py`). The others were settled by a worker that
had not read them itself, or by one group while another had not got that far. A scan of the shard
finds them, as a sweep does; the journal alone decides which of them go, never their age.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from late.model.task import Cursor
from late.store.base import PruneReport
from late.store.cockroach import statements as sql
from late.store.cockroach.connection import repeated
from late.store.cockroach.cursor import FIRST_ID, LAG_US, CockroachWindow, parse
from late.store.common.open_tasks import open_of
from late.store.compactor import Compactor
from late.store.postgres.compaction import SERIALIZABLE, compact
from late.store.postgres.connection import Connection, ConnectionPool, rows_of
from late.store.postgres.statements import CLOCK

BATCH = 1_000
"""Rows per transaction: little work to repeat for one that must start again."""
WORKER_KEEP_S = 3_600
"""The time after which the row of a silent worker goes: nobody needs it any more."""


class CockroachSettled(msgspec.Struct, frozen=True):
    """The rows of one shard that every group has settled: those that `window`, between two passes,
    covers, except `open`."""

    window: CockroachWindow
    recent_from: str
    """The highest of all groups' values, as their sweeps may differ."""
    open: frozenset[str]


class CockroachPruner:
    """One round of pruning, step by step; each step holds a connection only while it runs. Any
    number may run at once, anywhere."""

    def __init__(self, links: ConnectionPool, compactor: Compactor) -> None:
        self._links = links
        self._compactor = compactor

    async def run(
        self, journal_keep_s: float, journal_detail_s: float, journal_minute_s: float
    ) -> PruneReport:
        """Prune once. Cancelling it between two steps is fine."""
        async with self._links.use() as connection:
            groups = frozenset(name for (name,) in await rows_of(connection, sql.GROUPS))
            leases = [(g, s) for g, s in await rows_of(connection, sql.LEASES)]
        tasks = settlements = 0
        for shard_id in sorted({shard_id for _, shard_id in leases}):
            tasks += await self._rows(groups, shard_id)
        for group, shard_id in leases:
            settlements += await self._journal(group, shard_id, journal_keep_s)
        compacted = await compact(
            self._links,
            self._compactor,
            detail_s=journal_detail_s,
            minute_s=journal_minute_s,
            isolation=SERIALIZABLE,
        )
        async with self._links.use() as connection:
            keep_us = WORKER_KEEP_S * 1_000_000
            workers = (await connection.execute(sql.DELETE_WORKERS, (keep_us,))).rowcount
        return PruneReport(
            tasks=tasks, settlements=settlements, workers=workers, compacted=compacted
        )

    async def _rows(self, groups: frozenset[str], shard_id: int) -> int:
        deleted, after = 0, FIRST_ID
        while after:
            async with self._links.use() as connection:
                settled = await settled_of(connection, groups, shard_id)
                if settled.window.seen == 0:
                    return deleted
                found = await _prunable(connection, shard_id, settled, after)
                if found:
                    deleted += await _delete(connection, groups, shard_id, found)
            after = found[-1] if len(found) == BATCH else ""
        return deleted

    async def _journal(self, group: str, shard_id: int, keep_s: float) -> int:
        deleted = 0
        values = {"group": group, "shard": shard_id, "keep_us": round(keep_s * 1_000_000)}
        while True:
            async with self._links.use() as connection:
                ((kept,),) = await rows_of(connection, sql.JOURNAL_KEPT, values)
                if kept is None:
                    return deleted
                key = (group, shard_id, kept, BATCH)
                count = (await connection.execute(sql.DELETE_SETTLEMENTS, key)).rowcount
            deleted += count
            if count < BATCH:
                return deleted


async def settled_of(
    connection: Connection, groups: frozenset[str], shard_id: int
) -> CockroachSettled:
    """Read the rows of a shard that the last checkpoints of all groups have settled; of an
    unfinished pass, only the rows that were covered before it."""
    windows: list[CockroachWindow] = []
    held: set[str] = set()
    for group in groups:
        last = await rows_of(connection, sql.CHECKPOINT, (group, shard_id))
        cursor, open_text = last[0] if last else ("", "[]")
        windows.append(parse(Cursor(cursor)))
        held.update(task.task_id for task in open_of(open_text))
    return agreed(windows, frozenset(held))


def agreed(windows: Sequence[CockroachWindow], held: frozenset[str]) -> CockroachSettled:
    """Return the window that all of `windows` cover, and no more: the least of each bound."""
    swept = min((window.swept for window in windows), default=0)
    seen = min((window.seen for window in windows), default=0)
    recent = max((window.recent_from for window in windows), default=FIRST_ID)
    return CockroachSettled(CockroachWindow(swept, seen), recent, held)


async def _prunable(
    connection: Connection, shard_id: int, settled: CockroachSettled, after: str
) -> list[str]:
    """Read the ids of a batch of settled rows, a little in the past, where no writes are open."""
    ((now_us,),) = await rows_of(connection, CLOCK)
    values: dict[str, Any] = {
        "shard": shard_id,
        "after": after,
        "swept": f"{settled.window.swept}000",
        "seen": f"{settled.window.seen}000",
        "recent": settled.recent_from,
        "open": sorted(settled.open),
        "limit": BATCH,
    }
    async with connection.pipeline():
        await connection.execute(sql.begin_at(now_us - LAG_US))
        cursor = await connection.execute(sql.PRUNABLE, values)
        await connection.execute("commit")
    return [str(task_id) for (task_id,) in await cursor.fetchall()]


async def _delete(
    connection: Connection, groups: frozenset[str], shard_id: int, task_ids: list[str]
) -> int:
    """Delete rows that all of `groups` have settled, if there still are no other groups."""
    values = {"shard": shard_id, "ids": task_ids, "groups": sorted(groups)}

    async def work() -> int:
        return (await connection.execute(sql.DELETE_SETTLED, values)).rowcount

    return await repeated(work)
