"""Pruning on PostgreSQL: the journal alone decides which rows go, and never their age.

A row that committed late may be old by its clock and read by nobody. So a row may go when the
checkpoint of *every* group covers it and none has it in `open`. A group that has no journal for a
shard has read nothing of it: all its rows must stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from late.model.task import Cursor, OpenTask
from late.store.base import PruneReport
from late.store.common.groups import RETENTION
from late.store.common.open_tasks import open_of
from late.store.compactor import Compactor
from late.store.postgres import stages
from late.store.postgres import statements as sql
from late.store.postgres.compaction import compact
from late.store.postgres.connection import Connection, ConnectionPool, rows_of
from late.store.postgres.cursor import XID_MAX, PostgresWindow, parse
from late.store.postgres.guard import POSITION_MAX
from late.store.postgres.partitions import Partition, lay_out, list_partitions, truncate
from late.store.postgres.repack import JournalIndex

BATCH = 2_000
"""Rows per transaction of a delete: a few milliseconds of work."""
WORKER_KEEP_S = 3_600
"""The time after which the row of a silent worker goes: nobody needs it any more."""
WORTH_TRUNCATING = 1 << 20
"""A partition that is still being filled is left alone below this size in bytes."""

_GROUPS = "select name from late_group union select consumer_group from late_lease"
_CHECKPOINTS = """
select e.consumer_group, e.shard_id, p.cursor, p.open from late_lease e cross join lateral (
  select s.cursor, s.open from late_settlement s
   where s.consumer_group = e.consumer_group and s.shard_id = e.shard_id{and_}
   order by s.seq desc limit 1) p
"""
_PAST = f" and s.settled_at_us <= {sql.NOW} - %s::bigint"
# The oldest rows of one shard in one partition, by the index.
_DELETE_ROWS = """
delete from only {leaf} t where t.ctid = any (array(
  select l.ctid from only {leaf} l where l.shard_id = %s and l.xid < %s::xid8
   order by l.xid, l.task_id limit %s))
"""
# Only a prefix of a journal goes: a hole below a kept row would be a free seq for a zombie.
_DELETE_SETTLEMENTS = f"""
delete from late_settlement d where (d.consumer_group, d.shard_id, d.seq) in (
  select o.consumer_group, o.shard_id, o.seq from late_lease e
   cross join lateral (
     select coalesce(
       (select s.seq from late_settlement s
         where s.consumer_group = e.consumer_group and s.shard_id = e.shard_id
           and s.settled_at_us >= {sql.NOW} - %(keep_us)s::bigint order by s.seq limit 1),
       (select max(s.seq) from late_settlement s
         where s.consumer_group = e.consumer_group and s.shard_id = e.shard_id)) as seq) keep
   cross join lateral (
     select s.consumer_group, s.shard_id, s.seq from late_settlement s
      where s.consumer_group = e.consumer_group and s.shard_id = e.shard_id and s.seq < keep.seq
      order by s.seq limit %(batch)s) o
  limit %(batch)s)
