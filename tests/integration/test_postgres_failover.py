"""Standbys and fail-overs: what is refused, and that nothing of the former server is trusted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from late.errors import StoreRefused, StoreUnavailable
from late.model.task import Cursor
from late.store.base import Settlement, SettleResult, WorkerInfo
from late.store.postgres.connection import ConnectionPool, connect, conninfo_of
from late.store.postgres.store import PostgresStore
from late.testing.servers.postgres import PostgresServer
from late.worker.startup import reach_database
from tests.integration.postgres_kit import (
    ASYNC,
    SHARD,
    Reader,
    enqueue,
    migrated,
    open_store,
    producer,
    server_to_kill,
)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with server_to_kill() as made:
        yield made


async def test_a_standby_is_refused_and_a_promoted_one_is_not(server: PostgresServer) -> None:
    url = migrated(server)
    with producer(url) as writer:
        enqueue(writer)
    store = await open_store(url)
    await store.close()
    standby = PostgresServer(settings=ASYNC, initdb=False)
    try:
        standby.clone_of(server)
        standby.start()
        name = url.rpartition("/")[2]
        refused = PostgresStore(standby.url_of(name))
        with pytest.raises(StoreRefused, match="standby"):
            await refused.open()
        waiting = asyncio.create_task(reach_database(refused.open, 60, asyncio.Event()))
        await asyncio.wait({waiting}, timeout=1)
        assert not waiting.done()
        server.stop()
        standby.run("pg_ctl", "promote", "--wait", "--pgdata", str(standby.data))
        await waiting
        await refused.close()

        promoted = await open_store(standby.url_of(name))
        with producer(standby.url_of(name)) as writer:
            await Reader(promoted).until(enqueue(writer))
        await promoted.close()
    finally:
        standby.close()


async def test_after_a_fail_over_nothing_in_memory_is_trusted(server: PostgresServer) -> None:
    """The new primary may have lost commits, and gives their transaction ids again."""
    url = migrated(server)
    store = await open_store(url)
    await Reader(store).step()
    server.stop()
    server.touch("standby.signal")
    server.start()
    server.run("pg_ctl", "promote", "--wait", "--pgdata", str(server.data))

    async with asyncio.timeout(120):
        for call in (store.now, Reader(store).step):
            with pytest.raises(StoreUnavailable):
                await call()  # the old link
            with pytest.raises(StoreRefused, match="restart this worker"):
                await call()
    await store.close()
    await (await open_store(url)).close()


async def test_connections_that_outlive_a_fail_over_settle_and_read_nothing(
    server: PostgresServer,
) -> None:
    """A pooler keeps them, and leads them to the new primary, which numbers the last transactions
    anew: tasks that commit there would count as read."""
    url = migrated(server)
    store = await open_store(url)
    await store.heartbeat(WorkerInfo("w1", "h:1", ("default",)), 60)
    (lease,) = await store.acquire("w1", [("default", SHARD)])
    standby = PostgresServer(settings=ASYNC, initdb=False)
    try:
        standby.clone_of(server)
        with producer(url) as connection:
            for _ in range(300):
                connection.execute("select pg_current_xact_id()")
        (page,) = await store.read({SHARD: Cursor("")}, 100)
        server.stop()
        standby.start()
        standby.run("pg_ctl", "promote", "--wait", "--pgdata", str(standby.data))
        at = standby.url_of(url.rpartition("/")[2])

        async def outlive(pool: ConnectionPool) -> None:
            await pool._drop_idle()
            pool._idle.append(await connect(conninfo_of(at)))

        await outlive(store._pools.settling)
        ahead = Settlement(
            settlement_id="s-1",
            group="default",
            shard_id=SHARD,
            seq=lease.seq + 1,
            epoch=lease.epoch,
            owner="w1",
            cursor=page.cursor,
            open=(),
        )
        assert await store.settle([ahead]) == [SettleResult.FENCED]
        for burnt in (0, 400):  # After those the number alone would say nothing.
            with producer(at) as connection:
                for _ in range(burnt):
                    connection.execute("select pg_current_xact_id()")
            await outlive(store._pools.reading)
            with pytest.raises(StoreRefused, match="restart this worker"):
                await store.read({SHARD: page.cursor}, 100)
        await store.close()
    finally:
        standby.close()


async def test_connections_that_outlive_a_move_to_another_server_read_nothing(
    server: PostgresServer,
) -> None:
    """A pooler leads them to a copy of the database, whose transaction ids are other ones."""
    url = migrated(server)
    with producer(url) as connection:
        for _ in range(300):
            connection.execute("select pg_current_xact_id()")
    store = await open_store(url)
    (page,) = await store.read({SHARD: Cursor("")}, 100)
    with server_to_kill() as other:
        name = url.rpartition("/")[2]
        dump = str(server.data / "dump.sql")
        server.run("pg_dump", "--dbname", url, "--file", dump)
        with producer(other.url_of("postgres")) as connection:
            connection.autocommit = True
            connection.execute(f'create database "{name}"')
        other.run("psql", "--quiet", "--dbname", other.url_of(name), "--file", dump)
        await store._pools.reading._drop_idle()
        store._pools.reading._idle.append(await connect(conninfo_of(other.url_of(name))))
        with pytest.raises(StoreRefused, match="restored or copied database"):
            await store.read({SHARD: page.cursor}, 100)
    await store.close()


async def test_a_restart_of_the_server_behind_a_pooler_is_no_reason_to_stop(
    server: PostgresServer,
) -> None:
    url = migrated(server)
    store = await open_store(url)
    reader = Reader(store)
    await reader.step()
    server.stop()
    server.start()
    await store._pools.reading._drop_idle()
    store._pools.reading._idle.append(await connect(conninfo_of(url)))
    with producer(url) as writer:
        task_id = enqueue(writer)
    await reader.until(task_id)
    await store.close()
