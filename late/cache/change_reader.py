"""Read the changes from the tail of the log, and prove that none is missing.

A cache is no consumer group: nobody waits for it, and the log lets a record go once every group has
settled it and the retention is over. The retention counts from the settlement, so it is a time for
which every change is there. If two reads are closer together than half of it, by the database's
clock, no change between them is lost.
"""

from __future__ import annotations

import time

import msgspec
from sqlalchemy import Connection

from late.cache.database import Head, head_of, moment_of
from late.cache.moment import Moment
from late.cache.versions import Change
from late.errors import DecodeError, StoreError
from late.model.task import Cursor, Record, ShardId
from late.payload.command import CHANGED, CHANGES_SHARD, changed_keys
from late.store.base import Store

PAGE = 1_000
_SHARD = ShardId(CHANGES_SHARD)


class Round(msgspec.Struct, frozen=True):
    """A step of the reader: the changes that `moment` sees and the round before does not; it may
    have some more."""

    moment: Moment
    moment_s: float
    """A monotonic time before that moment."""
    changes: list[Change]


class ChangeReader:
    """Reads the changes of one database. It blocks its event loop for short statements.

    Args:
        store: an open store.
        connection: a connection of `database.connect`, for this reader alone.
    """

    def __init__(self, store: Store, connection: Connection) -> None:
        self._store = store
        self._connection = connection
        self._dialect = connection.dialect.name
        self._cursor = Cursor("")
        self._head: Head | None = None
        self._changes: list[Change] = []

    async def read(self) -> Round | None:
        """Read the changes since the last round; the first round has none.

        Returns:
            None if the log is not durable up to its end yet: ask again.

        Raises:
            StoreError: the database is away, the log may have lost a change, or a record cannot be
                read. Begin with a new reader, and with nothing known.
            ConfigError: the log keeps nothing.
        """
        now_s = time.monotonic()
        head = head_of(self._connection)
        moment = moment_of(head.cursor, self._dialect)
        before = self._head
        if before is None:
            self._cursor = head.cursor
        elif head.cursor != before.cursor:
            if not await self._read_up_to(moment):
                return None
            end = head_of(self._connection)
            if (end.now_us - before.now_us) * 2 > end.kept_us:
                raise StoreError("the log was not read for so long that it may have lost a change")
        self._head = head
        changes, self._changes = self._changes, []
        return Round(moment, now_s, changes)

    async def _read_up_to(self, moment: Moment) -> bool:
        """Read pages to the end of the log; return True if they cover `moment`."""
        more = True
        while more:
            pages = await self._store.read({_SHARD: self._cursor}, PAGE)
            more = any(page.more for page in pages)
            for page in pages:
                self._cursor = page.cursor
                for record in page.records:
                    if record.name == CHANGED:
                        self._changes.append(_change(record))
        if self._dialect != "postgresql":
            return True
        # Pages that are not on disk yet are held back there: an empty answer proves nothing.
        covered = moment_of(self._cursor, self._dialect) if "|" not in self._cursor else None
        return covered is not None and covered.order >= moment.order


def _change(record: Record) -> Change:
    try:
        return Change(record.task_id, record.position, changed_keys(record))
    except DecodeError as error:
        raise StoreError(f"a change that cannot be read: {error}") from error
