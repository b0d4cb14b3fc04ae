"""Reading the log of a SQLite file: a page as one row, and reads in parts."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from late.model.ids import new_id
from late.model.task import Cursor, Record, ShardId
from late.store import open_store
from late.store.sqlite import page_decoder as sqlite_page
from late.store.sqlite import statements as sql
from late.store.sqlite import tail as sqlite_tail
from tests.support import sqlite

ODD = [
    b"",
    b"{}",
    b"\x00",
    b'{"a": "\x00"}',
    b"\xff\xfe\x00\x80",
    '{"ä": "\U0001f600"}'.encode(),
    b'"\\" \t\n',
]
TEXTS = ["plain", "ä\U0001f600", 'quo"te', "back\\slash", "nul\x00nul", "tab\ttab", "\x1f", ""]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite.database(tmp_path / "tail.db")


@pytest.fixture
def connection(url: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        yield connection


def insert(
    connection: sqlite3.Connection,
    payload: object,
    *,
    shard: int = 0,
    queue: object = "mail",
    headers: object = None,
) -> None:
    values = (shard, new_id(0), queue, "send", payload, headers, None)
    connection.execute(sql.INSERT_TASK, values)
    connection.commit()


def both(
    connection: sqlite3.Connection, after: int, limit: int
) -> tuple[list[Record] | None, list[Record]]:
    """The same page as one row, and row by row."""
    key = ShardId(0)
    found = sqlite_page.read(connection, key, after, limit)
    return found and found.records, sqlite_tail.by_row(connection, sql.READ, (key, after, limit))


def test_a_page_as_one_row_is_the_page(connection: sqlite3.Connection) -> None:
    for payload in ODD:
        insert(connection, payload)
        insert(connection, b"of another shard", shard=1)
    for each in TEXTS:
        insert(connection, b"{}", queue=each, headers=each)
    insert(connection, "inserted as text")
    each_alone = [(after, 1) for after in range(0, 30, 2)]
    for after, limit in ((0, 1_000), (0, 3), (5, 4), *each_alone, (1_000, 3)):
        one, rows = both(connection, after, limit)
        assert one == rows
    assert len(rows) == 0


def test_what_is_alike_in_a_page_is_one_object(connection: sqlite3.Connection) -> None:
    for _ in range(3):
        insert(connection, b"{}")
    insert(connection, b"{}", queue="other")
    alike, mixed = (sqlite_page.read(connection, ShardId(0), 0, limit) for limit in (3, 4))
    assert alike is not None
    assert mixed is not None
    assert len({id(record.queue) for record in alike.records}) == 1
    assert len({id(record.name) for record in mixed.records}) == 1
    assert [record.queue for record in mixed.records] == ["mail", "mail", "mail", "other"]


@pytest.mark.parametrize(
    ("payload", "queue"),
    [
        (b"{}", "x'ff'"),
        (b"{}", "cast(x'ff' as text)"),
        (b"x" * (sqlite_page.BYTES_MAX + 1), "queue"),
    ],
    ids=["a blob for a queue", "a text that is not UTF-8", "more than fits"],
)
def test_what_one_row_cannot_hold_is_read_row_by_row(
    url: str, connection: sqlite3.Connection, payload: bytes, queue: str
) -> None:
    connection.execute("pragma ignore_check_constraints = 1")
    insert(connection, b"{}")
    insert(connection, payload)
    connection.execute(f"update late_task set queue = {queue} where seq = 2")
    connection.commit()
    assert sqlite_page.read(connection, ShardId(0), 0, 10) is None

    pages, left = sqlite_tail.SqliteTail().read([(ShardId(0), Cursor(""))], 10, connection)

    assert [record.payload for record in pages[0].records] == [b"{}", payload]
    assert not left


def test_the_limit_of_a_page_is_the_pages_alone(connection: sqlite3.Connection) -> None:
    before = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH)
    insert(connection, b"x" * (sqlite_page.BYTES_MAX + 1))
    sqlite_page.read(connection, ShardId(0), 0, 10)
    assert connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) == before


def test_columns_that_do_not_add_up_are_refused(connection: sqlite3.Connection) -> None:
    for payload in (b"ab", b"cd"):
        insert(connection, payload)
    _, _, columns, joined = connection.execute(sqlite_page.READ, (0, 0, 10)).fetchone()
    assert sqlite_page.records(ShardId(0), columns, joined) is not None
    assert sqlite_page.records(ShardId(0), columns, joined[1:]) is None
    turned = columns.replace(b"[[1,2]", b"[[2,1]")
    assert turned != columns
    assert sqlite_page.records(ShardId(0), turned, joined) is None


async def test_other_calls_get_in_between_the_parts_of_a_read(
    url: str, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_tail, "PART", 2)
    for shard in range(4):
        for _ in range(2):
            insert(connection, b"{}", shard=shard)
    store = open_store(url)
    await store.open()
    ended: list[str] = []

    async def told(name: str, call: object) -> object:
        found = await call  # type: ignore[misc]
        ended.append(name)
        return found

    read = told("read", store.read({ShardId(n): Cursor("") for n in range(4)}, 10))
    pages, _ = await asyncio.gather(read, told("now", store.now()))

    assert ended == ["now", "read"]
    assert sorted(page.shard_id for page in pages) == [0, 1, 2, 3]  # type: ignore[attr-defined]
    await store.close()
