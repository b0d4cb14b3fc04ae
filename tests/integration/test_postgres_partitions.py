"""Partitions of the log: consumed ones go, room is made ahead, producers notice nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from late.model.task import OpenTask, ShardId
from late.store.base import Lease, Settlement, SettleResult, WorkerInfo
from late.store.postgres import partitions as postgres_partitions
from late.store.postgres.partitions import (
    AHEAD,
    WIDTH_MIN,
    lay_out,
    list_partitions,
    truncate,
)
from late.store.postgres.store import PostgresStore
from late.testing.servers.postgres import PostgresServer, find_binaries
from tests import servers
from tests.integration.postgres_kit import (
    PATIENCE_S,
    SHARD,
    Producer,
    Reader,
    enqueue,
    enqueue_many,
    open_store,
    opened,
    producer,
)

KEEP_S = 3600.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A cluster of our own: here transaction ids are counted, and they are the cluster's."""
    if find_binaries() is None:
        pytest.skip("no PostgreSQL: binaries are needed to start a server of one's own")
    with servers.own_server({"autovacuum": "off"}) as made:
        yield made


@pytest.fixture
def new_url(server: PostgresServer) -> Iterator[str]:
    made = servers.migrated_database(server.url)
    yield made
    servers.drop_database(server.url, made)


@pytest.fixture
def url(new_url: str) -> str:
    """A database without the first ranges, as an older version made it: rows are in DEFAULT."""
    with opened(connection := producer(new_url)):
        for name in leaves(connection):
            connection.execute(f"drop table {name}")
    return new_url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    made = await open_store(url)
    yield made
    await made.close()


