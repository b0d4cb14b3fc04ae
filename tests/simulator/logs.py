"""Task logs as the four databases keep them: where a row gets its position, and what a read sees.

Each is a few dozen lines over a plain list of committed rows, made so that one can see that it is
right; the conformance machine runs the same rules against them and against the real stores.

| profile | position | a read sees | cursor |
|---|---|---|---|
| sqlite | rowid, under the only write lock | what is committed | the last rowid |
| postgres | xid, taken at the first write | what its snapshot sees | the snapshot |
| spanner | commit timestamp, ties are frequent | commits at or before T | T |
| cockroach | id; a version has a timestamp, which reads push up | versions up to T | two passes |
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from late.model.task import Cursor, Options, Record
from late.store.cockroach import cursor as cockroach
from late.store.postgres.cursor import parse, parse_snapshot

Key = tuple[int, str]
Covers = Callable[[Record], bool]


class Read(msgspec.Struct, frozen=True):
    """What one read of one shard gives; see `late.store.base.Page`."""

    records: list[Record]
    cursor: Cursor
    window: str
    more: bool


class Log(Protocol):
    """The log of one database, all shards."""

    rows: dict[int, list[Record]]
    """Committed rows by shard."""
    in_order: bool
    """Whether the tasks of an ordering key run in the order of their inserts."""

    def begin(self) -> int:
        """A transaction begins to write."""

    def commit(self, transaction: int, records: Sequence[Record]) -> list[Record]:
        """It commits, now; returns the rows with their positions."""

    def abort(self, transaction: int) -> None: ...

    def read(self, shard_id: int, cursor: Cursor, limit: int) -> Read | None:
        """None: nothing new, and no newer cursor."""

    def covering(self, cursor: Cursor) -> Covers:
        """Of a row, whether who holds this cursor has been shown it."""


def _key(record: Record) -> Key:
    return record.position, record.task_id


def _add(rows: dict[int, list[Record]], records: Sequence[Record]) -> None:
    for record in records:
        rows[record.shard_id].append(record)


def _page(rows: Sequence[Record], limit: int, window: str, end: Cursor) -> Read:
    """The first `limit` of `rows`; a full page ends within its window."""
    page = sorted(rows, key=_key)[:limit]
    if len(page) < limit:
        return Read(page, end, window, more=False)
    last = page[-1]
    return Read(page, Cursor(f"{window}@{last.position},{last.task_id}"), window, more=True)


class SqliteLog:
    """One writer at a time, so that the order of rowids is that of commits."""

    in_order = True

    def __init__(self) -> None:
        self.rows: dict[int, list[Record]] = defaultdict(list)
        self._last = 0

    def begin(self) -> int:
        return 0

    def commit(self, transaction: int, records: Sequence[Record]) -> list[Record]:
        done = []
        for record in records:
            self._last += 1
            done.append(msgspec.structs.replace(record, position=self._last, sequence=self._last))
        _add(self.rows, done)
        return done

    def abort(self, transaction: int) -> None:
        """Nothing has been taken: the rowid comes with the lock."""

    def read(self, shard_id: int, cursor: Cursor, limit: int) -> Read:
        after = _place(cursor)
        rows = [r for r in self.rows[shard_id] if _key(r) > after]
        return _page(rows, limit, str(self._last), Cursor(str(self._last)))

    def covering(self, cursor: Cursor) -> Covers:
        place = _place(cursor)
        return lambda record: (record.position, record.task_id) <= place


@lru_cache(maxsize=4096)
def _place(cursor: Cursor) -> Key:
    """How far a cursor of whole positions goes: `~` is above every task id."""
    _, at, key = cursor.partition("@")
    if at:
        position, _, task_id = key.partition(",")
        return int(position), task_id
    return int(cursor or 0), "~"


class PostgresLog:
    """Rows have the xid of their transaction, and a lower one may commit later.

    They are inserted at the moment of the commit: so of two tasks of a key one always had committed
    before the other was inserted."""

    in_order = True

    def __init__(self) -> None:
        self.rows: dict[int, list[Record]] = defaultdict(list)
        self._next = 3
        self._running: set[int] = set()
        self._sequence = 0
        self._completed = 0

    def begin(self) -> int:
        xid, self._next = self._next, self._next + 1
        self._running.add(xid)
        return xid

    def commit(self, transaction: int, records: Sequence[Record]) -> list[Record]:
        done = []
        for record in records:
            self._sequence += 1
            done.append(
                msgspec.structs.replace(
                    record,
                    position=transaction,
                    sequence=self._sequence,
                    options=self._in_order(transaction, record.options),
                )
            )
        _add(self.rows, done)
        self.abort(transaction)
        return done

    def _in_order(self, transaction: int, options: str | None) -> str | None:
        """Do as the producers' statement does: note which transactions have ended before."""
        if options is None or self._completed < transaction:
            return options
        asked = msgspec.json.decode(options, type=Options)
        if asked.ordering_key is None:
            return options
        asked = msgspec.structs.replace(asked, committed_below=self._completed + 1)
        return msgspec.json.encode(asked).decode()

    def abort(self, transaction: int) -> None:
        self._running.discard(transaction)
        self._completed = max(self._completed, transaction)

    def read(self, shard_id: int, cursor: Cursor, limit: int) -> Read:
        place = parse(cursor)
        prev, cur = place.prev, place.cur
        if cur is None:
            running = sorted(self._running)
            low = running[0] if running else self._next
            cur = f"{low}:{self._next}:{','.join(map(str, running))}"
        sees = parse_snapshot(cur).sees
        rows = [
            r
            for r in self.rows[shard_id]
            if sees(r.position) and not place.covers(r.position, r.task_id)
        ]
        return _page(rows, limit, f"{prev}|{cur}", Cursor(cur))

    def covering(self, cursor: Cursor) -> Covers:
        covers = parse(cursor).covers
        return lambda record: covers(record.position, record.task_id)


