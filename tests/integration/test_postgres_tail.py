"""The tail of PostgreSQL against what a sequence, a clock or an xid as a cursor would lose."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from late.model.task import TaskId
from late.store.postgres import connection, tail
from late.store.postgres import statements as postgres_sql
from late.store.postgres.cursor import parse, parse_snapshot
from late.store.postgres.store import PostgresStore
from late.store.postgres.tail import _values
from tests.integration.postgres_kit import (
    PATIENCE_S,
    SHARD,
    Reader,
    database,
    enqueue,
    enqueue_many,
    open_store,
    opened,
    producer,
)


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


@pytest.fixture(params=["as it comes", "looks"])
async def store(
    url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PostgresStore]:
    """The store as it comes, and one that takes frame and rows in one statement wherever it may,
    with small pages, and often too late."""
    if request.param == "looks":
        always = property(lambda _: True, lambda _, value: None)
        monkeypatch.setattr(tail.PostgresTail, "_looks", always, raising=False)
        monkeypatch.setattr(tail, "LOOK_ROWS", 3)
        monkeypatch.setattr(tail, "LOOK_AHEAD", 5)
    made = await open_store(url)
    yield made
    await made.close()


async def test_a_lower_xid_that_commits_later_is_not_lost(store: PostgresStore, url: str) -> None:
    early, late = producer(url, autocommit=False), producer(url)
    with opened(early, late):
        first = enqueue(early)
        second = enqueue(late)
        reader = Reader(store)
        await reader.until(second)
        assert reader.ids == [second], "the other one is not committed"
        early.commit()
        await reader.until(first)

    assert reader.ids == [second, first]
    assert reader.records[1].position < reader.records[0].position, "or this test shows nothing"


async def test_an_open_transaction_delays_only_its_own(store: PostgresStore, url: str) -> None:
    holder, other = producer(url, autocommit=False), producer(url)
    with opened(holder, other):
        held = enqueue(holder)
        reader = Reader(store, limit=3)
        for _ in range(5):
            await reader.until(*[enqueue(other) for _ in range(4)])
        holder.commit()
        await reader.until(held)

    assert len(reader.ids) == len(set(reader.ids)) == 21


async def test_work_in_another_database_delays_nothing(store: PostgresStore, url: str) -> None:
    """Transaction ids are the cluster's: somebody else's open write is in our snapshots."""
    with database() as elsewhere:
        stranger, mine = producer(elsewhere, autocommit=False), producer(url)
        with opened(stranger, mine):
            stranger.execute("select pg_current_xact_id()")
            reader = Reader(store)
            await reader.until(enqueue(mine))
            stranger.rollback()


async def test_savepoints_count_by_the_whole_transaction(store: PostgresStore, url: str) -> None:
    writer = producer(url, autocommit=False)
    with opened(writer):
        kept, gone = [enqueue(writer)], []
        for n in range(100):  # more than the 64 that a snapshot remembers by themselves
            with writer.transaction(force_rollback=n % 3 == 0):
                (gone if n % 3 == 0 else kept).append(enqueue(writer))
        reader = Reader(store, limit=7)
        await reader.step()
        assert reader.ids == []
        writer.commit()
        await reader.until(*kept)

    assert sorted(reader.ids) == sorted(kept)
    assert len({record.position for record in reader.records}) == 1


@pytest.mark.parametrize("decision", ["commit", "rollback"])
async def test_prepared_transactions(store: PostgresStore, url: str, decision: str) -> None:
    writer = producer(url)
    with opened(writer):
        writer.execute("begin")
        doubtful = enqueue(writer)
        writer.execute("prepare transaction 'trip-7'")
        reader = Reader(store)
        await reader.until(enqueue(writer))
        assert doubtful not in reader.ids
        writer.execute(f"{decision} prepared 'trip-7'")
        await reader.until(enqueue(writer))

    assert (doubtful in reader.ids) == (decision == "commit")


async def test_repeatable_read_producers(store: PostgresStore, url: str) -> None:
    """Their snapshot is older than their xid, which is taken at the insert."""
    writer, other = producer(url), producer(url)
    with opened(writer, other):
        writer.execute("begin isolation level repeatable read")
        writer.execute("select 1 from late_meta")
        between = enqueue(other)
        reader = Reader(store)
        await reader.until(between)
        late = enqueue(writer)
        writer.execute("commit")
        await reader.until(late)

    assert reader.ids == [between, late]


async def test_a_large_late_transaction_is_paged(store: PostgresStore, url: str) -> None:
    """What was running in the old snapshot comes by its key, page by page, beside newer rows."""
    holder, other = producer(url, autocommit=False), producer(url)
    with opened(holder, other):
        held = enqueue_many(holder, 50)
        reader = Reader(store, limit=7)
        await reader.until(*enqueue_many(other, 20))
        newer = enqueue_many(other, 20)
        holder.commit()
        await reader.until(*held, *newer)

    assert len(reader.ids) == len(set(reader.ids)) == 90


async def test_shards_at_different_places_are_read_together(store: PostgresStore, url: str) -> None:
    writer = producer(url)
    with opened(writer):
        wanted = [enqueue(writer, shard=n % 4) for n in range(40)]
        reader = Reader(store, shards=4, limit=3)
        ahead = Reader(store, shards=2, limit=100)
        await ahead.until(*(i for n, i in enumerate(wanted) if n % 4 < 2))
        reader.cursors |= ahead.cursors
        wanted += [enqueue(writer, shard=n % 4) for n in range(40)]
        await reader.until(*(i for n, i in enumerate(wanted) if n >= 40 or n % 4 >= 2))

    assert len(reader.ids) == len(set(reader.ids)) == 60


async def test_a_forged_position_in_the_future_waits(store: PostgresStore, url: str) -> None:
    """Not returned again with every poll until the counter gets there, and in nobody's way."""
    writer = producer(url)
    with opened(writer):
        forged = enqueue(writer)
        writer.execute("update late_task set xid = '9999999999'")
        reader = Reader(store)
        for _ in range(3):
            await reader.until(enqueue(writer))

    assert forged not in reader.ids
    assert len(reader.ids) == 3


