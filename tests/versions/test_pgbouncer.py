"""Workers and producers behind a real PgBouncer that pools transactions, and is started again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from late.control import Control
from late.errors import LateError
from late.handler.context import Context
from late.outbox import connect
from late.outbox.adapters.psycopg_shared import PREPARE_AFTER, PsycopgSharedTransactions
from late.schema import migrate
from late.store.base import Fate, WorkerInfo
from late.store.postgres.connection import rows_of
from late.store.postgres.store import PostgresStore
from late.store.postgres.wake_ups import PostgresWakeUps
from late.testing.servers.postgres import PostgresServer
from tests.integration.kill_app import app, count
from tests.integration.kill_kit import Fleet, enqueue, settled, until
from tests.unit.dispatcher_kit import attempt, rig, task
from tests.versions.pgbouncer import PgBouncer

TASKS = 200
AWAY_S = 0.5


@pytest.fixture
def bouncer() -> Iterator[PgBouncer]:
    with (
        PostgresServer(settings={"fsync": "off"}) as server,
        closing(PgBouncer(server)) as made,
    ):
        migrate.upgrade(server.url)
        yield made


def test_a_fleet_goes_on_when_it_is_started_again(bouncer: PgBouncer, tmp_path: Path) -> None:
    url = f"{bouncer.url}/postgres"
    with closing(Fleet(url, tmp_path, {"LATE_LEASE_TTL_S": "5"})) as fleet:
        fleet.start()
        fleet.start()
        until(lambda: all(map(fleet.is_up, fleet.processes)), fleet)
        enqueue(url, range(TASKS // 2))
        until(lambda: fleet.started() >= 10, fleet)
        bouncer.kill()
        time.sleep(AWAY_S)
        bouncer.start()
        enqueue(url, range(TASKS // 2, TASKS))
        until(lambda: quiet(url), fleet)
        assert set(fleet.starts()) == set(range(TASKS))
        # No worker died, so nothing was repeated
        assert fleet.started() == TASKS
        assert fleet.stop() == [0, 0]


def quiet(url: str) -> bool:
    """As `settled`; False while a connection of the former bouncer is found out."""
    try:
        return settled(url)
    except LateError:
        return False


def test_producers_enqueue_in_their_transactions(bouncer: PgBouncer) -> None:
    url = f"{bouncer.url}/postgres"
    # Before version 1.21 a PgBouncer knows nothing of prepared statements
    with (
        psycopg.connect(url, prepare_threshold=None) as one,
        psycopg.connect(url, prepare_threshold=None) as other,
    ):
        for n in range(20):
            for connection in (one, other):
                with connection.transaction(force_rollback=n % 4 == 3):
                    app.enqueue_many(connection, [count.call(n)])
    assert waiting(url) == 30


def test_transactions_of_late_itself_leave_no_statement_behind(bouncer: PgBouncer) -> None:
    """What one of them prepared would be in the way of the next: they share a session."""
    url = f"{bouncer.url}/postgres"
    for _ in range(3):
        with connect(url) as tx:
            for n in range(10):
                count.enqueue(tx, n)
    assert waiting(url) == 30


async def test_handlers_keep_connections_to_it(bouncer: PgBouncer) -> None:
    """Sessions behind it are lent to one transaction after the other, and go away in between."""
    url = f"{bouncer.url}/postgres"
    with connect(url) as tx:
        tx.execute("create table effect (number integer)")

    @task()
    def charge(ctx: Context, n: int) -> None:
        with ctx.once() as tx:
            tx.execute("insert into effect values (%s)", (n,))
            tx.execute("set local work_mem = '1MB'")

    async with rig(charge, concurrency=4, url=url) as it:
        outcomes = await it.run(*(attempt("charge", n=n) for n in range(100)))
        assert {outcome.kind for outcome in outcomes} == {"done"}, outcomes[0].error
        bouncer.kill()
        bouncer.start()
        outcomes = await it.run(*(attempt("charge", n=n) for n in range(100, 200)))
        assert {outcome.kind for outcome in outcomes} == {"done"}, outcomes[0].error
    with connect(url) as tx:
        found = tx.execute("select number from effect order by number").fetchall()
    assert [number for (number,) in found] == list(range(200))


def test_handlers_that_share_a_transaction_prepare_nothing(bouncer: PgBouncer) -> None:
    """The names would be in the way of whoever gets the session next."""
    transactions = PsycopgSharedTransactions(f"{bouncer.url}/postgres", 1)
    for _ in range(3):
        tx = transactions.begin()
        for _ in range(PREPARE_AFTER + 2):
            [(count,)] = tx.connection.execute("select count(*) from pg_prepared_statements")
            assert count == 0
            tx.next()
        tx.last()
        assert tx.commit([])[0] is Fate.COMMITTED
        tx.close(committed=True)
    transactions.close()


def waiting(url: str) -> int:
    with Control(url) as control:
        [queue] = control.status.read().queues
    return queue.depth.n


async def test_heartbeats_behind_it_prepare_nothing(bouncer: PgBouncer) -> None:
    store = PostgresStore(f"{bouncer.url}/postgres")
    await store.open()
    try:
        for _ in range(3):
            await store.heartbeat(WorkerInfo("me", "here", ("default",)), 60)
        async with store._pools.working.use() as connection:
            assert await rows_of(connection, "select name from pg_prepared_statements") == []
    finally:
        await store.close()


async def test_a_worker_behind_it_announces_nothing(bouncer: PgBouncer) -> None:
    made = PostgresWakeUps(f"{bouncer.url}/postgres", prepared=True)
    task = asyncio.create_task(made.run(lambda: None, lambda: None))
    try:
        async with asyncio.timeout(30):
            while True:
                if made.unable or made.ready:
                    break
                await asyncio.sleep(0.05)
        assert "LATE_LISTEN_URL" in made.unable
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