class SpannerLog:
    """Commit timestamps. Transactions that touch different rows may have the same one, as long
    as nobody has read at it."""

    in_order = True

    def __init__(self, now: Callable[[], int], rng: random.Random, ties: float = 0.1) -> None:
        self.rows: dict[int, list[Record]] = defaultdict(list)
        self._now = now
        self._rng = rng
        self._ties = ties
        self._last = 0
        self._read_at = 0

    def begin(self) -> int:
        return 0

    def commit(self, transaction: int, records: Sequence[Record]) -> list[Record]:
        tie = self._last > self._read_at and self._rng.random() < self._ties
        if not tie:
            self._last = max(self._now(), self._last + 1, self._read_at + 1)
        done = [
            msgspec.structs.replace(record, position=self._last, sequence=self._last)
            for record in records
        ]
        _add(self.rows, done)
        return done

    def abort(self, transaction: int) -> None:
        """A timestamp comes with the commit."""

    def read(self, shard_id: int, cursor: Cursor, limit: int) -> Read:
        window, at, _ = cursor.partition("@")
        after = _place(cursor)
        moment = int(window) if at else max(self._now(), self._last)
        self._read_at = max(self._read_at, moment)
        rows = [r for r in self.rows[shard_id] if _key(r) > after and r.position <= moment]
        return _page(rows, limit, str(moment), Cursor(str(moment)))

    def covering(self, cursor: Cursor) -> Covers:
        place = _place(cursor)
        return lambda record: (record.position, record.task_id) <= place


class CockroachLog:
    """Every row has the timestamp of its commit, which may be long after its id was made. A read
    at T keeps later writes to what it has read above T: a transaction that began before it is
    pushed, and commits with a newer timestamp than it began with. Each statement goes through
    some gateway, with a clock of its own."""

    in_order = False

    def __init__(self, now: Callable[[], int], rng: random.Random) -> None:
        self.rows: dict[int, list[Record]] = defaultdict(list)
        self._now = now
        self._rng = rng
        self._skews_us = [rng.randint(-250_000, 250_000) for _ in range(3)]
        self._made = 0
        self._begun: dict[int, int] = {}
        self._moments: dict[str, int] = {}
        """Of each row, the first whole microsecond that is not before its commit."""
        self._reads: dict[int, dict[tuple[str, str], int]] = defaultdict(dict)
        """shard -> (first id, last id) -> timestamp: no write in that range at or below it."""

    def _clock(self) -> int:
        return self._now() + self._rng.choice(self._skews_us)

    def begin(self) -> int:
        self._made += 1
        self._begun[self._made] = self._clock()
        return self._made

    def commit(self, transaction: int, records: Sequence[Record]) -> list[Record]:
        # The lowest timestamp that the reads so far allow, however long it was open.
        moment = self._begun.pop(transaction)
        for record in records:
            for (first, last), at in self._reads[record.shard_id].items():
                if first <= record.task_id <= last and moment <= at:
                    moment = at + 1
        done = [
            msgspec.structs.replace(
                record,
                position=cockroach.position_of(record.task_id),
                sequence=record.created_at_us,
            )
            for record in records
        ]
        self._moments.update((record.task_id, moment) for record in done)
        _add(self.rows, done)
        return done

    def abort(self, transaction: int) -> None:
        del self._begun[transaction]

    def read(self, shard_id: int, cursor: Cursor, limit: int) -> Read | None:
        at = self._clock() - cockroach.LAG_US
        before = cockroach.parse(cursor)
        window = before.next(shard_id, at)
        if window is None:
            return None
        first, until = window.first_key, window.until or 0
        rows = [
            r
            for r in self.rows[shard_id]
            if r.task_id >= first
            and r.task_id > window.key
            and self._moments[r.task_id] <= until
            and not before.covers(self._moments[r.task_id], r.task_id)
        ]
        full = len(rows) >= limit
        page = _page(rows, limit, window.mark, window.end().text)
        scanned = first, page.records[-1].task_id if full else "g"
        reads = self._reads[shard_id]
        reads[scanned] = max(at, reads.get(scanned, 0))
        return page if rows or window.sweep or before.until is not None else None

    def covering(self, cursor: Cursor) -> Covers:
        covers, moments = cockroach.parse(cursor).covers, self._moments
        return lambda record: covers(moments[record.task_id], record.task_id)
