"""The fleet that a worker keeps by what changed, against all that PostgreSQL may do in between."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import psycopg
import pytest

from late.control import Control
from late.errors import StoreUnavailable, TransactionAborted
from late.model.task import ShardId
from late.schema import migrate
from late.store.base import Lease, LeaseView, Membership
from late.store.common import fleet_view
from late.store.common.fleet_view import FleetView
from late.store.postgres import statements as sql
from late.store.postgres.connection import rows_of
from late.store.postgres.membership import PostgresFleet
from late.store.postgres.store import PostgresStore
from late.testing.servers.postgres import PostgresServer, find_binaries
from tests import servers
from tests.conformance.kit import counting, names, until
from tests.integration.postgres_kit import Producer, database, open_store, opened, producer

TTL_S = 60.0
SHARDS = [("default", ShardId(shard)) for shard in range(4)]
WHO = "select worker_id from late_worker where expires_at_us > %s order by worker_id"
LEASES = "select consumer_group, shard_id, owner, epoch from late_lease order by 1, 2"
MOVE = "update late_lease set epoch = epoch + 1 where shard_id = %s"
END = "update late_worker set expires_at_us = %s where worker_id = %s"
LAST_XID = 2**32
ROUNDS = 12


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    made = await open_store(url)
    yield made
    await made.close()


def kept_as_written(seen: Membership, url: str) -> None:
    """Compare a view with the tables themselves."""
    with producer(url) as reader:
        assert names(seen) == [name for (name,) in reader.execute(WHO, (seen.now_us,))]
        assert list(seen.leases) == [LeaseView(*row) for row in reader.execute(LEASES)]  # type: ignore[arg-type]


async def settled(store: PostgresStore) -> Membership:
    """Take all shards, and read until nothing is new."""
    await store.heartbeat(counting("me"), TTL_S)
    await store.acquire("me", SHARDS)
    await store.heartbeat(counting("me"), TTL_S)
    return await store.heartbeat(counting("me"), TTL_S)


def move(writer: Producer, *shards: int) -> None:
    """Change leases as a worker does: the number is raised last, in the same transaction."""
    for shard in shards:
        writer.execute(MOVE, (shard,))
    writer.execute(sql.LEASES_CHANGED, (str(shards[0]),))


@pytest.mark.parametrize("savepoint", [False, True], ids=["plain", "savepoint"])
async def test_a_change_with_an_early_xid_is_told_when_it_commits(
    store: PostgresStore, url: str, savepoint: bool
) -> None:
    await settled(store)
    early, late = producer(url, autocommit=False), producer(url, autocommit=False)
    with opened(early, late):
        early.execute("select pg_current_xact_id()")
        if savepoint:
            early.execute("savepoint one")
            early.execute(MOVE, (0,))
            early.execute("savepoint two")
        for _ in range(3):
            move(late, 1)
            late.commit()
            kept_as_written(await store.heartbeat(counting("me"), TTL_S), url)
        move(early, 0)
        move(late, 2)
        late.commit()
        kept_as_written(await store.heartbeat(counting("me"), TTL_S), url)
        early.commit()
        kept_as_written(await store.heartbeat(counting("me"), TTL_S), url)


@pytest.mark.parametrize("how", ["vacuum freeze", "vacuum full", "cluster late_lease using"])
async def test_a_change_is_told_after_a_vacuum(store: PostgresStore, url: str, how: str) -> None:
    await settled(store)
    with producer(url) as writer:
        for shard in (0, 1, 1):
            with writer.transaction():
                move(writer, shard)
            writer.execute(
                f"{how} late_lease_pkey" if how.startswith("cluster") else f"{how} late_lease"
            )
            kept_as_written(await store.heartbeat(counting("me"), TTL_S), url)


def test_an_old_snapshot_does_not_lengthen_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader, or a replication slot, holds back vacuums and not the mark of the last reading. A
    transaction that writes does, in any database of the server: then rows come along that have not
    changed since, never more than there are."""
    if find_binaries() is None:
        pytest.skip("no PostgreSQL: binaries are needed to start a server of one's own")
    with servers.own_server({"fsync": "off", "autovacuum": "off"}) as server:
        migrate.upgrade(server.url)
        asyncio.run(_beside_snapshots(server.url, monkeypatch))


