"""The connection of a SQLite store and the thread that owns it: turns, waiting, closing."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from late.errors import StoreClosed, TransactionAborted
from late.model.task import ShardId
from late.store.base import Page
from late.store.sqlite import (
    page_decoder as sqlite_page,
)
from late.store.sqlite import (
    rebase as sqlite_rebase,
)
from late.store.sqlite import (
    tail as sqlite_tail,
)
from late.store.sqlite import (
    write_lock as sqlite_lock,
)
from late.store.sqlite.store import SqliteStore
from tests.integration.sqlite_kit import (  # noqa: F401 - fixtures
    BEGINNING,
    SHARD,
    insert,
    settle,
    sqlite_path,
    sqlite_raw,
    sqlite_store,
    sqlite_template,
)


class Often:
    """Called twenty times, from any thread: more often than SQLite asks in its own waiting."""

    def __init__(self) -> None:
        self._left = 20
        self._reached = threading.Event()

    def __call__(self, _: object) -> None:
        self._left -= 1
        if self._left <= 0:
            self._reached.set()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, 4)


# --- the write lock ------------------------------------------------------------------------------


async def test_the_connection_is_set_for_the_promise(store: SqliteStore) -> None:
    def ask(connection: sqlite3.Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "busy_timeout", "read_uncommitted")
        return [connection.execute(f"pragma {name}").fetchone()[0] for name in names]

    assert await store._on_connection(ask) == ["wal", 2, 0, 0]


async def test_the_write_lock_is_asked_for_every_millisecond(
    store: SqliteStore, raw: sqlite3.Connection
) -> None:
    (lease,) = await store.acquire("w1", [("default", SHARD)])
    often = Often()
    await store._on_connection(lambda c: c.set_trace_callback(often))
    raw.execute("begin immediate")
    settling = asyncio.create_task(settle(store, lease, BEGINNING))
    await often.reached()
    raw.execute("rollback")
    await settling


async def test_a_lock_held_too_long_is_transient(
    path: Path, raw: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_lock, "BUSY_TIMEOUT_S", 0.02)
    store = SqliteStore(f"sqlite:///{path}")
    await store.open()
    raw.execute("begin immediate")

    with pytest.raises(TransactionAborted):
        await store.acquire("w1", [("default", SHARD)])
    assert await store.read({SHARD: BEGINNING}, 10) == [], "readers do not wait for writers"
    raw.execute("rollback")

    assert len(await store.acquire("w1", [("default", SHARD)])) == 1
    await store.close()


async def test_a_rebase_asks_for_the_lock_as_often(
    path: Path, raw: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    often, rebase = Often(), sqlite_rebase._rebase

    def counted(connection: sqlite3.Connection, at: Path) -> None:
        often(at)
        rebase(connection, at)

    monkeypatch.setattr(sqlite_rebase, "_rebase", counted)
    raw.execute("begin immediate")
    rebasing = asyncio.create_task(SqliteStore(f"sqlite:///{path}").rebase())
    await often.reached()
    raw.execute("rollback")
    await rebasing


# --- turns ---------------------------------------------------------------------------------------


async def test_an_idle_read_asks_for_the_version_and_nothing_else(
    store: SqliteStore, raw: sqlite3.Connection
) -> None:
    insert(raw, 3)
    cursors = {SHARD: BEGINNING, ShardId(1): BEGINNING}
    (page,) = await store.read(cursors, 10)
    cursors[SHARD] = page.cursor
    statements: list[str] = []
    await store._on_connection(lambda c: c.set_trace_callback(statements.append))

    assert await store.read(cursors, 10) == []
    assert statements == ["pragma data_version"]
    (again,) = await store.read({SHARD: BEGINNING}, 10)
    assert again.records == page.records, "another reader from further back is served"

    insert(raw)
    (page,) = await store.read(cursors, 10)
    assert len(page.records) == 1


@pytest.mark.parametrize("by_row", [False, True], ids=["as one row", "row by row"])
async def test_a_commit_right_after_a_page_is_read_next(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch, by_row: bool
) -> None:
    """The end of a shard is known by the version of its own snapshot, not by a later one."""
    name = "by_row" if by_row else "read"
    module = sqlite_tail if by_row else sqlite_page
    if by_row:
        monkeypatch.setattr(sqlite_page, "read", lambda *_: None)
    read = getattr(module, name)

    def read_and_commit(*asked: object) -> object:
        found = read(*asked)
        monkeypatch.setattr(module, name, read)
        commit()
        return found

    def commit() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            insert(other)

    commit()
    monkeypatch.setattr(module, name, read_and_commit)
    (first,) = await store.read({SHARD: BEGINNING}, 10)
    (second,) = await store.read({SHARD: first.cursor}, 10)

    assert [len(page.records) for page in (first, second)] == [1, 1]


async def test_a_cancelled_call_that_waits_its_turn_never_runs(store: SqliteStore) -> None:
    gate, entered, ran = threading.Event(), threading.Event(), []

    def block(_: sqlite3.Connection) -> None:
        entered.set()
        gate.wait(120)

    blocking = asyncio.create_task(store._on_connection(block))
    await asyncio.to_thread(entered.wait)
    queued = asyncio.create_task(store._on_connection(ran.append))
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    gate.set()
    await blocking

    await store.now()
    assert ran == []


class Held:
    """Pages of one part each that are read once the gate is open."""

    def __init__(self, raw: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_tail, "PART", 1)
        for shard in range(4):
            insert(raw, shard=shard)
        self.cursors = {ShardId(shard): BEGINNING for shard in range(4)}
        self.reads: list[ShardId] = []
        self.entered, self.gate = threading.Event(), threading.Event()
        self._read = sqlite_page.read
        monkeypatch.setattr(sqlite_page, "read", self.read)

    def read(self, connection: sqlite3.Connection, shard_id: ShardId, *bounds: int) -> object:
        self.reads.append(shard_id)
        self.entered.set()
        self.gate.wait(120)
        return self._read(connection, shard_id, *bounds)

    async def reading(self, store: SqliteStore) -> asyncio.Task[object]:
        """A read of `store` whose first part has begun, and waits at the gate."""
        task: asyncio.Task[object] = asyncio.create_task(store.read(self.cursors, 10))
        await asyncio.to_thread(self.entered.wait)
        return task


async def test_a_cancelled_read_ends_with_its_part(
    store: SqliteStore, raw: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(raw, monkeypatch)
    reading = await held.reading(store)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    held.gate.set()

    await store.now()
    await store.now()
    assert held.reads == [0]


async def test_a_read_of_a_store_that_is_closed_meanwhile(
    store: SqliteStore, raw: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(raw, monkeypatch)
    reading = await held.reading(store)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    held.gate.set()
    await closing

    with pytest.raises(StoreClosed, match="was closed"):
        await reading
    assert held.reads == [0]


async def test_a_read_leaves_nothing_to_the_collector(
    store: SqliteStore, raw: sqlite3.Connection
) -> None:
    insert(raw, 3)
    gc.collect()
    gc.disable()
    try:
        for _ in range(6):
            await store.read({SHARD: BEGINNING}, 10)
        await store.now()  # the thread drops a call's own after it is answered
        # `isinstance` asks an object for its class, and lazy ones of other tests then come to life.
        alive = [each for each in gc.get_objects() if type(each) is Page]
    finally:
        gc.enable()
    assert len(alive) <= 1


async def test_closing_waits_for_what_came_before(store: SqliteStore) -> None:
    calls = [asyncio.create_task(store.now()) for _ in range(5)]
    await asyncio.sleep(0)
    await store.close()

    assert all(now_us > 0 for now_us in await asyncio.gather(*calls))


async def test_a_forked_child_must_open_its_own(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(StoreClosed, match="fork"):
        await store.now()
    monkeypatch.undo()


def test_one_store_serves_one_loop_after_another(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    asyncio.run(store.open())
    assert asyncio.run(store.now()) > 0
    asyncio.run(store.close())
