"""Crashes, standbys and copies: what must be refused, what must not have run, what must survive."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from late.errors import SchemaMismatch, StoreRefused, StoreUnavailable
from late.model.task import Cursor, OpenTask, ShardId, TaskId
from late.store.base import Settlement, SettleResult, WorkerInfo, cursor_within
from late.store.postgres.store import PostgresStore
from late.testing.servers.postgres import PostgresServer
from tests.integration.postgres_kit import (
    SHARD,
    Reader,
    binaries,
    database,
    enqueue,
    enqueue_many,
    migrated,
    open_store,
    producer,
    server_to_kill,
)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with server_to_kill() as made:
        yield made


def logged(url: str) -> set[TaskId]:
    with producer(url) as connection:
        rows = connection.execute("select task_id::text from late_task").fetchall()
    return {TaskId(str(task_id)) for (task_id,) in rows}


# --- the durability gate -------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
async def test_what_was_handed_out_survives_a_crash(server: PostgresServer, durable: bool) -> None:
    """And without the gate it does not: a task that ran has never existed."""
    url = migrated(server)
    store = await open_store(url, durable=durable)
    reader = Reader(store)
    with producer(url) as writer:
        await reader.until(enqueue(writer))
        writer.execute("set synchronous_commit = off")
        vanishing = enqueue(writer)
        await reader.until(vanishing)
        server.kill()
    with pytest.raises(StoreUnavailable):
        await store.now()
    server.start()

    assert (vanishing in logged(url)) == durable
    await store.close()


async def test_an_empty_page_waits_for_the_disk_as_well(server: PostgresServer) -> None:
    """A transaction id that a crash takes back is given again: a cursor that saw the first one
    finished would hide the second."""
    url = migrated(server)
    store = await open_store(url)
    reader = Reader(store)
    with producer(url) as writer:
        await reader.until(enqueue(writer))
        writer.execute("set synchronous_commit = off")
        for _ in range(20):
            writer.execute("begin")
            enqueue(writer)
            writer.execute("rollback")
            await reader.step()
        server.kill()
    server.start()
    with pytest.raises(StoreUnavailable):
        await reader.step()
    with producer(url) as writer:
        again = [enqueue(writer) for _ in range(20)]
    await reader.until(*again)
    await store.close()


async def test_a_crash_in_the_middle_loses_and_repeats_nothing(server: PostgresServer) -> None:
    url = migrated(server)
    store = await open_store(url)
    reader = Reader(store, limit=3)
    with producer(url) as writer:
        wanted = [enqueue(writer) for _ in range(10)]
        await reader.step()
        server.kill()
    server.start()
    with producer(url) as writer:
        wanted += [enqueue(writer) for _ in range(10)]
    async with asyncio.timeout(120):
        while not set(wanted) <= set(reader.ids):
            try:
                await reader.step()
            except StoreUnavailable:
                continue
    await store.close()

    assert sorted(reader.ids) == sorted(wanted)


# --- copies --------------------------------------------------------------------------------------


async def settled(store: PostgresStore, url: str) -> tuple[list[TaskId], list[TaskId]]:
    """Tasks of which one group has settled some and another none: those that `default` has not
    settled, and all."""
    with producer(url) as writer:
        writer.execute("insert into late_group (name, created_at_us) values ('audit', 1)")
        ids = enqueue_many(writer, 20)
    await store.heartbeat(WorkerInfo("w1", "h:1", ("default",)), 60)
    leases = await store.acquire("w1", [("default", SHARD), ("audit", SHARD)])
    (page,) = await store.read({SHARD: Cursor("")}, 100)
    open_task = OpenTask(page.records[3].position, page.records[3].task_id)
    settlements = [
        Settlement(
            settlement_id=f"s-{lease.group}",
            group=lease.group,
            shard_id=SHARD,
            seq=lease.seq + 1,
            epoch=lease.epoch,
            owner="w1",
            cursor=cursor_within(page.window, page.records[11 if lease.group == "default" else 4]),
            open=(open_task,) if lease.group == "default" else (),
        )
        for lease in leases
    ]
    assert set(await store.settle(settlements)) == {SettleResult.SETTLED}
    in_order = [record.task_id for record in page.records]
    assert sorted(in_order) == sorted(ids)
    return [in_order[3], *in_order[12:]], in_order


def restore(source: PostgresServer, source_url: str, target: PostgresServer) -> str:
    """`pg_dump | psql` into another cluster."""
    with psycopg.connect(target.url, autocommit=True) as connection:
        connection.execute("create database copy")
    dump = target.folder / "dump.sql"
    source.run("pg_dump", "--dbname", source_url, "--file", str(source.folder / "dump.sql"))
    dump.write_bytes((source.folder / "dump.sql").read_bytes())
    dump.chmod(0o644)
    url = target.url_of("copy")
    target.run("psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", url, "--file", str(dump))
    return url


async def test_a_restored_copy_is_refused_and_a_rebase_loses_nothing(
    server: PostgresServer,
) -> None:
    url = migrated(server)
    with producer(url) as connection:
        for _ in range(300):  # the counter of the source is ahead of a fresh cluster's
            connection.execute("select pg_current_xact_id()")
    store = await open_store(url)
    unsettled, everything = await settled(store, url)
    await store.close()
    with PostgresServer() as younger:
        copy = restore(server, url, younger)
        refused = PostgresStore(copy)
        with pytest.raises(StoreRefused, match="late rebase"):
            await refused.open()
        await refused.close()
        with producer(copy) as writer:  # a producer that nobody stopped
            too_early = enqueue(writer)

        await refused.rebase()
        adopted = await open_store(copy)
        with producer(copy) as writer:
            late = enqueue(writer)
        await adopted.heartbeat(WorkerInfo("w2", "h:2", ("default",)), 60)
        for group, expected in (("default", unsettled), ("audit", everything[5:])):
            (lease,) = await adopted.acquire("w2", [(group, SHARD)])
            reader = Reader(adopted, limit=3)
            reader.cursors[SHARD] = lease.cursor
            await reader.until(*expected, too_early, late)
            for _ in range(3):
                await reader.step()
            assert sorted(reader.ids) == sorted([*expected, too_early, late]), group
        await adopted.close()


async def test_a_restored_copy_that_nobody_ever_ran_on_is_refused(server: PostgresServer) -> None:
    """No identity, no cursor: only the positions themselves tell."""
    url = migrated(server)
    with producer(url) as writer:
        for _ in range(300):
            writer.execute("select pg_current_xact_id()")
        wanted = enqueue_many(writer, 5, shard=3)
    with PostgresServer() as younger:
        copy = restore(server, url, younger)
        store = PostgresStore(copy)
        with pytest.raises(StoreRefused, match="late rebase"):
            await store.open()
        await store.rebase()
        await store.open()
        reader = Reader(store, shards=4)
        await reader.until(*wanted)
        await store.close()


async def refuses(url: str) -> bool:
    store = PostgresStore(url)
    try:
        await store.open()
    except StoreRefused as error:
        return "late rebase" in str(error)
    finally:
        await store.close()
    return False


@pytest.mark.parametrize("way", ["template", "dump"])
async def test_a_copy_in_the_same_cluster_is_refused_and_the_original_is_not(
    server: PostgresServer, way: str
) -> None:
    """Its positions are right, so nothing else tells: each task would run in both."""
    url = migrated(server)
    with producer(url) as writer:
        wanted = enqueue_many(writer, 5)
    assert not await refuses(url)
    if way == "dump":
        copy = restore(server, url, server)
    else:
        copy = server.url_of("copy")
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("create database copy template late")

    assert await refuses(copy)
    assert not await refuses(url)
    adopted = PostgresStore(copy)
    await adopted.rebase()
    await adopted.open()
    await Reader(adopted).until(*wanted)
    await adopted.close()
    assert not await refuses(url)


async def test_a_database_that_is_renamed_is_no_copy(server: PostgresServer) -> None:
    url = migrated(server)
    assert not await refuses(url)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("alter database late rename to tasks")
    assert not await refuses(server.url_of("tasks"))


async def test_a_database_that_is_made_anew_under_its_name_is_refused(
    server: PostgresServer,
) -> None:
    """Restored from a backup: what ran since then would run again. Workers that were there before
    meet it with their next connection."""
    url = migrated(server)
    store = await open_store(url)
    copy = restore(server, url, server)
    assert copy == server.url_of("copy")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("drop database late with (force)")
        connection.execute("alter database copy rename to late")
    with pytest.raises(StoreUnavailable):
        await store.now()
    with pytest.raises(StoreRefused, match="late rebase"):
        await store.now()
    await store.close()


async def test_a_database_that_an_older_release_adopted_is_no_copy() -> None:
    with database() as url:
        await (await open_store(url)).close()
        with producer(url) as connection:
            connection.execute("delete from late_meta where key = 'database_oid'")
        assert not await refuses(url)
        with producer(url) as connection:
            rows = connection.execute(
                "select value from late_meta where key = 'database_oid'"
                " and value = (select oid::text from pg_database"
                " where datname = current_database())"
            ).fetchall()
        assert len(rows) == 1


async def test_rebase_does_not_hide_who_is_in_the_middle_of_enqueueing() -> None:
    """He has his transaction id already, and inserts when the rebase lets go of the log."""
    with database() as url, producer(url) as early, producer(url) as done:
        store = await open_store(url)
        await store.acquire("w0", [("default", SHARD)])
        finished = enqueue(done)
        early.execute("begin")
        early.execute("select pg_current_xact_id()")
        await store.rebase()
        inserted = enqueue(early)
        await store.heartbeat(WorkerInfo("w1", "h:1", ("default",)), 60)
        (lease,) = await store.acquire("w1", [("default", SHARD)])
        reader = Reader(store)
        reader.cursors[SHARD] = lease.cursor
        early.execute("commit")
        await reader.until(finished, inserted)
        await store.close()


async def test_another_deployment_is_refused() -> None:
    with database() as url:
        store = await open_store(url)
        with producer(url) as connection:
            rows = connection.execute(
                "select value from late_meta where key = 'deployment'"
            ).fetchall()
        (name,) = rows[0]
        await store.close()
        await (await open_store(url, deployment=str(name))).close()
        other = PostgresStore(url, deployment="production")
        with pytest.raises(StoreRefused, match="'production'"):
            await other.open()
        await other.close()


async def test_a_counter_that_fell_back_is_refused() -> None:
    with database() as url:
        await (await open_store(url)).close()
        with producer(url) as connection:
            connection.execute(
                "update late_meta set value = '9999999999' where key = 'position_max'"
            )
        store = PostgresStore(url)
        with pytest.raises(StoreRefused, match="late rebase"):
            await store.open()
        await store.rebase()
        await store.open()
        await store.close()


async def test_a_journal_from_the_future_is_refused() -> None:
    with database() as url:
        store = await open_store(url)
        await store.heartbeat(WorkerInfo("w1", "h:1", ("default",)), 60)
        await store.acquire("w1", [("default", ShardId(2))])
        await store.close()
        with producer(url) as connection:
            connection.execute("update late_settlement set cursor = '99999999:99999999:'")
        again = PostgresStore(url)
        with pytest.raises(StoreRefused, match="shard 2"):
            await again.open()
        await again.close()


async def test_guards_run_again_with_every_new_connection() -> None:
    with database() as url:
        store = await open_store(url)
        with producer(url) as connection:
            connection.execute("update late_meta set value = '9999' where key like 'schema%'")
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = 'late' and datname = current_database()"
            )
        with pytest.raises(StoreUnavailable):
            await store.now()
        with pytest.raises(SchemaMismatch, match="upgrade late"):
            await store.now()
        await store.close()


async def test_a_role_without_any_privilege_to_look_behind_the_scenes_will_do() -> None:
    """What a worker needs is in the tables; nothing asks for a superuser."""
    with database() as url:
        with producer(url) as owner:
            owner.execute("create role late_worker login password 'w'")
            owner.execute(
                "grant select, insert, update, delete on all tables in schema public to late_worker"
            )
        head, _, tail = url.rpartition("@")
        assert head
        store = await open_store(f"postgresql://late_worker:w@{tail}")
        with producer(url) as writer:
            writer.execute("set synchronous_commit = off")
            await Reader(store).until(enqueue(writer))
        await store.prune(journal_keep_s=3600)
        await store.close()
        with producer(url) as owner:
            owner.execute("drop owned by late_worker")
            owner.execute("drop role late_worker")


def test_no_server_outlives_its_starter() -> None:
    """Not even a starter that was killed."""
    binaries()
    script = (
        "import os, sys\n"
        "from late.testing.servers.postgres import PostgresServer\n"
        "server = PostgresServer().start()\n"
        "print(server.pid, server.folder, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False, timeout=120
    )
    assert killed.returncode == -9
    pid, folder = killed.stdout.split()

    deadline = time.monotonic() + 120
    while Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(folder).exists()
    assert not alive(int(pid))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or " Z " not in stat.read_text()
