"""Rows of the journal that another one follows keep an outline of a long `open`, on SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from late.control.verify.verify import verify
from late.model.ids import new_id
from late.model.task import ShardId
from late.schema.engine import make_engine
from late.store.base import SettleResult
from late.store.common.open_tasks import open_of, outline_of
from late.store.sqlite.store import SqliteStore
from tests.conformance.kit import Owner, own
from tests.conformance.kit import open_of as opened
from tests.integration.sqlite_kit import (  # noqa: F401 - fixtures
    BEGINNING,
    SHARD,
    insert,
    sqlite_path,
    sqlite_raw,
    sqlite_store,
    sqlite_template,
)

TASKS = 40
"""Enough for a row that is worth shortening."""


def column(raw: sqlite3.Connection) -> list[str]:
    rows = raw.execute("select open from late_settlement where shard_id = ? order by seq", (SHARD,))
    return [text for (text,) in rows]


async def all_open(
    store: SqliteStore, raw: sqlite3.Connection, count: int = TASKS, shard: ShardId = SHARD
) -> Owner:
    """An owner that has read `count` tasks and settled none of them."""
    insert(raw, count, shard)
    owner = await own(store, shard)
    (page,) = await store.read({shard: BEGINNING}, count)
    tasks = tuple(opened(record) for record in page.records)
    assert await owner.settle(cursor=page.cursor, open=tasks) is SettleResult.SETTLED
    return owner


async def test_only_the_last_row_has_its_open_tasks(
    store: SqliteStore, raw: sqlite3.Connection
) -> None:
    owner = await all_open(store, raw)
    for ended in range(1, 4):
        await owner.settle(open=owner.open[1:] if ended != 2 else owner.open[:-1])

    *_, first, second, third, last = column(raw)
    assert (first, second, third) == ("0:40 1", "0:39 2", "0:38 2")
    assert open_of(last) == owner.open
    await store.release([owner.lease])
    assert (await own(store, SHARD, name="w2")).lease.open == owner.open


async def test_a_short_list_stays(store: SqliteStore, raw: sqlite3.Connection) -> None:
    owner = await all_open(store, raw)
    await owner.settle(open=owner.open[:3])
    await owner.settle(open=())
    assert len(open_of(column(raw)[-2])) == 3


async def test_a_refused_settlement_shortens_nothing(
    store: SqliteStore, raw: sqlite3.Connection
) -> None:
    owner = await all_open(store, raw)
    follower = Owner(store, owner.lease)
    follower.seq, follower.open = owner.seq, owner.open
    raw.execute(  # by somebody else, with all tasks: as a reset writes it
        "insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch, owner,"
        " cursor, open, settled_at_us) select consumer_group, shard_id, seq + 1, ?, epoch + 1,"
        " 'reset', cursor, open, settled_at_us from late_settlement where seq = ?",
        (new_id(0), owner.seq),
    )
    before = column(raw)
    assert await follower.settle(open=()) is SettleResult.FENCED
    assert column(raw) == before


async def test_what_was_open_at_the_horizon_is_kept_for_replays(
    store: SqliteStore, raw: sqlite3.Connection
) -> None:
    """The log is kept as of one second ago. Then the first ten had ended, and more is not known."""
    owner = await all_open(store, raw)
    await owner.settle(open=owner.open[10:])
    raw.execute("update late_settlement set settled_at_us = settled_at_us - 5000000")
    await owner.settle(open=())
    assert outline_of(column(raw)[-2]).floor == 11
    raw.execute("insert or replace into late_meta (key, value) values ('retention_us', '1000000')")
    await store.prune(journal_keep_s=1_000)
    assert [seq for (seq,) in raw.execute("select seq from late_task")] == list(range(11, 41))


async def test_verify_counts_by_the_outline(
    store: SqliteStore, raw: sqlite3.Connection, path: Path
) -> None:
    """The journal begins with a row that had forty tasks open; then most were forgotten."""
    owner = await all_open(store, raw)
    raw.execute("delete from late_settlement where seq < ?", (owner.seq,))
    await owner.settle(open=owner.open[35:])
    engine = make_engine(f"sqlite:///{path}")
    try:
        found = verify(engine, group_name=None, shard_id=None)
    finally:
        engine.dispose()
    (uncounted,) = [each.what for each in found.problems if each.kind == "uncounted"]
    assert uncounted.startswith("35 of 40 tasks")


async def test_the_file_stays_small(store: SqliteStore, raw: sqlite3.Connection) -> None:
    """Rows of four shards that have hundreds of tasks open, again and again: what is shortened
    leaves its page, or each would keep one."""
    owners = [await all_open(store, raw, 400, ShardId(number)) for number in range(4)]
    (before,) = raw.execute("pragma page_count").fetchone()
    for _ in range(100):
        batch = [owner.next(open=owner.open[1:]) for owner in owners]
        assert await store.settle(batch) == [SettleResult.SETTLED] * len(batch)
        for owner, settlement in zip(owners, batch, strict=True):
            owner.accept(settlement)
    (after,) = raw.execute("pragma page_count").fetchone()
    assert after - before < 60, "four hundred rows of some 150 bytes"