async def _beside_snapshots(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(url)
    brought: list[int] = []
    read = FleetView.read

    def spy(self: FleetView, numbers: Any, since: Any, workers: Any, leases: Any, at: Any) -> None:
        rows = list(leases)
        brought.append(len(rows))
        read(self, numbers, since, workers, rows, at)

    await settled(store)
    monkeypatch.setattr(FleetView, "read", spy)
    reader, writer = producer(url, autocommit=False), producer(url)
    holder = producer(url, autocommit=False)
    with opened(reader, writer, holder):
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from late_lease")
        for shard in (0, 1, 2):
            with writer.transaction():
                move(writer, shard)
            await store.heartbeat(counting("me"), TTL_S)
        assert brought == [1, 1, 1]
        holder.execute("select pg_current_xact_id()")
        for shard in (0, 1, 2, 0, 1, 2):
            with writer.transaction():
                move(writer, shard)
            await store.heartbeat(counting("me"), TTL_S)
        assert brought[3:] == [1, 2, 3, 3, 3, 3]
    await store.close()


@pytest.mark.parametrize("lost", ["_say", "_beat", "_read_fleet"])
async def test_an_answer_that_is_lost_leaves_nothing_unread(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    await settled(store)
    other = await open_store(url)
    call = getattr(PostgresFleet, lost)

    async def fails(self: PostgresFleet, *given: Any, **named: Any) -> None:
        await call(self, *given, **named)
        raise StoreUnavailable("the answer was lost")

    for number in range(3):
        await other.heartbeat(counting(f"w{number}"), TTL_S)
        with producer(url) as writer, writer.transaction():
            move(writer, number)
        busy = msgspec.structs.replace(counting("me"), capacity=float(number + 5))
        with monkeypatch.context() as patch:
            patch.setattr(PostgresFleet, lost, fails)
            with pytest.raises(StoreUnavailable):
                await store.heartbeat(busy if lost == "_say" else counting("me"), TTL_S)
        kept_as_written(await store.heartbeat(counting("me"), TTL_S), url)
        with producer(url) as reader:
            (row,) = reader.execute("select capacity from late_worker where worker_id = 'me'")
        assert row == (counting("me").capacity,)
    await other.close()


@pytest.mark.parametrize("watched", [fleet_view.ALL_WATCHED, 1], ids=["all", "neighbours"])
async def test_a_renewal_that_shows_after_the_end_is_told(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch, watched: int
) -> None:
    """Its commit took longer than the lease was, as on a disk that stalls."""
    monkeypatch.setattr(fleet_view, "ALL_WATCHED", watched)
    slow = await open_store(url)
    for name in ("w1", "w2", "slow"):
        await slow.heartbeat(counting(name), TTL_S)
    assert "slow" in names(await store.heartbeat(counting("me"), TTL_S))
    gate, admin = producer(url, autocommit=False), producer(url)
    with opened(gate, admin):
        # As if all but two seconds had passed.
        end_us = await store.now() + 2_000_000
        admin.execute(
            "update late_worker set expires_at_us = %s where worker_id = 'slow'", (end_us,)
        )
        slow._fleet._end_us = end_us
        admin.execute(
            "create function wait_at_gate() returns trigger language plpgsql as"
            " 'begin perform pg_advisory_xact_lock(4711); return null; end'"
        )
        admin.execute(
            "create trigger slow_commit after update on late_worker for each row"
            " when (new.worker_id = 'slow') execute function wait_at_gate()"
        )
        gate.execute("select pg_advisory_lock(4711)")
        renewal = asyncio.create_task(slow.heartbeat(counting("slow"), TTL_S))
        renewed = "select 1 from pg_locks where locktype = 'advisory' and not granted"
        while not admin.execute(renewed).fetchall():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await until(store, end_us)
        for _ in range(2):  # the first one tells the others, in a large fleet
            assert "slow" not in names(await store.heartbeat(counting("me"), TTL_S))
        gate.execute("select pg_advisory_unlock(4711)")
    await renewal
    await slow.heartbeat(counting("slow"), TTL_S)
    kept_as_written(await store.heartbeat(counting("me"), TTL_S), url)
    await slow.close()


async def test_a_heartbeat_brings_the_unusual_ends_of_leases_and_no_other(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A usual lease has half of its time to live left at least, and all of it at most."""
    brought: list[set[str]] = []
    pass_time = FleetView.pass_time

    def spy(self: FleetView, now_us: int, ends: Any, ttl_s: float) -> None:
        brought.append({name for name, _ in ends})
        pass_time(self, now_us, ends, ttl_s)

    left_s = {"usual": TTL_S * 0.9, "soon over": TTL_S * 0.4, "too long": TTL_S * 5, "over": -30}
    for name in left_s:
        await store.heartbeat(counting(name), TTL_S)
    await settled(store)
    monkeypatch.setattr(FleetView, "pass_time", spy)
    with producer(url) as writer:
        for name, each_s in left_s.items():
            writer.execute(END, (await store.now() + round(each_s * 1_000_000), name))
    await store.heartbeat(counting("me"), TTL_S)
    assert brought == [{"soon over", "too long"}]


def test_another_server_under_the_same_numbers_is_read_anew() -> None:
    """As after a fail-over behind a pooler: nothing failed, and the numbers are the same."""
    if find_binaries() is None:
        pytest.skip("no PostgreSQL: binaries are needed to start a server of one's own")
    with servers.own_server({"fsync": "off"}) as server:
        migrate.upgrade(server.url)
        asyncio.run(_replaced(server))


async def _replaced(server: PostgresServer) -> None:
    store = await open_store(server.url)
    try:
        await settled(store)
        server.stop()
        server.start()
        await store._pools.working._drop_idle()
        with producer(server.url) as writer:
            writer.execute(MOVE, (0,))
        kept_as_written(await store.heartbeat(counting("me"), TTL_S), server.url)
    finally:
        await store.close()


def test_changes_are_told_where_transaction_ids_begin_anew() -> None:
    """They have 32 bits in a row, and a transaction may be open across their end."""
    if find_binaries() is None:
        pytest.skip("no PostgreSQL: binaries are needed to start a server of one's own")
    with servers.own_server({"fsync": "off"}) as server:
        migrate.upgrade(server.url)
        for xid in (2_000_000_000, 4_000_000_000, LAST_XID - 25):  # each less than 2^31 further
            jump(server, xid)
        asyncio.run(_across(server))


def jump(server: PostgresServer, xid: int) -> None:
    """Freeze all that there is, and go on with this transaction id."""
    with producer(server.url) as connection:
        connection.execute("alter database template0 allow_connections true")
        found = connection.execute("select datname from pg_database").fetchall()
    for (name,) in found:
        with producer(server.url_of(str(name))) as connection:
            connection.execute("vacuum freeze")
    server.stop()
    segment = server.data / "pg_xact" / f"{xid >> 20:04X}"
    segment.write_bytes(bytes(1 << 18))
    shutil.chown(segment, server.data.owner(), server.data.group())
    server.run("pg_resetwal", "--pgdata", str(server.data), "--next-transaction-id", str(xid))
    server.start()


async def _across(server: PostgresServer) -> None:
    store = await open_store(server.url)
    early, writer = producer(server.url, autocommit=False), producer(server.url)
    with opened(early, writer):
        await settled(store)
        early.execute("select pg_current_xact_id()")
        early.execute("savepoint one")
        early.execute(MOVE, (3,))
        marks = [store._fleet._view.since]
        for number in range(30):
            with writer.transaction():
                move(writer, number % 3)
            if number == 20:
                move(early, 3)
                early.commit()
            kept_as_written(await store.heartbeat(counting("me"), TTL_S), server.url)
            marks.append(store._fleet._view.since)
    await store.close()
    assert marks[0] < LAST_XID < marks[-1]
    assert marks == sorted(marks)


class Somebody:
    """One of those who change the fleet in the randomised test."""

    def __init__(self, name: str, url: str, store: PostgresStore, rng: random.Random) -> None:
        self.me = counting(name)
        self._held: list[Lease] = []
        self._url = url
        self.store = store
        self._rng = rng

    async def act(self) -> None:
        """Do something, look, and do something else."""
        acts = (self._take, self._give, self._say, self._leave, self._transaction, self._lose)
        for act in self._rng.choices(acts, weights=(4, 3, 2, 1, 4, 2), k=3):
            await act()
            await self.store.heartbeat(self.me, TTL_S)

    async def _take(self) -> None:
        wanted = sorted(self._rng.sample(SHARDS, 2))
        with contextlib.suppress(TransactionAborted):  # a deadlock: a worker tries again
            self._held += await self.store.acquire(self.me.worker_id, wanted)

    async def _give(self) -> None:
        held, self._held = self._held, []
        with contextlib.suppress(TransactionAborted):
            await self.store.release(held)

    async def _say(self) -> None:
        self.me = msgspec.structs.replace(self.me, capacity=float(self._rng.randrange(9)))

    async def _leave(self) -> None:
        await self.store.heartbeat(self.me, 0)

    async def _lose(self) -> None:
        """Give up a heartbeat that is under way, wherever it is."""
        beat = asyncio.create_task(self.store.heartbeat(self.me, TTL_S))
        for _ in range(self._rng.randrange(40)):
            await asyncio.sleep(0)
        beat.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beat

    async def _transaction(self) -> None:
        """Change a lease with an xid that is older than much of what others do meanwhile, inside
        savepoints, some of which are rolled back."""
        writer = producer(self._url, autocommit=False)
        with opened(writer):
            writer.execute("select pg_current_xact_id()")
            for _ in range(self._rng.randrange(3)):
                await self.store.heartbeat(self.me, TTL_S)
            shard = self._rng.randrange(len(SHARDS))
            for keeps in self._rng.choices((True, False), k=2):
                await asyncio.to_thread(writer.execute, "savepoint part")
                # Others wait for this row in threads or in the server, so the loop must go on.
                await asyncio.to_thread(writer.execute, MOVE, (shard,))
                if not keeps:
                    writer.execute("rollback to savepoint part")
            await self.store.now()
            await asyncio.to_thread(move, writer, shard)
            if self._rng.random() < 0.8:
                writer.commit()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("watched", [fleet_view.ALL_WATCHED, 2], ids=["all", "neighbours"])
async def test_kept_views_are_as_the_tables_are_whatever_comes(
    url: str, monkeypatch: pytest.MonkeyPatch, seed: int, watched: int
) -> None:
    monkeypatch.setattr(fleet_view, "ALL_WATCHED", watched)
    rng = random.Random(seed)
    async with AsyncExitStack() as closing:
        people = []
        for number in range(4):
            store = await open_store(url)
            closing.push_async_callback(store.close)
            people.append(Somebody(f"w{number}", url, store, random.Random(rng.random())))
        for _ in range(ROUNDS):
            await asyncio.gather(*(each.act() for each in people), _beside(url, rng))
            for each in people:
                await each.store.heartbeat(each.me, TTL_S)
            for each in people:
                seen = await each.store.heartbeat(each.me, TTL_S)
                assert seen.workers == tuple(other.me for other in people)
                kept_as_written(seen, url)


async def _beside(url: str, rng: random.Random) -> None:
    """Do what operators and the server do, at the same time."""
    vacuums = ("vacuum freeze late_lease", "vacuum late_meta", "vacuum full late_worker")
    act = rng.choice([*vacuums, "reset", "nothing"])
    if act == "reset":
        with Control(url) as control:
            await asyncio.to_thread(control.groups.reset, "default", "now")
    elif act != "nothing":
        with producer(url) as writer:
            await asyncio.to_thread(writer.execute, act)


PREPARED = "select name from pg_prepared_statements where statement like '%late_worker%'"


async def prepared(store: PostgresStore) -> set[str]:
    """Read the names of the heartbeats that the store's connection has prepared."""
    async with store._pools.working.use() as connection:
        return {name for (name,) in await rows_of(connection, PREPARED)}


async def test_a_heartbeat_to_the_server_itself_is_planned_once(store: PostgresStore) -> None:
    await settled(store)
    found = await prepared(store)
    assert found
    assert all(int(name.removeprefix("_pg3_")) > 1_000 for name in found), "of no other session"
    for _ in range(3):
        await store.heartbeat(counting("me"), TTL_S)
    assert await prepared(store) == found


async def test_behind_a_pooler_nothing_is_prepared(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pooler tells the client a number of its own in place of the server's process.
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", 1)
    store = await open_store(url)
    try:
        await settled(store)
        assert await prepared(store) == set()
    finally:
        await store.close()


async def test_after_a_lost_plan_heartbeats_go_on_without_one(store: PostgresStore) -> None:
    await settled(store)
    async with store._pools.working.use() as connection:
        # The driver would take notice of a plain `deallocate`.
        await connection.execute("do $$ begin execute 'deallocate all'; end $$")
    with pytest.raises(TransactionAborted, match="26000"):
        await store.heartbeat(counting("me"), TTL_S)
    assert names(await store.heartbeat(counting("me"), TTL_S)) == ["me"]
    assert await prepared(store) == set(), "what stands between may lose it again"
