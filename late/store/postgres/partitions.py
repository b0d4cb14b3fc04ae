"""Partitions of the task log on PostgreSQL: ranges of `xid8`, made ahead, emptied and dropped.

A producer must never notice this work. An insert takes a lock on `late_task` and on the one leaf
that its xid falls into, until its transaction ends. So

- a consumed leaf is emptied by TRUNCATE, which locks that leaf only;
- leaves are made ahead of time, and attached and dropped together in one short transaction that
  locks `late_task`. It is prepared before, and gives up after `LOCK_TIMEOUT_MS`: while it waits
  for a long transaction, later inserts queue behind it;
- a DEFAULT leaf (made by the migration) takes the rows that fall into no range: inserts never fail.

Ahead of the present lie three ranges of the width that fits the observed rate, then two much wider
ones for a time without pruning. They are empty and cost nothing; the next round replaces them as
long as the present has not reached them.

Source: PgQ rotates three tables by TRUNCATE; ranges of transaction ids are ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
from psycopg import errors

from late.store.postgres import statements as sql
from late.store.postgres.connection import Connection, rows_of
from late.store.postgres.cursor import XID_MAX, Snapshot, parse_snapshot

LOCK_TIMEOUT_MS = 25
WORK_TIMEOUT_MS = 500
"""The time limit of the work under the lock; attaching scans the DEFAULT leaf, usually empty."""
SILENCE_MAX_MS = 5_000
"""The longest silence under the lock. A process that is stopped there (a frozen machine, a signal)
would keep every producer and every reader of the log waiting until it goes on: the server ends its
session instead."""
PERIOD_S = 600
"""The time that one range of the common width is meant to last."""
MARGIN_S = 1.0
"""The time from the present to the first range: the lock may take that long to get."""
MARGIN_MIN = 1 << 10
"""The least distance from the present to the first range, in transaction ids."""
SIZE_BYTES = 256 << 20
"""The size that a leaf of the common width is meant to reach."""
WIDTH_MIN = 1 << 13
"""A layout writes some 170 KB of WAL, for the catalogue, once in two ranges: 10 bytes for each
transaction of the database, where a width of 1,024 makes 80. A range that is passed slowly is
emptied as it grows (`prune.WORTH_TRUNCATING`)."""
WIDTH_MAX = 1 << 24
AHEAD = (1, 1, 1, 16, 256)
"""Widths of the ranges ahead, in units of the common width."""
DROP_AT = 8
"""The number of empty leaves that justify a lock on the log by themselves."""
_KEY = 0x6C6174657072  # "latepr": the advisory lock of the layout

# `to_regclass`-like text is quoted and qualified as the search path needs it.
_LIST = """
select c.oid::regclass::text, pg_get_expr(c.relpartbound, c.oid),
       coalesce(pg_relation_size(c.oid), 0)
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
 where i.inhparent = 'late_task'::regclass