async def test_in_a_stream_a_read_is_one_statement(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(connection, "count", ran.append)
    # Transactions of all databases of the server count, and other tests run beside this one.
    monkeypatch.setattr(tail, "LOOK_AHEAD", 10_000_000)
    reader = Reader(store)
    writer = producer(url)
    with opened(writer):
        await reader.until(enqueue(writer))
        second = enqueue(writer)
        ran.clear()
        assert await reader.step() == 1
        assert reader.ids[-1] == second
        # Other databases of the server write to the log that has to be on disk: it may need a wait.
        assert ran[0] in (postgres_sql.LOOK_QUIET, postgres_sql.LOOK)
        assert set(ran[1:]) <= {postgres_sql.FLUSHED, postgres_sql.FLUSH}


async def test_a_look_that_too_many_transactions_overtook_loses_nothing(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "LOOK_AHEAD", 5)
    reader = Reader(store)
    writer = producer(url)
    with opened(writer):
        await reader.until(enqueue(writer))
        made = [enqueue(writer) for _ in range(9)]
        await reader.until(*made)
        assert sorted(reader.ids[1:]) == sorted(made)


async def test_the_poll_reads_nothing_that_is_behind_an_open_transaction(
    store: PostgresStore, url: str
) -> None:
    """By the plan and not by the clock: a poll touches a few pages, whatever lies behind."""
    holder, writer = producer(url, autocommit=False), producer(url)
    with opened(holder, writer):
        enqueue(holder)
        for _ in range(20):
            enqueue_many(writer, 1000)
        writer.execute("analyze late_task")
        reader = Reader(store)
        last = enqueue(writer)
        await reader.until(last)
        async with asyncio.timeout(120):
            while "|" in reader.cursors[SHARD]:
                await reader.step()
        window = parse(reader.cursors[SHARD])
        enqueue(writer)
        row = writer.execute("select pg_current_snapshot()::text").fetchone()
        assert row is not None
        values = _values(window.prev, str(row[0]), {SHARD: window}, 1000)
        assert values["xips"] != "{}"
        plans: list[Any] = []
        guess = values | {"high": str(parse_snapshot(window.prev).xmax + 2_000)}
        for statement, given in ((postgres_sql.TAIL, values), (postgres_sql.LOOK, guess)):
            (plan,) = psycopg.ClientCursor(writer).execute(
                f"explain (analyze, buffers, format json) {statement}", given
            ).fetchone() or ({},)
            plans.append(plan)

    for plan in plans:
        top: dict[str, Any] = plan[0]["Plan"]
        assert top["Actual Rows"] == 1
        assert top["Shared Hit Blocks"] + top["Shared Read Blocks"] < 40, plan
        assert json.dumps(plan).count('"Relation Name"') <= 3, "partitions ahead are in the plan"


# --- the hammer ----------------------------------------------------------------------------------

SECONDS = 4.0
WRITERS = 4
SHARDS = 3


class Writer(threading.Thread):
    """Commits, rolls back, prepares, with and without savepoints, short and long."""

    def __init__(self, url: str, seed: int, end: float) -> None:
        super().__init__()
        self.url = url
        self.choose = random.Random(seed)
        self.end = end
        self.seed = seed
        self.committed: list[TaskId] = []
        self.aborted: list[TaskId] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with producer(self.url) as connection:
                n = 0
                while time.monotonic() < self.end:
                    n += 1
                    self.transaction(connection, f"w{self.seed}-{n}")
        except BaseException as error:
            self.error = error

    def transaction(self, connection: Any, name: str) -> None:
        connection.execute("begin")
        written = self.write(connection)
        for _ in range(self.choose.choice((0, 0, 1, 2))):
            undone = self.choose.random() < 0.5
            connection.execute("savepoint s")
            extra = self.write(connection)
            if undone:
                connection.execute("rollback to savepoint s")
                self.aborted += extra
            else:
                connection.execute("release savepoint s")
                written += extra
        # Most are quick, some are slow: that is what makes positions visible out of order.
        time.sleep(self.choose.choice((0.0, 0.0, 0.001, 0.01, 0.2)))
        fate = self.choose.random()
        if fate < 0.15:
            connection.execute("rollback")
            self.aborted += written
        elif fate < 0.25:
            connection.execute(f"prepare transaction '{name}'")
            time.sleep(self.choose.choice((0.0, 0.05)))
            rolled_back = self.choose.random() < 0.3
            connection.execute(f"{'rollback' if rolled_back else 'commit'} prepared '{name}'")
            (self.aborted if rolled_back else self.committed).extend(written)
        else:
            connection.execute("commit")
            self.committed += written

    def write(self, connection: Any) -> list[TaskId]:
        made = []
        for _ in range(self.choose.choice((1, 1, 1, 9))):
            task_id = enqueue(connection, shard=self.choose.randrange(SHARDS))
            connection.execute("insert into control (task_id) values (%s)", (task_id,))
            made.append(task_id)
        return made


async def test_the_hammer_loses_and_repeats_nothing(store: PostgresStore, url: str) -> None:
    """And a tail by `id > cursor` over the same transactions does lose: else this shows nothing."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    setup = producer(url)
    setup.execute("create table control (id bigserial primary key, task_id uuid not null)")
    whole_run = producer(url, autocommit=False)
    early = enqueue(whole_run)
    whole_run.execute("insert into control (task_id) values (%s)", (early,))
    end = time.monotonic() + SECONDS
    writers = [Writer(url, seed + n, end) for n in range(WRITERS)]
    for writer in writers:
        writer.start()

    reader = Reader(store, SHARDS, limit=7)
    seen_by_control: list[TaskId] = []
    last_id = 0

    def control_step() -> None:
        nonlocal last_id
        rows = setup.execute(
            "select id, task_id::text from control where id > %s order by id limit 100", (last_id,)
        ).fetchall()
        seen_by_control.extend(TaskId(str(task_id)) for _, task_id in rows)
        last_id = int(str(rows[-1][0])) if rows else last_id

    while any(writer.is_alive() for writer in writers):
        await reader.step()
        await asyncio.to_thread(control_step)
    for writer in writers:
        writer.join()
        assert writer.error is None
    whole_run.commit()
    committed = [task_id for writer in writers for task_id in writer.committed] + [early]
    await reader.until(*committed)
    for _ in range(20):
        await reader.step()
        control_step()
    setup.close()
    whole_run.close()

    assert len(committed) > 100
    assert sorted(reader.ids) == sorted(committed), "lost, repeated or phantom"
    assert not set(reader.ids) & {t for writer in writers for t in writer.aborted}
    assert set(committed) - set(seen_by_control), "the control must lose tasks"


async def test_what_moves_a_cursor_without_rows_is_on_disk_too(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash its transaction id may be given to one that enqueues."""
    monkeypatch.setattr(tail, "ADVANCE_S", 0.0)
    asynchronous, watch = producer(url), producer(url)
    reader = Reader(store)
    with opened(asynchronous, watch):
        asynchronous.execute("set synchronous_commit = off")
        for _ in range(20):
            before = dict(reader.cursors)
            asynchronous.execute("select pg_current_xact_id()")
            [ahead] = watch.execute("select pg_current_wal_insert_lsn()").fetchone() or [None]
            async with asyncio.timeout(PATIENCE_S):
                while reader.cursors == before:
                    assert await reader.step() == 0
            flushed = watch.execute("select pg_current_wal_flush_lsn() >= %s::pg_lsn", (ahead,))
            assert flushed.fetchone() == (True,)


async def test_what_a_page_may_contain_is_on_disk_also_behind_an_open_transaction(
    store: PostgresStore, url: str
) -> None:
    """A transaction that is still writing puts the log ahead of the disk, as a long settlement
    does; the page of another one does not wait for its end."""
    writing, asynchronous, watch = producer(url, autocommit=False), producer(url), producer(url)
    reader = Reader(store)
    with opened(writing, asynchronous, watch):
        asynchronous.execute("set synchronous_commit = off")
        for _ in range(20):
            done = enqueue(asynchronous)
            enqueue(writing)
            [ahead] = watch.execute("select pg_current_wal_insert_lsn()").fetchone() or [None]
            await reader.until(done)
            flushed = watch.execute("select pg_current_wal_flush_lsn() >= %s::pg_lsn", (ahead,))
            assert flushed.fetchone() == (True,)
        writing.rollback()
