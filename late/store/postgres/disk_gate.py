"""Decide when a page is handed out: at once, or when all that its cursor sees is on disk.

A commit is visible to others when it is on disk, unless its transaction does not wait for that
(`synchronous_commit = off`); a row of such a one says so (`asynchronous`). The rest of a page can
start at once.

The cursor of a page sees every transaction that has ended, also those of which a crash leaves
nothing. The server gives their ids again then, and the cursor would hide what has them next. While
the server lives, that does no harm, and every row of the journal puts on disk what its cursor sees.
So only a cursor in memory is in doubt, and only after a crash. `check` finds that out on the next
connection, and what is in memory is thrown away.

Only a connection to the server itself goes ahead: it ends with the server, where a pooler's goes on
with the next one.
"""

from __future__ import annotations

from psycopg.errors import InsufficientPrivilege

from late.errors import PlaceInDoubt
from late.store.postgres.connection import Connection, rows_of

# The second one changes where the server lost one process and started all others anew.
_INSTANCE = """
select pg_postmaster_start_time()::text || ' ' || coalesce(stats_reset::text, '')
  from pg_stat_bgwriter
"""


class DiskGate:
    """The gate of one reader of the log."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._instance: str | None = None
        """Changes with a crash. None: the role may not know."""
        self._ahead = False
        """A cursor was handed out that sees more than is known to be on disk."""

    async def check(self, connection: Connection) -> None:
        """Look at a connection before it is read from.

        Raises:
            PlaceInDoubt: the server is not the one that the last pages came from.
        """
        if connection is self._connection:
            return
        instance = await _instance_of(connection)
        is_another = instance is None or instance != self._instance
        self._connection, self._instance = connection, instance
        if self._ahead and is_another:
            self._ahead = False
            raise PlaceInDoubt(
                "PostgreSQL was started anew: shards are read from their last settlement on"
            )

    def goes_ahead(self) -> bool:
        """Return whether rows may be handed out before all that their cursor sees is on disk, and
        note that they are."""
        connection = self._connection
        if self._instance is None or connection is None or connection.prepare_threshold is None:
            return False
        self._ahead = True
        return True

    def caught_up(self) -> None:
        """Note that all that was ever handed out is on disk."""
        self._ahead = False


async def _instance_of(connection: Connection) -> str | None:
    try:
        rows = await rows_of(connection, _INSTANCE)
    except InsufficientPrivilege:
        return None
    return str(rows[0][0])