@pytest.fixture
def writer(url: str) -> Iterator[Producer]:
    with opened(made := producer(url)):
        yield made


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of a few transactions each whatever the rate, dropped as soon as they are empty."""
    monkeypatch.setattr(postgres_partitions, "PERIOD_S", 0)
    monkeypatch.setattr(postgres_partitions, "MARGIN_S", 0)
    monkeypatch.setattr(postgres_partitions, "MARGIN_MIN", 32)
    monkeypatch.setattr(postgres_partitions, "WIDTH_MIN", 32)
    monkeypatch.setattr(postgres_partitions, "DROP_AT", 1)


class Owner:
    """Settles what a reader has read."""

    def __init__(self, store: PostgresStore, lease: Lease) -> None:
        self.store, self.lease, self.seq = store, lease, lease.seq

    @classmethod
    async def of(cls, store: PostgresStore, shard: int = 0, group: str = "default") -> Owner:
        await store.heartbeat(WorkerInfo("w1", "h:1", (group,)), 60)
        (lease,) = await store.acquire("w1", [(group, ShardId(shard))])
        return cls(store, lease)

    async def settle(self, reader: Reader, *open_tasks: OpenTask) -> None:
        settlement = Settlement(
            settlement_id=f"{self.lease.group}-{self.lease.shard_id}-{self.seq + 1}",
            group=self.lease.group,
            shard_id=self.lease.shard_id,
            seq=self.seq + 1,
            epoch=self.lease.epoch,
            owner="w1",
            cursor=reader.cursors[self.lease.shard_id],
            open=open_tasks,
        )
        assert await self.store.settle([settlement]) == [SettleResult.SETTLED]
        self.seq += 1


def leaves(connection: Producer) -> dict[str, int]:
    """Name and size of every leaf but the DEFAULT one."""
    rows = connection.execute(
        "select c.relname, pg_relation_size(c.oid) from pg_inherits i"
        " join pg_class c on c.oid = i.inhrelid where i.inhparent = 'late_task'::regclass"
        " and c.relname <> 'late_task_default'"
    ).fetchall()
    return {str(name): int(str(size)) for name, size in rows}


def rows_in(connection: Producer, table: str = "late_task") -> int:
    ((count,),) = connection.execute(f"select count(*) from {table}").fetchall()
    return int(str(count))


def burn(connection: Producer, beyond: int) -> None:
    """Use up transaction ids until `beyond` is reached."""
    while xmax(connection) <= beyond:
        connection.execute("select pg_current_xact_id()")


def xmax(connection: Producer) -> int:
    rows = connection.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchall()
    return int(str(rows[0][0]))


async def emptied(store: PostgresStore, writer: Producer, *owners: tuple[Owner, Reader]) -> int:
    """Go on settling and pruning until the log is empty; how many rows were deleted one by one.

    Another database's transaction that happens to be open is in our snapshots as well, and holds
    back what began after it for as long as it lasts.
    """
    deleted = 0
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for owner, reader in owners:
                await reader.step()
                await owner.settle(reader)
            deleted += (await store.prune(journal_keep_s=KEEP_S)).tasks
            if rows_in(writer) == 0:
                return deleted


async def into_a_range(store: PostgresStore, writer: Producer) -> None:
    """Lay out, and move the present into the first range."""
    await store.prune(journal_keep_s=KEEP_S)
    burn(writer, min(int(name.split("_")[2]) for name in leaves(writer)))


async def test_the_rows_of_a_new_database_leave_by_truncate(new_url: str) -> None:
    """From the first task on, which here comes before the first maintenance."""
    store = await open_store(new_url)
    with opened(writer := producer(new_url)):
        ranges = [tuple(map(int, name.split("_")[2:])) for name in leaves(writer)]
        assert sorted(high - low for low, high in ranges) == [WIDTH_MIN * units for units in AHEAD]
        reader = Reader(store)
        new = [enqueue(writer) for _ in range(5)] + enqueue_many(writer, 3_000)
        assert rows_in(writer, "only late_task_default") == 0
        owner = await Owner.of(store)
        await reader.until(*new)
        burn(writer, min(int(name.split("_")[3]) for name in leaves(writer)))
        assert await emptied(store, writer, (owner, reader)) == 0
    await store.close()


async def test_room_is_made_ahead_and_the_present_moves_into_it(
    store: PostgresStore, writer: Producer
) -> None:
    enqueue(writer)
    await into_a_range(store, writer)
    enqueue(writer)

    assert len(leaves(writer)) == len(AHEAD)
    assert rows_in(writer, "only late_task_default") == 1
    again = dict(leaves(writer))
    report = await store.prune(journal_keep_s=KEEP_S)
    assert leaves(writer).keys() == again.keys(), "no lock on the log without a reason"
    assert report.partitions == 0, "a leaf that is being filled was not emptied"


@pytest.mark.usefixtures("narrow")
async def test_consumed_leaves_are_emptied_and_dropped(
    store: PostgresStore, writer: Producer
) -> None:
    await into_a_range(store, writer)
    reader, owner = Reader(store), await Owner.of(store)
    seen: set[str] = set()
    biggest = 0
    for _ in range(14):
        await reader.until(*[enqueue(writer) for _ in range(20)])
        await owner.settle(reader)
        await store.prune(journal_keep_s=KEEP_S)
        seen |= leaves(writer).keys()
        biggest = max(biggest, rows_in(writer))

    assert rows_in(writer, "only late_task_default") == 0, "the ranges went on ahead"
    assert len(seen - leaves(writer).keys()) >= 3, "and those behind were dropped"
    assert biggest < 100 < len(reader.ids) == len(set(reader.ids))


@pytest.mark.usefixtures("narrow")
async def test_one_open_task_holds_its_leaf_only(store: PostgresStore, writer: Producer) -> None:
    await into_a_range(store, writer)
    reader, owner = Reader(store), await Owner.of(store)
    await reader.until(enqueue(writer))
    slow = reader.records[0]
    key = OpenTask(slow.position, slow.task_id)
    for _ in range(10):
        await reader.until(*[enqueue(writer) for _ in range(20)])
        await owner.settle(reader, key)
        await store.prune(journal_keep_s=KEEP_S)

    assert [record.task_id for record in await store.fetch(SHARD, [key])] == [slow.task_id]
    assert rows_in(writer) < 120
    await owner.settle(reader)
    burn(writer, xmax(writer) + 40)
    await store.prune(journal_keep_s=KEEP_S)
    assert await store.fetch(SHARD, [key]) == []


@pytest.mark.usefixtures("narrow")
async def test_a_long_transaction_holds_its_leaf_only(
    store: PostgresStore, writer: Producer, url: str
) -> None:
    await into_a_range(store, writer)
    reader, owner = Reader(store), await Owner.of(store)
    with opened(holder := producer(url, autocommit=False)):
        held = enqueue(holder)
        for _ in range(10):
            await reader.until(*[enqueue(writer) for _ in range(20)])
            await owner.settle(reader)
            await store.prune(journal_keep_s=KEEP_S)
        # Two narrow leaves; no new ones can be laid out while it holds the log.
        assert rows_in(writer) < len(reader.ids) - 40, "what is behind it goes all the same"
        holder.commit()
    await reader.until(held)


@pytest.mark.usefixtures("narrow")
async def test_a_producer_is_not_held_up_and_holds_nothing_up(
    store: PostgresStore, writer: Producer, url: str
) -> None:
    """While a transaction that enqueued stays open, the log cannot be locked: maintenance gives
    up at once, others enqueue, and it makes good later."""
    await into_a_range(store, writer)
    reader, owner = Reader(store), await Owner.of(store)
    with opened(holder := producer(url, autocommit=False)):
        held = enqueue(holder)
        first = set(leaves(writer))
        for _ in range(5):
            ids = [enqueue(writer) for _ in range(20)]
            pruning = asyncio.create_task(store.prune(journal_keep_s=KEEP_S))
            ids += await asyncio.to_thread(lambda: [enqueue(writer) for _ in range(5)])
            await pruning
            await reader.until(*ids)
            await owner.settle(reader)
        assert set(leaves(writer)) == first, "the lock was not to be had"
        holder.commit()
    await reader.until(held)
    await owner.settle(reader)
    await store.prune(journal_keep_s=KEEP_S)
    await store.prune(journal_keep_s=KEEP_S)

    assert set(leaves(writer)) != first
    assert len(reader.ids) == len(set(reader.ids))


async def test_waiting_for_the_log_is_short(
    store: PostgresStore, writer: Producer, url: str
) -> None:
    """Whoever enqueues while we wait for the lock queues behind us: not for long."""
    with opened(holder := producer(url, autocommit=False)):
        enqueue(holder)
        await store.prune(journal_keep_s=KEEP_S)  # wants to attach to the leaf that is in use
        began = time.monotonic()
        enqueue(writer)
        assert time.monotonic() - began < 5, "the lock is not kept"
        assert leaves(writer) == {}
        holder.rollback()

    assert postgres_partitions.LOCK_TIMEOUT_MS <= 50


async def test_a_process_that_stops_under_the_lock_does_not_keep_it(
    writer: Producer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_partitions, "SILENCE_MAX_MS", 300)
    enqueue(writer)
    writer.execute("set statement_timeout = '60s'")
    looks = 0

    def settled(_: object) -> bool:
        """The second look, under the lock, takes as long as a producer waits for it."""
        nonlocal looks
        looks += 1
        if looks == 2:
            enqueue(writer)
        return True

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as pruner:
        [default] = [leaf for leaf in await list_partitions(pruner) if leaf.is_default]
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            await truncate(pruner, default, settled)
    assert looks == 2
    assert rows_in(writer) == 2


async def test_a_row_that_comes_before_the_lock_is_seen_under_it(
    writer: Producer, url: str
) -> None:
    """Between the first look and the lock a producer commits: nobody has read that row."""
    enqueue(writer)
    first: list[object] = []

    def settled(rows: object) -> bool:
        if not first:
            first.append(rows)
            enqueue(writer)
        return rows == first[0]

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as pruner:
        [default] = [leaf for leaf in await list_partitions(pruner) if leaf.is_default]
        assert not await truncate(pruner, default, settled)
    assert rows_in(writer) == 2


async def test_a_leaf_counts_as_emptied_when_it_is(writer: Producer, url: str) -> None:
    enqueue(writer)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as pruner:
        [default] = [leaf for leaf in await list_partitions(pruner) if leaf.is_default]
        assert not await truncate(pruner, default, lambda rows: False)
        with writer.transaction():
            writer.execute("lock table only late_task_default in row share mode")
            assert not await truncate(pruner, default, lambda rows: True), "it is in use"
        assert rows_in(writer) == 1
        assert await truncate(pruner, default, lambda rows: True)
    assert rows_in(writer) == 0


@pytest.mark.usefixtures("narrow")
async def test_the_layout_says_how_many_leaves_it_dropped(
    store: PostgresStore, writer: Producer, url: str
) -> None:
    await into_a_range(store, writer)
    dropped = 0
    async with (
        asyncio.timeout(PATIENCE_S),
        await psycopg.AsyncConnection.connect(url, autocommit=True) as pruner,
    ):
        while dropped < 5:
            before = leaves(writer).keys()
            burn(writer, max(int(name.split("_")[3]) for name in before))  # all are in the past
            said = await lay_out(pruner)
            assert said == len(before - leaves(writer).keys())
            dropped += said


async def test_inserts_go_on_when_no_range_is_there(store: PostgresStore, writer: Producer) -> None:
    writer.execute("select 1")
    reader, owner = Reader(store), await Owner.of(store)
    await reader.until(*[enqueue(writer) for _ in range(5)])

    assert await emptied(store, writer, (owner, reader)) == 5, "in the DEFAULT leaf by range"


async def test_an_idle_shard_holds_nothing_that_is_not_its_own(
    store: PostgresStore, writer: Producer
) -> None:
    """Its last settlement is old, its checkpoint far behind: it has no rows there."""
    idle, busy = await Owner.of(store, 1), await Owner.of(store, 0)
    await idle.settle(Reader(store, shards=2))
    reader = Reader(store)
    await reader.until(*enqueue_many(writer, 50))

    assert await emptied(store, writer, (busy, reader)) == 50


async def test_a_shard_that_is_behind_keeps_its_rows_whatever_another_has_settled(
    store: PostgresStore, writer: Producer
) -> None:
    for shard in (0, 1):
        await Owner.of(store, shard)
    ahead, reader = await Owner.of(store, 1), Reader(store, shards=2)
    await reader.until(enqueue(writer), *enqueue_many(writer, 5, shard=1))
    async with asyncio.timeout(PATIENCE_S):
        while rows_in(writer) > 1:
            await reader.step()
            await ahead.settle(reader)
            await store.prune(journal_keep_s=KEEP_S)
    assert writer.execute("select shard_id from late_task").fetchall() == [(0,)]


@pytest.mark.usefixtures("narrow")
async def test_a_group_without_a_journal_holds_every_leaf(
    store: PostgresStore, writer: Producer
) -> None:
    await into_a_range(store, writer)
    writer.execute("insert into late_group (name, created_at_us) values ('audit', 1)")
    reader, owner = Reader(store), await Owner.of(store)
    ids = []
    for _ in range(4):
        ids += [enqueue(writer) for _ in range(6)]
        await reader.until(*ids)
        await owner.settle(reader)
        await store.prune(journal_keep_s=KEEP_S)
    assert rows_in(writer) == len(ids)

    late = Reader(store)
    await late.until(*ids)
    await (await Owner.of(store, group="audit")).settle(late)
    burn(writer, xmax(writer) + 40)
    await store.prune(journal_keep_s=KEEP_S)
    assert rows_in(writer) < len(ids)


@pytest.mark.usefixtures("narrow")
async def test_many_prune_at_once(store: PostgresStore, writer: Producer, url: str) -> None:
    await into_a_range(store, writer)
    others = [await open_store(url) for _ in range(3)]
    reader, owner = Reader(store), await Owner.of(store)
    for _ in range(4):
        await reader.until(*[enqueue(writer) for _ in range(6)])
        await owner.settle(reader)
        await asyncio.gather(*(each.prune(journal_keep_s=KEEP_S) for each in [store, *others]))
    for other in others:
        await other.close()

    assert len(reader.ids) == len(set(reader.ids)) == 24
