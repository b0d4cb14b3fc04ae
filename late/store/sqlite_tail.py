"""The tail of the SQLite store: from cursors to pages, in parts.

Why it is gap-free: `sqlite.py`. How a page is read: `sqlite_page.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import starmap

from late.store import sqlite_guards, sqlite_page
from late.store import sqlite_sql as sql
from late.store.base import Page
from late.task import Cursor, Record, ShardId

PART = 1_000
"""Records that one call reads, or up to a page more: some two milliseconds."""

Row = tuple[object, ...]
Cursors = Sequence[tuple[ShardId, Cursor]]


class Tail:
    """What the reads of one connection have found. Belongs to the thread of the connection."""

    def __init__(self) -> None:
        self._version = -1
        self._ends: dict[ShardId, int] = {}

    def forget(self) -> None:
        """Something was written to the log here: that does not move our own `data_version`."""
        self._ends.clear()

    def read(
        self, cursors: Cursors, limit: int, connection: sqlite3.Connection
    ) -> tuple[list[Page], Cursors]:
        """The next pages of the first shards, up to `PART` records or a page more; and the shards
        that are left. Shards with nothing new are left out."""
        # `data_version` moves when another connection commits. While it stands still, what lies
        # behind the end of a shard is known to be nothing. It is asked before the pages are read:
        # a commit in between is then read twice, and never missed.
        (version,) = connection.execute("pragma data_version").fetchone()
        if version != self._version:
            self._version = version
            self._ends.clear()
        pages: list[Page] = []
        now_us = count = 0
        for number, (shard_id, cursor) in enumerate(cursors):
            if count >= PART:
                return pages, cursors[number:]
            position = sql.position_of(cursor)
            if position >= self._ends.get(shard_id, sqlite_guards.POSITION_MAX):
                continue
            now_us = now_us or connection.execute(sql.NOW).fetchone()[0]
            found = sqlite_page.read(connection, shard_id, position, limit)
            if found is None:
                found = records(connection, sql.READ, (shard_id, position, limit))
            count += len(found)
            more = len(found) == limit
            end = found[-1].position if found else position
            if not more:
                self._ends[shard_id] = end
            if found:
                pages.append(Page(shard_id, found, sql.cursor_at(end), "", more, now_us))
        return pages, ()


def rows(connection: sqlite3.Connection, statement: str, values: Row) -> list[Row]:
    """All rows. A text that is not UTF-8, which only a raw INSERT can have put there, is read with
    replacement characters: one bad row must not stop a whole shard.
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


def records(connection: sqlite3.Connection, statement: str, values: Row) -> list[Record]:
    """The rows as records: their columns are in the order of its fields."""
    return list(starmap(Record, rows(connection, statement, values)))
