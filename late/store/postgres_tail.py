"""The tail of the PostgreSQL store: from cursors to pages, proven complete and durable.

See `postgres_cursor` for what a cursor is, `postgres_sql.TAIL` for the statement and
`docs/design/0003-postgres-tail.md` for what was measured.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from late.errors import StoreRefused, StoreUnavailable
from late.store import postgres_sql as sql
from late.store.base import Page
from late.store.postgres_cursor import LAST_ID, XID_MAX, Window, parse, parse_snapshot
from late.store.postgres_link import CALL_TIMEOUT_S, Connection
from late.task import Cursor, Record, ShardId

CHUNK = 1_000
"""Rows turned into records before the event loop gets its turn."""
FLUSH_POLLS_S = (0.0005, 0.001, 0.002)
"""Waits for somebody else's flush before we commit something ourselves."""
ADVANCE_S = 1.0
"""Empty pages wait for a flush of their own at most this often."""

Windows = Mapping[ShardId, Window]


class Tail:
    """Reads pages. Used by one call at a time, on a connection that never writes in a
    transaction of its own.

    Args:
        durable: hand out a page only when all that it may contain is on disk. Without it a task
            that was committed with `synchronous_commit = off` may run and then never have
            existed, if the server crashes.
    """

    def __init__(self, *, durable: bool) -> None:
        self._durable = durable
        self._advanced_at = 0.0

    async def read(
        self, connection: Connection, cursors: Mapping[ShardId, Cursor], limit: int
    ) -> list[Page]:
        """One page per shard; shards with nothing new may be left out.

        Raises:
            StoreRefused: the server turned out to be a standby.
        """
        windows = {shard_id: parse(cursor) for shard_id, cursor in cursors.items()}
        if await _unchanged(connection, windows):
            return []
        groups: dict[tuple[str, str | None], dict[ShardId, Window]] = defaultdict(dict)
        for shard_id, window in windows.items():
            groups[window.prev, window.cur][shard_id] = window
        pages: list[Page] = []
        ins = None
        for group in groups.values():
            step, durable_at = await _read_group(connection, group, limit)
            pages += step
            ins = durable_at or ins
        return await self._durable_pages(connection, pages, ins)

    async def _durable_pages(
        self, connection: Connection, pages: list[Page], ins: str | None
    ) -> list[Page]:
        """`pages` once WAL is flushed up to `ins`; None says that it was already.

        Cursors need it as much as rows: an xid that a crash takes back is given again, and a
        cursor that had seen it would hide the second transaction. So an empty page is left out
        rather than handed out early, except that once in a while it is worth a flush.
        """
        now = time.monotonic()
        idle = not any(page.records for page in pages)
        if ins is not None and self._durable:
            if idle and now - self._advanced_at < ADVANCE_S:
                return []
            await _flushed(connection, ins)
        self._advanced_at = now
        return pages


async def _unchanged(connection: Connection, windows: Windows) -> bool:
    """Whether no transaction has ended since all of `windows` were read to their end."""
    prev = {window.prev if window.cur is None else "" for window in windows.values()}
    if len(prev) != 1 or "" in prev:
        return False
    cursor = await connection.execute(sql.PROBE)
    row = await cursor.fetchone()
    return row is not None and row[0] in prev


async def _read_group(
    connection: Connection, windows: Windows, limit: int
) -> tuple[list[Page], str | None]:
    """The pages of shards that share a window, and the LSN up to which WAL must be flushed
    before they may be used; None when it is already."""
    window = next(iter(windows.values()))
    values = _values(window, windows, limit)
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(sql.TAIL, values)
        header: Any = await cursor.fetchone()
        _, _, cur, durable, ins, _, _, _, now_us, _ = header
        if durable == "standby":
            raise StoreRefused("the server is a standby now: connect to the primary")
        records: dict[ShardId, list[Record]] = {shard_id: [] for shard_id in windows}
        while True:
            rows: list[Any] = await cursor.fetchmany(CHUNK)
            for row in rows:
                records[row[0]].append(Record(*row))
            if len(rows) < CHUNK:
                break
            await asyncio.sleep(0)
    mark = f"{window.prev}|{cur}"
    pages = []
    for shard_id, found in records.items():
        full = len(found) == limit
        end = f"{mark}@{found[-1].position},{found[-1].task_id}" if full else cur
        pages.append(Page(shard_id, found, Cursor(end), mark, full, now_us))
    return pages, None if durable == "true" else ins


def _values(window: Window, windows: Windows, limit: int) -> dict[str, Any]:
    """Parameters of `sql.TAIL`, with everything that can be worked out here as a constant."""
    prev = parse_snapshot(window.prev)
    high = XID_MAX if window.cur is None else parse_snapshot(window.cur).xmax
    keys = [each.key for each in windows.values()]
    # Where the range begins, as an exclusive row: at the page key, or right below `xmax(prev)`.
    starts = [max(key, (prev.xmax - 1, LAST_ID)) if prev.xmax else key for key in keys]
    running = sorted(xid for xid in prev.xip if xid >= min(keys)[0])
    return {
        "cur": window.cur,
        "shards": list(windows),
        "from_xids": _array(xid for xid, _ in starts),
        "from_ids": [task_id for _, task_id in starts],
        "key_xids": _array(xid for xid, _ in keys),
        "key_ids": [task_id for _, task_id in keys],
        "xips": _array(running),
        "low": str(max(prev.xmax, min(starts)[0])),
        "high": str(high),
        "limit": limit,
    }


def _array(xids: Any) -> str:
    """An array literal; psycopg has no type for xid8."""
    return "{" + ",".join(map(str, xids)) + "}"


async def _flushed(connection: Connection, lsn: str) -> None:
    """Return when WAL is on disk up to `lsn`.

    Under load somebody's commit flushes within a millisecond. On an idle server with
    asynchronous committers the walwriter takes its time, so we commit something ourselves.
    """
    for pause_s in FLUSH_POLLS_S:
        if await _is_flushed(connection, lsn):
            return
        await asyncio.sleep(pause_s)
    await connection.execute(sql.FLUSH)
    deadline = time.monotonic() + CALL_TIMEOUT_S / 2
    while not await _is_flushed(connection, lsn):
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"WAL is not flushed up to {lsn}")
        await asyncio.sleep(0.01)


async def _is_flushed(connection: Connection, lsn: str) -> bool:
    cursor = await connection.execute(sql.FLUSHED, (lsn,))
    row: Sequence[Any] | None = await cursor.fetchone()
    return row is not None and bool(row[0])
