"""Building the journal's index anew on PostgreSQL, when compaction has left it mostly empty.

Of a page with some 130 keys compaction leaves one or two, and PostgreSQL gives a page back when it
is empty and never joins two. So the index would grow with the settlements of a day, and by a page
for each shard and hour of the time that the journal is kept.

Nobody writes a settlement meanwhile, and that is short: 89 ms of processor time for 80,000 rows,
with the time limits of other work under a lock. It is one statement, so a crash leaves the index
as it was.
"""

from __future__ import annotations

from psycopg import errors

from late.store.postgres.connection import Connection, ConnectionPool, rows_of
from late.store.postgres.partitions import BUSY, give_up_soon

LOOK_AFTER = 20_000
"""Rows of the journal that go between two looks at its index: some 1.3 MB of it."""
ROWS_MAX = 100_000
"""A journal of more rows is left alone: the pause would be felt, and by the task it grows less."""
WORTH_BYTES = 1 << 20
ENTRY_BYTES = 45
"""A key in a full page, with a group of some ten letters."""
TIMES = 3
"""An index of so many times the size that its rows need is built anew."""

# -1 rows: not known yet. Who does not own the table cannot do it.
_LOOK = """
select i.indexrelid::regclass::text, pg_relation_size(i.indexrelid), c.reltuples::bigint
  from pg_index i join pg_class c on c.oid = i.indrelid
 where i.indrelid = 'late_settlement'::regclass and i.indisprimary
   and c.reltuples >= 0 and pg_has_role(c.relowner, 'usage')
"""


class JournalIndex:
    """Builds the index anew when that is worth it. `gone` counts on, over all rounds of pruning."""

    def __init__(self) -> None:
        self._gone = 0

    async def repack(self, links: ConnectionPool, gone: int) -> bool:
        """Build the index anew, if enough rows went and it is far larger than they need.

        It does nothing, and looks again after as many rows, if the lock is not free.

        Args:
            gone: rows of the journal that this round has removed.
        """
        self._gone += gone
        if self._gone < LOOK_AFTER:
            return False
        self._gone = 0
        async with links.use() as connection:
            for name, size_bytes, rows in await rows_of(connection, _LOOK):
                if is_worth_it(size_bytes, rows):
                    return await _rebuild(connection, name)
        return False


def is_worth_it(size_bytes: int, rows: int) -> bool:
    """Tell whether most of an index is empty, and a new one is built in a moment. Pure."""
    needed = rows * ENTRY_BYTES
    return size_bytes - needed >= WORTH_BYTES and size_bytes >= TIMES * needed and rows <= ROWS_MAX


async def _rebuild(connection: Connection, name: str) -> bool:
    try:
        async with connection.transaction():
            await give_up_soon(connection)
            await connection.execute(f"reindex index {name}")
    except (*BUSY, errors.InsufficientPrivilege):
        return False
    return True
