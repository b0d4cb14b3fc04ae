"""What only the SQLite store promises: its guards, its error map, its cheap idle read."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from late.errors import (
    SchemaMismatch,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from late.model.ids import new_id
from late.model.task import OpenTask, ShardId
from late.outbox.statements import SQLITE
from late.schema.engine import make_engine, reading, writing
from late.store.base import Settlement, SettleResult
from late.store.sqlite import (
    prune as sqlite_prune,
)
from late.store.sqlite import (
    rebase as sqlite_rebase,
)
from late.store.sqlite import (
    statements as sqlite_sql,
)
from late.store.sqlite.journal import SEQ_MAX
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
from tests.support import sqlite


async def opening(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    try:
        await store.open()
    finally:
        await store.close()


async def test_odd_names_are_only_names(template: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a?mode=memory&b #1%41.db"
    shutil.copyfile(template, odd)
    store = SqliteStore(f"sqlite:///{str(odd).replace('%', '%25').replace('?', '%3F')}")
    await store.open()
    assert await store.now() > 0
    await store.close()


# --- guards --------------------------------------------------------------------------------------


async def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="late migrate"):
        await opening(tmp_path / "nowhere.db")
    assert os.listdir(tmp_path) == []


async def test_something_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "late.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError) as failed:
        await opening(tmp_path / "late.db")
    assert not failed.value.transient


async def test_a_copied_file_is_refused_and_a_moved_one_is_not(
    store: SqliteStore, path: Path, tmp_path: Path
) -> None:
    await store.close()
    moved = Path(shutil.move(path, tmp_path / "moved.db"))
    await opening(moved)
    copy = Path(shutil.copyfile(moved, tmp_path / "copy.db"))

    with pytest.raises(StoreRefused, match=f"late rebase sqlite:///{copy}"):
        await opening(copy)

    adopting = SqliteStore(f"sqlite:///{copy}")
    await adopting.rebase()
    await adopting.open()
    await adopting.close()
    await opening(moved)


async def test_vacuum_keeps_identity_and_positions(
    store: SqliteStore, path: Path, raw: sqlite3.Connection
) -> None:
    insert(raw, 3)
    raw.execute("delete from late_task where seq < 3")
    await store.close()
    raw.execute("vacuum")
    await opening(path)
    assert raw.execute("select seq from late_task").fetchall() == [(3,)]


async def test_a_log_without_autoincrement_is_refused(path: Path, raw: sqlite3.Connection) -> None:
    (ddl,) = raw.execute("select sql from sqlite_master where name = 'late_task'").fetchone()
    raw.execute("drop table late_task")
    raw.execute(ddl.replace("AUTOINCREMENT", "").replace("autoincrement", ""))
    with pytest.raises(StoreRefused, match="AUTOINCREMENT"):
        await opening(path)


@pytest.mark.parametrize("seq", [-5, 2**62, 2**63 - 1])
async def test_rowids_set_by_hand_are_refused(
    path: Path, raw: sqlite3.Connection, seq: int
) -> None:
    """The CHECK refuses most of them; a connection may have switched it off."""
    raw.execute("pragma ignore_check_constraints = on")
    insert(raw, seq=seq)

    with pytest.raises(StoreRefused, match="by hand"):
        await opening(path)


async def test_a_counter_that_fell_back_is_refused_and_rebase_lifts_it(
    store: SqliteStore, path: Path, raw: sqlite3.Connection
) -> None:
    """As after `.dump` of single tables, or a table rebuilt by hand."""
    insert(raw, 5)
    (lease,) = await store.acquire("w1", [("default", SHARD)])
    (page,) = await store.read({SHARD: BEGINNING}, 10)
    await settle(store, lease, page.cursor)
    await store.close()
    raw.execute("delete from late_task")
    raw.execute("delete from sqlite_sequence")
    below = insert(raw, 2)

    with pytest.raises(StoreRefused, match="late rebase"):
        await opening(path)
    adopted = SqliteStore(f"sqlite:///{path}")
    await adopted.rebase()
    await adopted.open()
    above = insert(raw, 2)

    (page,) = await adopted.read({SHARD: page.cursor}, 10)
    assert [r.task_id for r in page.records] == below + above
    assert [r.position for r in page.records] == [6, 7, 8, 9]
    await adopted.close()


async def test_a_plain_settlement_is_one_statement(store: SqliteStore) -> None:
    leases = await store.acquire("w1", [("default", SHARD), ("default", ShardId(1))])
    statements: list[str] = []
    await store._on_connection(lambda c: c.set_trace_callback(statements.append))
    settlements = [
        Settlement("id", "default", each.shard_id, 2, each.epoch, "w1", BEGINNING, ())
        for each in leases
    ]

    assert await store.settle(settlements) == [SettleResult.SETTLED] * 2
    assert len(statements) == 1


# --- errors --------------------------------------------------------------------------------------


async def test_a_number_beyond_64_bits_is_our_error(store: SqliteStore) -> None:
    with pytest.raises(StoreError):
        await store.due("default", SHARD, until_us=2**70, limit=1)
    assert await store.now() > 0


async def test_a_full_disk_is_transient_and_leaves_nothing(
    store: SqliteStore, raw: sqlite3.Connection
) -> None:
    pages = await store._on_connection(
        lambda connection: connection.execute("pragma page_count").fetchone()[0]
    )

    def cap(value: int) -> None:
        return store._on_connection(lambda c: c.execute(f"pragma max_page_count = {value}"))

    (lease,) = await store.acquire("w1", [("default", SHARD)])
    await cap(pages + 2)
    wide = tuple(OpenTask(n, new_id(0)) for n in range(2000))
    settlement = Settlement("id", "default", SHARD, 2, lease.epoch, "w1", BEGINNING, wide)
    with pytest.raises(StoreUnavailable):
        await store.settle([settlement])
    assert raw.execute("select count(*) from late_settlement").fetchone() == (1,)

    await cap(1_000_000)
    assert await store.settle([settlement]) == [SettleResult.SETTLED]


# --- the statements ------------------------------------------------------------------------------


def test_no_statement_walks_a_log(raw: sqlite3.Connection) -> None:
    """Every access to the tables that grow is by a key: a scan gets slower with every day."""
    statements = {
        name: text
        for name, text in vars(sqlite_sql).items()
        if name.isupper() and isinstance(text, str) and not name.startswith("_")
    }
    statements["TAKE_OVER"] = sqlite_rebase._TAKE_OVER
    assert len(statements) > 30
    for name, statement in statements.items():
        names = re.findall(r":(\w+)", statement)
        values = dict.fromkeys(names, 1) or (1,) * statement.count("?")
        plan = raw.execute(f"explain query plan {statement}", values).fetchall()
        scans = [row[3] for row in plan if row[3].startswith("SCAN")]
        big = ("late_task", "late_settlement", "late_timer", "late_dead", " s", " t", " m")
        assert not [scan for scan in scans if scan.endswith(big)], (name, scans)


def test_a_unique_key_is_found_by_the_key_and_not_by_its_task(raw: sqlite3.Connection) -> None:
    statements = (
        SQLITE.release([("a", "id"), ("b", "another")]), SQLITE.holders(["a", "b"]),
        SQLITE.free(["a", "b"]),
    )  # fmt: skip
    for statement in statements:
        plan = raw.execute(f"explain query plan {statement.sql}", statement.params).fetchall()
        assert [row[3] for row in plan] == [
            "SEARCH late_unique USING INDEX sqlite_autoindex_late_unique_1 (unique_key=?)"
        ]


# --- tampered rows -------------------------------------------------------------------------------


async def test_text_that_is_not_utf8_does_not_stop_the_shard(
    store: SqliteStore, raw: sqlite3.Connection
) -> None:
    good = insert(raw)
    raw.execute(
        "insert into late_task (shard_id, task_id, queue, name, payload)"
        " values (0, ?, cast(x'ff41' as text), 'n', 'payload as text')",
        (new_id(0),),
    )
    good += insert(raw)

    (page,) = await store.read({SHARD: BEGINNING}, 10)

    assert [page.records[0].task_id, page.records[2].task_id] == good
    assert page.records[1].queue == "\ufffdA"
    assert page.records[1].payload == b"payload as text"


@pytest.mark.parametrize("seq", [SEQ_MAX, 2**63 - 1])
async def test_a_forged_journal_row_stops_its_own_shard_only(
    store: SqliteStore, raw: sqlite3.Connection, caplog: pytest.LogCaptureFixture, seq: int
) -> None:
    raw.execute(
        "insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch, owner,"
        " cursor, open, settled_at_us) values ('default', 0, ?, 'x', 1, 'x', '', '[]', 1)",
        (seq,),
    )

    leases = await store.acquire("w1", [("default", SHARD), ("default", ShardId(1))])

    assert [lease.shard_id for lease in leases] == [1]
    assert "forged" in caplog.text


async def test_a_lowered_epoch_is_raised_again(store: SqliteStore, raw: sqlite3.Connection) -> None:
    for _ in range(3):
        (lease,) = await store.acquire("w1", [("default", SHARD)])
    raw.execute("update late_lease set epoch = 1")

    (again,) = await store.acquire("w1", [("default", SHARD)])

    assert again.epoch > lease.epoch


async def test_pruning_leaves_gaps_for_writers(
    store: SqliteStore, path: Path, raw: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two batches a waiting producer gets the lock: it commits before the end."""
    monkeypatch.setattr(sqlite_prune, "BATCH", 10)
    insert(raw, 200)
    (lease,) = await store.acquire("w1", [("default", SHARD)])
    (page,) = await store.read({SHARD: BEGINNING}, 1000)
    await settle(store, lease, page.cursor)

    seen = []

    async def produce() -> None:
        while True:
            await asyncio.to_thread(insert, producer)
            left = "select count(*) from late_task where seq <= 200"
            seen.append(raw.execute(left).fetchone()[0])

    with closing(
        sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)
    ) as producer:
        producing = asyncio.create_task(produce())
        assert (await store.prune(journal_keep_s=3600)).tasks == 200
        producing.cancel()
        await asyncio.wait([producing])
        await asyncio.get_running_loop().shutdown_default_executor()

    assert len({left for left in seen if 0 < left < 200}) > 1


async def test_the_file_shrinks_when_its_rows_have_gone(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "late.db")
    engine = make_engine(url)
    with writing(engine) as connection:
        connection.execute(text("create table ballast (payload blob)"))
        for _ in range(20):
            connection.execute(text("insert into ballast values (zeroblob(1000000))"))
    with writing(engine) as connection:
        connection.execute(text("drop table ballast"))

    store = SqliteStore(url)
    await store.open()
    await store.prune(journal_keep_s=3_600)
    await store.close()

    with reading(engine) as connection:
        pages = connection.execute(text("pragma page_count")).scalar_one()
        free = connection.execute(text("pragma freelist_count")).scalar_one()
        whole = connection.execute(text("pragma integrity_check")).scalar_one()
    engine.dispose()
    assert (free, whole) == (512, "ok")
    assert pages < 700
