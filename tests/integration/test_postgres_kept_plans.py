"""The plan of a look: kept in a stream of looks, along indexes, and for no other statement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from late.store.postgres import tail
from late.store.postgres.kept_plans import AFTER
from late.store.postgres.store import PostgresStore
from tests.integration.postgres_kit import (
    Reader,
    database,
    enqueue,
    enqueue_many,
    open_store,
    opened,
    producer,
)

PREPARED = "select statement, generic_plans, custom_plans from pg_prepared_statements"
KEPT_STATEMENTS = "select name, parameter_types::text[] from pg_prepared_statements"
SETTINGS = "select current_setting('plan_cache_mode'), current_setting('enable_seqscan')"
VALUES = {
    "smallint[]": "'{0}'", "xid8[]": "'{0}'", "smallint": "9", "bigint": "9",
    "uuid[]": "'{00000000-0000-0000-0000-000000000000}'",
}  # fmt: skip
AHEAD = 100_000
FAR_AHEAD = f"""
select inhrelid::regclass::text from pg_inherits
 where inhparent = 'late_task'::regclass and split_part(inhrelid::regclass::text, '_', 3) ~ '^[0-9]'
   and split_part(inhrelid::regclass::text, '_', 3)::bigint
       > pg_snapshot_xmax(pg_current_snapshot())::text::bigint + {AHEAD}
"""
KEPT, PLAIN = ("force_generic_plan", "off"), ("auto", "on")


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


@pytest.fixture
async def store(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    # Transactions of all databases of the server count, and other tests run beside this one.
    monkeypatch.setattr(tail, "LOOK_AHEAD", 10_000_000)
    made = await open_store(url)
    yield made
    await made.close()


async def asked(store: PostgresStore, statement: str) -> list[Any]:
    """Ask on the connection that reads the log."""
    async with store._pools.reading.use() as reading:
        cursor = await reading.execute(statement)
        return await cursor.fetchall()


async def streamed(reader: Reader, writer: Any, count: int) -> list[str]:
    made = []
    for _ in range(count):
        made.append(enqueue(writer))
        await reader.until(made[-1])
    return made


async def test_a_stream_of_looks_is_planned_once(store: PostgresStore, url: str) -> None:
    reader, writer = Reader(store), producer(url)
    with opened(writer):
        made = await streamed(reader, writer, AFTER + 12)
        (row,) = await asked(store, SETTINGS)
        prepared = await asked(store, PREPARED)
    assert reader.ids == made
    assert row == KEPT
    assert sum(generic for _, generic, _ in prepared) >= 10
    assert all(custom == 0 for *_, custom in prepared)


async def test_other_reads_are_planned_for_their_values(store: PostgresStore, url: str) -> None:
    reader, writer = Reader(store), producer(url)
    with opened(writer):
        made = await streamed(reader, writer, AFTER + 3)
        assert (await asked(store, SETTINGS)) == [KEPT]
        # More than a look takes: the rest of these pages is read as a backlog is.
        made += enqueue_many(writer, 3 * tail.LOOK_ROWS)
        await reader.until(*made)
        assert (await asked(store, SETTINGS)) == [PLAIN]
        made += await streamed(reader, writer, AFTER + 3)
        assert (await asked(store, SETTINGS)) == [KEPT]
    assert sorted(reader.ids) == sorted(made)


async def test_a_kept_plan_never_scans_what_came_after_it(store: PostgresStore, url: str) -> None:
    """It is made on a log of a few rows, where to scan all of them is cheapest."""
    reader, writer = Reader(store), producer(url)
    with opened(writer):
        enqueue_many(writer, 20)
        writer.execute("analyze late_task")
        await streamed(reader, writer, AFTER + 3)
        kept = await asked(store, KEPT_STATEMENTS)
        assert kept
        for name, types in kept:
            ranges = iter(("'0'", "'18446744073709551615'"))  # `low`, `high`: all partitions
            values = [VALUES.get(each) or next(ranges) for each in types]
            lines = await asked(store, f"explain execute {name} ({', '.join(values)})")
            plan = "\n".join(line for (line,) in lines)
            assert "Index Scan" in plan
            assert "Seq Scan" not in plan, plan


async def test_a_partition_that_somebody_has_locked_holds_no_read_up(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept plan locks all partitions; one for its values locks those that it may read."""
    monkeypatch.setattr(tail, "LOOK_AHEAD", AHEAD)
    reader, writer, operator = Reader(store), producer(url), producer(url, autocommit=False)
    with opened(writer, operator):
        await streamed(reader, writer, AFTER + 3)
        (leaf,) = writer.execute(FAR_AHEAD).fetchone() or ("",)
        operator.execute(f"lock table only {leaf} in access exclusive mode")
        async with asyncio.timeout(30):
            made = await streamed(reader, writer, AFTER + 3)
        assert (await asked(store, SETTINGS)) == [PLAIN]
        operator.rollback()
    assert reader.ids[-len(made) :] == made


async def test_behind_a_pooler_nothing_is_kept(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.store.postgres.guard.allow_plans", lambda connection: None)
    reader, writer = Reader(store), producer(url)
    with opened(writer):
        await streamed(reader, writer, AFTER + 6)
        assert (await asked(store, SETTINGS)) == [PLAIN]
        assert (await asked(store, PREPARED)) == []
