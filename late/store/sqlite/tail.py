"""The tail of the SQLite store: from cursors to pages, in parts.

`store.py` explains why it is gap-free, `page_decoder.py` how a page is read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import starmap

from late.model.task import Cursor, Record, ShardId
from late.store.base import Page
from late.store.sqlite import guard, page_decoder
from late.store.sqlite import statements as sql
from late.store.sqlite.cursor import cursor_at, position_of
from late.store.sqlite.write_lock import clock

PART = 1_000
"""The number of records that one call reads, or up to a page more: about two milliseconds."""

Row = tuple[object, ...]
Cursors = Sequence[tuple[ShardId, Cursor]]


class SqliteTail:
    """Reads pages and remembers the ends of the shards. It belongs to the connection's thread."""

    def __init__(self) -> None:
        self._version = -1
        self._ends: dict[ShardId, int] = {}

    def forget(self) -> None:
        """Forget the ends after a write to the log here, which does not change `data_version`."""
        self._ends.clear()

    def read(
        self, cursors: Cursors, limit: int, connection: sqlite3.Connection
    ) -> tuple[list[Page], Cursors]:
        """Read the next pages of the first shards, up to `PART` records or a page more; return them
        and the shards that are left. Shards with nothing new have no page."""
        pages: list[Page] = []
        looked = False
        count = 0
        for number, (shard_id, cursor) in enumerate(cursors):
            if count >= PART:
                return pages, cursors[number:]
            position = position_of(cursor)
            if shard_id in self._ends and not looked:
                looked = True
                self._look(connection)
            if position >= self._ends.get(shard_id, guard.POSITION_MAX):
                continue
            now_us, records = self._page(connection, shard_id, position, limit)
            count += len(records)
            more = len(records) == limit
            end = records[-1].position if records else position
            if not more:
                self._ends[shard_id] = end
            if records:
                pages.append(Page(shard_id, records, cursor_at(end), "", more, now_us))
        return pages, ()

    def _page(
        self, connection: sqlite3.Connection, shard_id: ShardId, after: int, limit: int
    ) -> tuple[int, list[Record]]:
        """Read one page, and the database's clock."""
        found = page_decoder.read(connection, shard_id, after, limit)
        if found is None:
            # Before the rows are read: a commit in between is then read twice, never missed.
            self._look(connection)
            return clock(connection), by_row(connection, sql.READ, (shard_id, after, limit))
        self._seen(found.version)
        return found.now_us, found.records

    def _look(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("pragma data_version").fetchone()
        self._seen(version)

    def _seen(self, version: int) -> None:
        """Forget the ends if the version changed: until then there is nothing behind them."""
        if version != self._version:
            self._version = version
            self._ends.clear()


def rows(connection: sqlite3.Connection, statement: str, values: Row) -> list[Row]:
    """Run a statement and return all rows. A text that is not UTF-8, which only a raw INSERT can
    write, is read with replacement characters: one bad row must not stop a whole shard.
    """
    try:
        return connection.execute(statement, values).fetchall()
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" not in str(error):
            raise
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.text_factory = str


def by_row(connection: sqlite3.Connection, statement: str, values: Row) -> list[Record]:
    """Run a statement whose columns are the fields of `Record`, and return its records."""
    return list(starmap(Record, rows(connection, statement, values)))
