"""A SQLite store on a file of its own, and a plain connection beside it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from late.model.ids import new_id
from late.model.task import Cursor, ShardId
from late.store.base import Lease, Settlement, SettleResult
from late.store.sqlite.store import SqliteStore
from tests.support import sqlite

SHARD = ShardId(0)
BEGINNING = Cursor("")


@pytest.fixture(name="template", scope="module")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "late.db"
    sqlite.database(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    return path


@pytest.fixture(name="path")
def sqlite_path(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copyfile(template, tmp_path / "late.db"))


@pytest.fixture(name="store")
async def sqlite_store(path: Path) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(f"sqlite:///{path}")
    await made.open()
    yield made
    await made.close()


@pytest.fixture(name="raw")
def sqlite_raw(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
        yield connection


def insert(raw: sqlite3.Connection, count: int = 1, shard: int = 0, **columns: object) -> list[str]:
    made = [new_id(shard) for _ in range(count)]
    for task_id in made:
        row = {"shard_id": shard, "task_id": task_id, "queue": "q", "name": "n", "payload": b"{}"}
        row |= columns
        marks = ", ".join("?" * len(row))
        raw.execute(
            f"insert into late_task ({', '.join(row)}) values ({marks})", tuple(row.values())
        )
    return made


async def settle(store: SqliteStore, lease: Lease, cursor: Cursor) -> None:
    settlement = Settlement(
        settlement_id=new_id(0), group=lease.group, shard_id=lease.shard_id, seq=lease.seq + 1,
        epoch=lease.epoch, owner=lease.owner, cursor=cursor, open=(),
    )  # fmt: skip
    assert await store.settle([settlement]) == [SettleResult.SETTLED]
