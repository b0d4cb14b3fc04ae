"""Compaction of the journal on PostgreSQL and CockroachDB, one batch at a time.

Rows go by DELETE and not with a partition: the primary key, which is the fence, would need the
partition's column in it, and then nothing would keep one `seq` from being in two partitions. The
journal is small, and autovacuum follows it: see `docs/design/0026`.
"""

from __future__ import annotations

import asyncio
from functools import partial

from late.store.common.compaction import (
    PROBE,
    Compacted,
    JournalRow,
    Stretch,
    plan_sums,
)
from late.store.compactor import Compactor
from late.store.postgres import statements as sql
from late.store.postgres.connection import Connection, ConnectionPool, rows_of

# Of two transactions that put the same rows together, the first to commit wins, and the other one
# fails: what it had read would no longer be what it replaces.
_BEGIN = "set transaction isolation level {}"
REPEATABLE_READ, SERIALIZABLE = "repeatable read", "serializable"
_GIVE_UP = "set local idle_in_transaction_session_timeout = 5000"


async def compact(
    links: ConnectionPool,
    compactor: Compactor,
    *,
    detail_s: float,
    minute_s: float,
    isolation: str = REPEATABLE_READ,
) -> int:
    """Compact all journals; return the number of rows that went."""
    async with links.use() as connection:
        journals = await rows_of(connection, sql.LAST_SETTLEMENTS)
        ((now_us,),) = await rows_of(connection, sql.CLOCK)
    return await compactor.run(
        [(group, shard_id, last) for group, shard_id, last in journals],
        partial(_step, links, isolation),
        now_us=now_us,
        detail_s=detail_s,
        minute_s=minute_s,
    )


async def _step(links: ConnectionPool, isolation: str, stretch: Stretch, limit: int) -> Compacted:
    async with links.use() as connection:
        if limit == PROBE:
            return plan_sums(await _read(connection, stretch, limit), stretch, limit)
        async with connection.transaction():
            await connection.execute(_BEGIN.format(isolation))
            await connection.execute(_GIVE_UP)
            rows = await _read(connection, stretch, limit)
            # In a thread: the usage of many tenants takes long to add up.
            done = await asyncio.to_thread(plan_sums, rows, stretch, limit)
            journal = (stretch.group, stretch.shard_id)
            for each in done.sums:
                await connection.execute(sql.DELETE_SUMMED, (*journal, each.low, each.seq))
                await connection.execute(
                    sql.UPDATE_SUM, (each.first_seq, each.usage, *journal, each.seq)
                )
        return done


async def _read(connection: Connection, stretch: Stretch, limit: int) -> list[JournalRow]:
    values = (stretch.group, stretch.shard_id, stretch.start, stretch.last, limit)
    return [JournalRow(*row) for row in await rows_of(connection, sql.COMPACTED, values)]