"""
_SCHEMA = """
select quote_ident(n.nspname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.oid = 'late_task'::regclass
"""
_BOUND = re.compile(r"FOR VALUES FROM \('(\d+)'\) TO \('(\d+)'\)\Z")
_LAST_ROWS = """
with recursive shard (id) as (
  select min(l.shard_id) from only {leaf} l
  union all
  select (select min(l.shard_id) from only {leaf} l where l.shard_id > s.id)
    from shard s where s.id is not null)
select s.id, l.xid::text, l.task_id::text from shard s cross join lateral (
  select l.xid, l.task_id from only {leaf} l where l.shard_id = s.id
   order by l.xid desc, l.task_id desc limit 1) l
"""
_NOW = f"select pg_current_snapshot()::text, {sql.NOW}"
_SAMPLE = "select value from late_meta where key = 'xid_sample'"
_KEEP_SAMPLE = """
insert into late_meta (key, value) values ('xid_sample', %s)
on conflict (key) do update set value = excluded.value
"""
BUSY = (errors.LockNotAvailable, errors.QueryCanceled, errors.DeadlockDetected)
"""Others hold the lock, or the work under it took too long."""


class Partition(msgspec.Struct, frozen=True):
    """One leaf: rows with a xid in [low, high), or the DEFAULT one."""

    name: str
    """The quoted name, as SQL needs it."""
    low: int
    high: int
    size_bytes: int
    is_default: bool = False

    async def finished(self, connection: Connection) -> bool:
        """Return True if no transaction of its range runs or will ever run."""
        if self.is_default:
            return False
        snapshot, _ = await _now(connection)
        return snapshot.sees_all(self.low, self.high)

    async def last_rows(self, connection: Connection) -> list[tuple[int, int, str]]:
        """Read (shard, xid, task id) of each shard's last row, one step down the index each."""
        rows = await rows_of(connection, _LAST_ROWS.format(leaf=self.name))
        return [(shard_id, int(xid), task_id) for shard_id, xid, task_id in rows]


async def list_partitions(connection: Connection) -> list[Partition]:
    """Read all leaves, ascending, the DEFAULT one first; leaves of another shape are left out."""
    found = []
    for name, bound, size_bytes in await rows_of(connection, _LIST):
        if bound == "DEFAULT":
            found.append(Partition(name, 0, XID_MAX, size_bytes, is_default=True))
        elif match := _BOUND.match(bound or ""):
            found.append(Partition(name, int(match[1]), int(match[2]), size_bytes))
    return sorted(found, key=lambda partition: (partition.low, not partition.is_default))


async def truncate(
    connection: Connection,
    partition: Partition,
    settled: Callable[[list[tuple[int, int, str]]], bool],
) -> bool:
    """Empty a leaf if `settled` says so of its last rows; False if not, or if it is in use."""
    if not settled(await partition.last_rows(connection)):
        return False
    try:
        async with connection.transaction():
            await give_up_soon(connection)
            await connection.execute(f"lock table only {partition.name} in access exclusive mode")
            # Once more under the lock: nobody is inserting now, not even a prepared transaction,
            # and this statement sees all that was committed before.
            if not settled(await partition.last_rows(connection)):
                return False
            await connection.execute(f"truncate table only {partition.name}")
    except (*BUSY, errors.UndefinedTable, errors.InsufficientPrivilege):
        return False
    return True


async def lay_out(connection: Connection) -> int:
    """Make leaves ahead and drop those that are not needed, if there is a reason to.

    It does nothing, and the next round tries again, if the lock is not free, the role lacks the
    right, or another process does it now.

    Returns:
        The number of leaves dropped.
    """
    try:
        async with connection.transaction():
            ((ours,),) = await rows_of(connection, "select pg_try_advisory_xact_lock(%s)", (_KEY,))
            return await _lay_out(connection) if ours else 0
    except (*BUSY, errors.CheckViolation, errors.InsufficientPrivilege, errors.DuplicateTable):
        return 0


async def _lay_out(connection: Connection) -> int:
    snapshot, now_us = await _now(connection)
    leaves = [leaf for leaf in await list_partitions(connection) if not leaf.is_default]
    sample = await rows_of(connection, _SAMPLE)
    plan = plan_layout(leaves, snapshot, now_us, sample[0][0] if sample else None)
    if plan is None:
        return 0
    await give_up_soon(connection)
    ((schema,),) = await rows_of(connection, _SCHEMA)
    for low, high in plan.new:
        await connection.execute(
            f"create table {schema}.{leaf_name(low, high)}"
            " (like late_task including defaults including constraints including indexes)"
        )
    await connection.execute("lock table only late_task in access exclusive mode")
    for leaf in plan.over:
        # They are empty, as was proven before. Still: to drop a row would be to lose a task.
        ((occupied,),) = await rows_of(
            connection, f"select exists (select 1 from only {leaf.name})"
        )
        if occupied:
            raise errors.LockNotAvailable(f"{leaf.name} is not empty any more")
        await connection.execute(f"drop table {leaf.name}")
    for low, high in plan.new:
        await connection.execute(
            f"alter table late_task attach partition {schema}.{leaf_name(low, high)}"
            f" for values from ('{low}') to ('{high}')"
        )
    if plan.new:
        await connection.execute(_KEEP_SAMPLE, (f"{snapshot.xmax},{now_us}",))
    return sum(1 for leaf in plan.over if leaf.low <= snapshot.xmax)


class PartitionPlan(msgspec.Struct, frozen=True):
    """The changes that one round makes to the layout."""

    over: Sequence[Partition]
    """Leaves to drop: behind the present and empty, or ahead of it and about to be replaced."""
    new: Sequence[tuple[int, int]]
    """Ranges [low, high) of the leaves to make."""


def plan_layout(
    leaves: Sequence[Partition], snapshot: Snapshot, now_us: int, sample: str | None
) -> PartitionPlan | None:
    """Decide on the layout; None when there is no reason to take the lock.

    Args:
        leaves: ascending, without the DEFAULT one.
        sample: `xmax,time_us` of the last layout, from which the rate is measured.
    """
    elapsed_s, grown = 0.0, 0
    if sample is not None:
        xmax, at_us = map(int, sample.split(","))
        elapsed_s, grown = (now_us - at_us) / 1e6, max(0, snapshot.xmax - xmax)
    rate = grown / elapsed_s if elapsed_s > 1 else 0.0
    # The present may have reached this xid by the time the lock is held.
    present = snapshot.xmax + max(MARGIN_MIN, round(rate * MARGIN_S))
    over = [
        leaf for leaf in leaves if leaf.size_bytes == 0 and snapshot.sees_all(leaf.low, leaf.high)
    ]
    ahead = [leaf for leaf in leaves if leaf.low > present]
    new: list[tuple[int, int]] = []
    inside = any(leaf.low <= present < leaf.high for leaf in leaves)
    if len(ahead) <= 2 or not inside:
        over += ahead
        # Ranges above a gap come from a restored copy; nothing is in them yet, so they go as well.
        begin = max([present, *(leaf.high for leaf in leaves if leaf not in over)])
        width = _width(rate, leaves, snapshot)
        for units in AHEAD:
            new.append((begin, begin + units * width))
            begin += units * width
    if not new and len(over) < DROP_AT:
        return None
    return PartitionPlan(over, new)


def _width(rate: float, leaves: Sequence[Partition], snapshot: Snapshot) -> int:
    """Return the transaction ids per range: by time, and fewer where each inserts many rows."""
    width = round(rate * PERIOD_S)
    for leaf in leaves:
        used = min(leaf.high, snapshot.xmax) - leaf.low
        if used > 0 and leaf.size_bytes > 0:
            width = min(width, SIZE_BYTES * used // leaf.size_bytes)
    return max(WIDTH_MIN, min(WIDTH_MAX, width))


def leaf_name(low: int, high: int) -> str:
    return f"late_task_{low}_{high}"


async def _now(connection: Connection) -> tuple[Snapshot, int]:
    ((snapshot, now_us),) = await rows_of(connection, _NOW)
    return parse_snapshot(snapshot), now_us


async def give_up_soon(connection: Connection) -> None:
    """Limit the wait for a lock and the work under it, for the rest of the transaction."""
    for setting, limit_ms in (
        ("lock_timeout", LOCK_TIMEOUT_MS),
        ("statement_timeout", WORK_TIMEOUT_MS),
        ("idle_in_transaction_session_timeout", SILENCE_MAX_MS),
    ):
        await connection.execute(f"set local {setting} = {limit_ms}")