"""
_DELETE_WORKERS = f"delete from late_worker where expires_at_us < {sql.NOW} - %s::bigint"


LastRow = tuple[int, int, str]
"""Shard, xid and task id of the last row of a shard in a partition."""


class PostgresCheckpoint(msgspec.Struct, frozen=True):
    """The checkpoint of one group and shard: the rows that `window` covers are settled, except
    `open`."""

    window: PostgresWindow
    open: tuple[OpenTask, ...]

    def settled(self, low: int, xid: int, task_id: str) -> bool:
        """Return True if all rows from xid `low` up to and including this one are settled."""
        if any(low <= task.position <= xid for task in self.open):
            return False
        return self.window.covers_all(low, xid) and self.window.covers(xid, task_id)

    @property
    def floor(self) -> int:
        """The xid below which every row is settled."""
        return min([self.window.floor, *(task.position for task in self.open)])


class LastCheckpoints(msgspec.Struct, frozen=True):
    """The last checkpoint of every group on every shard."""

    groups: frozenset[str]
    checkpoints: dict[tuple[str, int], PostgresCheckpoint]
    past: dict[tuple[str, int], PostgresCheckpoint] | None = None
    """The checkpoints of the time before which the log need not be kept; None without a limit."""

    def of(self, shard_id: int) -> list[PostgresCheckpoint | None]:
        ages = [self.checkpoints] if self.past is None else [self.checkpoints, self.past]
        return [age.get((group, shard_id)) for group in self.groups for age in ages]

    def settled(self, low: int, rows: Iterable[LastRow]) -> bool:
        """Return True if every group has settled everything from xid `low` up to the last rows."""
        return all(
            checkpoint is not None and checkpoint.settled(low, xid, task_id)
            for shard_id, xid, task_id in rows
            for checkpoint in self.of(shard_id)
        )

    def floor(self, shard_id: int) -> int:
        """Return the xid below which every group has settled every row of the shard."""
        return min(
            (checkpoint.floor if checkpoint is not None else 0 for checkpoint in self.of(shard_id)),
            default=0,
        )


class PostgresPruner:
    """One round of pruning, step by step; each step holds a connection only while it runs. Any
    number may run at once, anywhere."""

    def __init__(self, links: ConnectionPool, compactor: Compactor) -> None:
        self._links = links
        self._compactor = compactor
        self._index = JournalIndex()

    async def run(
        self, journal_keep_s: float, journal_detail_s: float, journal_minute_s: float
    ) -> PruneReport:
        """Prune once. Cancelling it between two steps is fine."""
        async with self._links.use() as connection:
            journal = await _journal(connection)
            partitions = await list_partitions(connection)
        tasks = removed = 0
        for partition in partitions:
            if partition.size_bytes == 0:
                continue
            removed += await self._truncate(partition, journal)
            if partition.is_default:
                tasks += await self._delete_rows(partition, journal)
        async with self._links.use() as connection:
            removed += await lay_out(connection)
        keep_us = round(journal_keep_s * 1_000_000)
        settlements = await self._repeat(_DELETE_SETTLEMENTS, {"keep_us": keep_us, "batch": BATCH})
        await self._repeat(stages.PRUNE, {"keep_us": keep_us, "batch": BATCH})
        compacted = await compact(
            self._links, self._compactor, detail_s=journal_detail_s, minute_s=journal_minute_s
        )
        await self._index.repack(self._links, settlements + compacted)
        async with self._links.use() as connection:
            workers = await connection.execute(_DELETE_WORKERS, (WORKER_KEEP_S * 1_000_000,))
            await connection.execute(POSITION_MAX)
        return PruneReport(
            tasks=tasks,
            partitions=removed,
            settlements=settlements,
            workers=workers.rowcount,
            compacted=compacted,
        )

    async def _truncate(self, partition: Partition, journal: LastCheckpoints) -> int:
        """Empty a partition in which nothing is needed any more.

        This includes one that is still being filled, if it is large enough: while its lock is held
        nobody inserts into it, so its rows are then all there are.
        """
        low = 0 if partition.is_default else partition.low

        def settled(rows: list[LastRow]) -> bool:
            return journal.settled(low, rows)

        async with self._links.use() as connection:
            if partition.size_bytes < WORTH_TRUNCATING and not await partition.finished(connection):
                return 0
            emptied = await truncate(connection, partition, settled)
        return int(emptied and not partition.is_default)

    async def _delete_rows(self, partition: Partition, journal: LastCheckpoints) -> int:
        """Delete the settled rows of a partition that cannot be emptied as a whole."""
        async with self._links.use() as connection:
            rows = await partition.last_rows(connection)
        deleted = 0
        for shard_id, last_xid, _ in rows:
            floor = min(journal.floor(shard_id), XID_MAX, last_xid + 1)
            if floor > 0:
                deleted += await self._repeat(
                    _DELETE_ROWS.format(leaf=partition.name), (shard_id, str(floor), BATCH)
                )
        return deleted

    async def _repeat(self, statement: str, values: Any) -> int:
        """Delete in batches until one is not full, and return the number of rows."""
        total = 0
        while True:
            async with self._links.use() as connection:
                cursor = await connection.execute(statement, values)
            total += cursor.rowcount
            if cursor.rowcount < BATCH:
                return total


async def _journal(connection: Connection) -> LastCheckpoints:
    groups = await rows_of(connection, _GROUPS)
    kept = await rows_of(connection, RETENTION)
    return LastCheckpoints(
        groups=frozenset(name for (name,) in groups),
        checkpoints=await _checkpoints(connection, "", ()),
        past=await _checkpoints(connection, _PAST, (int(kept[0][0]),)) if kept else None,
    )


async def _checkpoints(
    connection: Connection, condition: str, values: tuple[int, ...]
) -> dict[tuple[str, int], PostgresCheckpoint]:
    rows = await rows_of(connection, _CHECKPOINTS.format(and_=condition), values)
    return {
        (group, shard_id): PostgresCheckpoint(parse(Cursor(text)), open_of(open_text))
        for group, shard_id, text, open_text in rows
    }
