"""The tail of the PostgreSQL store: from cursors to pages, proven complete and durable.

`cursor.py` explains cursors, `statements.py` the statement `TAIL`, and
`docs/design/0003-postgres-tail.md` the measurements.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from psycopg.errors import LockNotAvailable

from late.errors import ServerInRecovery, StoreUnavailable
from late.model.task import Cursor, Record, ShardId
from late.store.base import Page, cursor_within
from late.store.postgres import statements as sql
from late.store.postgres.connection import CALL_TIMEOUT_S, Connection
from late.store.postgres.cursor import LAST_ID, PostgresWindow, parse, parse_snapshot
from late.store.postgres.disk_gate import DiskGate
from late.store.postgres.kept_plans import KeptPlans
from late.store.postgres.timeline import Timeline

CHUNK = 1_000
"""The number of rows turned into records before the event loop has its turn."""
ADVANCE_S = 1.0
"""The shortest time between two flushes for empty pages alone."""
LOOK_ROWS = 64
"""The most records of one read that make the next one a look; the most of a shard in a look."""
LOOK_AHEAD = 2_000
"""So many transactions may have begun since the last read that a look still serves."""

Windows = Mapping[ShardId, PostgresWindow]


class TailFrame(msgspec.Struct, frozen=True):
    """The state of the database when a step begins."""

    snapshot: str
    ins: str
    """The WAL position up to which a flush makes durable all that `snapshot` sees."""
    durable: bool
    """It was flushed already: the usual case if all commits are synchronous."""
    timeline: str
    now_us: int


class PostgresTail:
    """Reads pages, one call at a time, on a connection without a transaction.

    Args:
        durable: return no task whose commit is not on disk, and no place that a crash of the
            server can undo unnoticed (`disk_gate.py`). Otherwise a task that was committed with
            `synchronous_commit = off` may run, and be gone after a crash.
        timeline: what the guard of connections has seen; each read compares.
        guard: looks at the server of a connection, and refuses another one.
    """

    def __init__(
        self, *, durable: bool, timeline: Timeline, guard: Callable[[Connection], Awaitable[None]]
    ) -> None:
        self._durable = durable
        self._timeline = timeline
        self._guard = guard
        self._advanced_at = 0.0
        self._looks = False
        """True if the last read returned few records or none: the next one probably does too, and
        takes its frame along."""
        self._plans = KeptPlans()
        self._disk = DiskGate()

    async def read(
        self, connection: Connection, cursors: Mapping[ShardId, Cursor], limit: int
    ) -> list[Page]:
        """Read one page per shard; shards with nothing new may be left out.

        Raises:
            StoreRefused: the server turned out to be a standby, or one that was promoted since.
            PlaceInDoubt: it has crashed since.
        """
        if self._durable:
            await self._disk.check(connection)
        windows = {shard_id: parse(cursor) for shard_id, cursor in cursors.items()}
        frame, pages, waits = None, None, False
        if self._looks and _caught_up(windows):
            prepare = await self._plans.look(connection)
            try:
                frame, pages, waits = await _look(connection, windows, limit, prepare=prepare)
            except LockNotAvailable:
                if not prepare:
                    raise
                self._plans.locked()
        if pages is None:
            await self._plans.read(connection)
            frame = frame or await _frame(connection)
            pages, waits = await _read_windows(connection, windows, frame, limit)
        self._looks = sum([len(page.records) for page in pages]) <= LOOK_ROWS
        assert frame is not None
        if self._timeline.is_new(frame.timeline):
            await self._guard(connection)
        return await self._durable_pages(connection, pages, frame, waits=waits)

    async def _durable_pages(
        self, connection: Connection, pages: list[Page], frame: TailFrame, *, waits: bool
    ) -> list[Page]:
        """Return `pages` once their rows are on disk: those of commits that waited for it are, and
        if there are others (`waits`), once all is that the frame's snapshot sees.

        Empty pages are left out until then, except once every `ADVANCE_S`, with a flush.
        """
        now = time.monotonic()
        if self._durable and not frame.durable:
            idle = not any(page.records for page in pages)
            if idle and now - self._advanced_at < ADVANCE_S:
                return []
            if pages and (idle or waits or not self._disk.goes_ahead()):
                await _flushed(connection, frame.ins)
                self._disk.caught_up()
        else:
            self._disk.caught_up()
        self._advanced_at = now
        return pages


_FRAME_COLUMNS = len(TailFrame.__struct_fields__)


async def _frame(connection: Connection) -> TailFrame:
    cursor = await connection.execute(sql.FRAME)
    return _frame_of(await cursor.fetchone())


def _frame_of(row: Any) -> TailFrame:
    if row is None:
        raise ServerInRecovery("the server is a standby now: connect to the primary")
    return TailFrame(*row[:_FRAME_COLUMNS])


def _caught_up(windows: Windows) -> bool:
    """Return True if all shards have read everything up to one and the same snapshot."""
    ends = {window.prev if window.cur is None else "" for window in windows.values()}
    return len(ends) == 1 and "" not in ends


async def _look(
    connection: Connection, windows: Windows, limit: int, *, prepare: bool
) -> tuple[TailFrame, list[Page] | None, bool]:
    """Take a frame and read what it sees, in one statement: a round trip less in a stream; and
    whether some commit of it did not wait for the disk.

    The pages are None if more transactions have begun than `LOOK_AHEAD`: the rows of the last ones
    are missing then.
    """
    prev = next(iter(windows.values())).prev
    high = parse_snapshot(prev).xmax + LOOK_AHEAD
    limit = min(limit, LOOK_ROWS)
    async with connection.cursor(binary=True) as cursor:
        values = _values(prev, prev, windows, limit) | {"high": str(high)}
        statement = sql.LOOK if values["xips"] != "{}" else sql.LOOK_QUIET
        await cursor.execute(statement, values, prepare=prepare)
        rows: list[Any] = await cursor.fetchall()
    frame = _frame_of(rows[0] if rows else None)
    if frame.snapshot == prev:
        return frame, [], False
    if parse_snapshot(frame.snapshot).xmax > high:
        return frame, None, False
    records: dict[ShardId, list[Record]] = {shard_id: [] for shard_id in windows}
    for row in rows:
        if row[_FRAME_COLUMNS] is not None:
            records[row[_FRAME_COLUMNS]].append(Record(*row[_FRAME_COLUMNS:-1]))
    pages = _pages(records, prev, frame.snapshot, limit, frame.now_us)
    return frame, pages, any(row[-1] for row in rows)


async def _read_windows(
    connection: Connection, windows: Windows, frame: TailFrame, limit: int
) -> tuple[list[Page], bool]:
    """Read the next page of each shard, up to the frame's snapshot at most; and whether some commit
    of it did not wait for the disk."""
    # Shards that have caught up share a window, so usually there is one group. A shard that is
    # at its end already is done: no transaction has ended since.
    groups: dict[tuple[str, str], dict[ShardId, PostgresWindow]] = defaultdict(dict)
    for shard_id, window in windows.items():
        if window.prev != frame.snapshot:
            groups[window.prev, window.cur or frame.snapshot][shard_id] = window
    pages: list[Page] = []
    waits = False
    for (prev, cur), group in groups.items():
        more, wait = await _read_group(connection, prev, cur, group, limit, frame.now_us)
        pages, waits = pages + more, waits or wait
    return pages, waits


async def _read_group(
    connection: Connection, prev: str, cur: str, windows: Windows, limit: int, now_us: int
) -> tuple[list[Page], bool]:
    """Read the next page of each of the shards that share the window from `prev` to `cur`."""
    records: dict[ShardId, list[Record]] = {shard_id: [] for shard_id in windows}
    waits = False
    async with connection.cursor(binary=True) as cursor:
        values = _values(prev, cur, windows, limit)
        await cursor.execute(sql.TAIL if values["xips"] != "{}" else sql.TAIL_QUIET, values)
        while True:
            rows: list[Any] = await cursor.fetchmany(CHUNK)
            for row in rows:
                records[row[0]].append(Record(*row[:-1]))
                waits = waits or bool(row[-1])
            if len(rows) < CHUNK:
                break
            await asyncio.sleep(0)
    return _pages(records, prev, cur, limit, now_us), waits


def _pages(
    records: Mapping[ShardId, list[Record]], prev: str, cur: str, limit: int, now_us: int
) -> list[Page]:
    mark = f"{prev}|{cur}"
    pages = []
    for shard_id, found in records.items():
        full = len(found) == limit
        end = cursor_within(mark, found[-1]) if full else Cursor(cur)
        pages.append(Page(shard_id, found, end, mark, full, now_us))
    return pages


def _values(prev: str, cur: str, windows: Windows, limit: int) -> dict[str, Any]:
    """Return the parameters of `sql.TAIL`; all that can be computed here is a constant there.

    Arrays are written as text: psycopg has no type for xid8, and looks at every element of a list.
    """
    before = parse_snapshot(prev)
    keys = [each.key for each in windows.values()]
    # Where the range begins, as an exclusive row: at the page key, or right below `xmax(prev)`.
    floor = (before.xmax - 1, LAST_ID)
    starts = [max(key, floor) for key in keys] if before.xmax else keys
    key_xids, key_ids = zip(*keys, strict=True)
    from_xids, from_ids = zip(*starts, strict=True)
    least = min(key_xids)
    return {
        "cur": cur,
        "shards": _array(windows),
        "from_xids": _array(from_xids),
        "from_ids": _array(from_ids),
        "key_xids": _array(key_xids),
        "key_ids": _array(key_ids),
        "xips": _array(sorted([xid for xid in before.xip if xid >= least])),
        "low": str(max(before.xmax, min(from_xids))),
        "high": str(parse_snapshot(cur).xmax),
        "limit": limit,
    }


def _array(values: Iterable[int | str]) -> str:
    """Write an array literal of values without quotes: numbers and task ids of parsed cursors."""
    return "{" + ",".join(map(str, values)) + "}"


async def _flushed(connection: Connection, lsn: str) -> None:
    """Return when WAL is on disk up to `lsn`: nearly always it is by now; otherwise flush it.

    Usually one of our own settlements is ahead of the disk. To wait for its commit, or for any
    other, took longer than a flush, which also serves the transactions that wait for theirs.
    """
    if await _holds(connection, sql.FLUSH, lsn):
        return
    deadline = time.monotonic() + CALL_TIMEOUT_S / 2
    while not await _holds(connection, sql.FLUSHED, lsn):
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"WAL is not flushed up to {lsn}")
        await asyncio.sleep(0.01)


async def _holds(connection: Connection, statement: str, lsn: str) -> bool:
    cursor = await connection.execute(statement, (lsn,))
    row: Sequence[Any] | None = await cursor.fetchone()
    return row is not None and bool(row[0])
