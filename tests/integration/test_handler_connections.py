"""The connections that a worker keeps for its handlers' transactions, on PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from late.handler.context import AsyncContext, Context
from late.outbox import connections
from late.outbox.idle_connections import IdleConnections
from tests.integration import postgres_kit
from tests.unit import dispatcher_process_tasks
from tests.unit.dispatcher_kit import Task, attempt, rig, task

PID = "select pg_backend_pid()"
OTHERS = (
    "select pid, state from pg_stat_activity where backend_type = 'client backend'"
    " and datname = current_database() and pid <> pg_backend_pid()"
)
seen: list[Any] = []


@pytest.fixture
def url() -> Iterator[str]:
    with postgres_kit.database() as made:
        with psycopg.connect(made) as tx:
            tx.execute("create table effect (number integer)")
        seen.clear()
        yield made


@pytest.fixture
def idle() -> Iterator[IdleConnections]:
    made = IdleConnections(2)
    yield made
    made.close()


def others(url: str) -> dict[int, str]:
    """Return the backends of this database and what each does."""
    with psycopg.connect(url, autocommit=True) as connection:
        return dict(connection.execute(OTHERS).fetchall())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def kill(url: str, *pids: int) -> None:
    """End backends, and wait until the server does not know them any more."""
    with psycopg.connect(url, autocommit=True) as connection:
        for pid in pids:
            connection.execute("select pg_terminate_backend(%s, 30000)", (pid,))


@task()
def charge(ctx: Context, n: int) -> None:
    with ctx.once() as tx:
        seen.append(tx.execute(PID).fetchone()[0])
        tx.execute("insert into effect values (%s)", (n,))


@task()
async def charge_async(ctx: AsyncContext, n: int) -> None:
    async with ctx.once() as tx:
        cursor = await tx.execute(PID)
        seen.append((await cursor.fetchone())[0])
        await tx.execute("insert into effect values (%s)", (n,))


@task()
def spoil(ctx: Context) -> None:
    """Leaves behind what a session can keep, and fails."""
    with ctx.begin() as tx:
        tx.execute("set search_path to nowhere")
        tx.execute("select pg_advisory_lock(7)")
        tx.execute("create temporary table mine (id integer)")
        tx.execute("prepare mine as select 1")
        tx.execute("listen mine")
        tx.commit()
        tx.autocommit = True
        tx.row_factory = dict_row
        seen.append(tx.execute(PID).fetchone()["pg_backend_pid"])
        raise KeyError("no")


@task()
def look(ctx: Context) -> None:
    with ctx.begin() as tx:
        seen.append(tx.execute(PID).fetchone()[0])
        tx.execute("select * from effect")
        for names in ("pg_prepared_statements", "pg_listening_channels()"):
            assert tx.execute(f"select * from {names}").fetchall() == []
        assert tx.execute("select to_regclass('pg_temp.mine')").fetchone() == (None,)
        locks = "select count(*) from pg_locks where locktype = 'advisory'"
        assert tx.execute(locks).fetchone() == (0,)


@pytest.mark.parametrize("kind", [charge, charge_async])
async def test_many_tasks_use_few_connections(url: str, kind: Task) -> None:
    async with rig(kind, concurrency=2, url=url) as it:
        outcomes = await it.run(*(attempt(kind.name, n=n) for n in range(40)))
        assert {outcome.kind for outcome in outcomes} == {"done"}, outcomes[0].error
        assert len(seen) == 40
        assert len(set(seen)) <= 2
        assert set(others(url)) >= set(seen)
    # Stopping has closed them
    await until(lambda: not others(url))


@task()
def read(ctx: Context) -> None:
    with ctx.begin() as tx:
        seen.append(tx.execute(PID).fetchone()[0])


@task()
async def read_async(ctx: AsyncContext) -> None:
    async with ctx.begin() as tx:
        cursor = await tx.execute(PID)
        seen.append((await cursor.fetchone())[0])


@pytest.mark.parametrize("kind", [read, read_async])
async def test_a_connection_killed_between_two_tasks_costs_no_attempt(url: str, kind: Task) -> None:
    async with rig(kind, concurrency=1, url=url) as it:
        for _ in range(5):
            (outcome,) = await it.run(attempt(kind.name))
            assert outcome.kind == "done", outcome.error
            kill(url, seen[-1])
    assert len(set(seen)) == 5


async def test_a_connection_that_breaks_under_the_claim_is_replaced(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from late.outbox import inbox

    claim, doomed = inbox.claim, [True]

    def claim_late(tx: Any, of: Any) -> Any:
        # The connection was found usable a moment ago
        if doomed and seen:
            doomed.clear()
            kill(url, seen[-1])
        return claim(tx, of)

    monkeypatch.setattr(inbox, "claim", claim_late)
    async with rig(charge, concurrency=1, url=url) as it:
        for n in range(2):
            (outcome,) = await it.run(attempt("charge", n=n))
            assert outcome.kind == "done", outcome.error
    assert not doomed
    with psycopg.connect(url) as tx:
        assert tx.execute("select number from effect order by number").fetchall() == [(0,), (1,)]


@pytest.mark.parametrize("handler_sees_it", [True, False])
async def test_a_break_in_the_block_fails_the_attempt(url: str, handler_sees_it: bool) -> None:
    @task()
    def breaks(ctx: Context) -> None:
        with ctx.once() as tx:
            tx.execute("insert into effect values (1)")
            kill(url, tx.execute(PID).fetchone()[0])
            with nullcontext() if handler_sees_it else suppress(psycopg.Error):
                tx.execute("insert into effect values (2)")

    async with rig(breaks, charge, concurrency=1, url=url) as it:
        (outcome,) = await it.run(attempt("breaks"))
        assert outcome.kind != "done"
        (outcome,) = await it.run(attempt("charge", n=3))
        assert outcome.kind == "done", outcome.error
    with psycopg.connect(url) as tx:
        assert tx.execute("select number from effect").fetchall() == [(3,)]


async def test_a_handler_finds_nothing_of_the_one_before(url: str) -> None:
    async with rig(spoil, look, concurrency=1, url=url) as it:
        (failed,) = await it.run(attempt("spoil"))
        assert "KeyError" in (failed.error or "")
        (outcome,) = await it.run(attempt("look"))
        assert outcome.kind == "done", outcome.error
    assert len(seen) == 2
    assert len(set(seen)) == 1


async def test_a_cancelled_handler_leaves_no_transaction(url: str) -> None:
    @task(timeout_s=1.5)
    async def slow(ctx: AsyncContext) -> None:
        async with ctx.once() as tx:
            await tx.execute("insert into effect values (1)")
            await asyncio.sleep(60)

    async with rig(slow, charge_async, concurrency=1, url=url) as it:
        (outcome,) = await it.run(attempt("slow"))
        assert outcome.kind != "done"
        await until(lambda: all("transaction" not in state for state in others(url).values()))
        (outcome,) = await it.run(attempt("charge_async", n=2))
        assert outcome.kind == "done", outcome.error
    with psycopg.connect(url) as tx:
        assert tx.execute("select number from effect").fetchall() == [(2,)]


async def test_a_stuck_thread_keeps_its_connection_to_itself(url: str) -> None:
    release, over = threading.Event(), threading.Event()

    @task(timeout_s=1.5)
    def hang(ctx: Context) -> None:
        try:
            with ctx.begin() as tx:
                seen.append(tx.execute(PID).fetchone()[0])
                release.wait(120)
        finally:
            over.set()

    try:
        async with rig(hang, charge, concurrency=2, url=url) as it:
            it.dispatcher.submit([attempt("hang")])
            await until(lambda: it.dispatcher.stuck.count == 1)
            outcomes = await it.run(*(attempt("charge", n=n) for n in range(10)))
            assert {outcome.kind for outcome in outcomes} == {"done"}
            assert seen[0] not in seen[1:]
        # Stopping has closed the others; this one is still in use
        await until(lambda: set(others(url)) == {seen[0]})
    finally:
        release.set()
    # Once it is given back nobody keeps it
    await until(lambda: over.is_set() and not others(url))


async def test_a_child_process_keeps_one_too(url: str) -> None:
    kind = dispatcher_process_tasks.backend
    async with rig(kind, concurrency=1, process_workers=1, url=url) as it:
        outcomes = await it.run(*(attempt(kind.name) for _ in range(5)))
        assert {outcome.kind for outcome in outcomes} == {"done"}, outcomes[0].error
    with psycopg.connect(url) as tx:
        assert tx.execute("select count(*), count(distinct number) from effect").fetchone() == (
            5,
            1,
        )
    await until(lambda: not others(url))


def test_a_second_transaction_in_the_first_waits_for_nobody(
    url: str, idle: IdleConnections
) -> None:
    with (
        connections.begin(url, idle) as one,
        connections.begin(url, idle) as two,
        connections.begin(url, idle) as three,
    ):
        pids = {tx.execute(PID).fetchone() for tx in (one, two, three)}
    assert len(pids) == 3
    assert len(idle) == 2  # More are not kept.
    with connections.begin(url, idle) as one, connections.begin(url, idle) as two:
        assert {tx.execute(PID).fetchone() for tx in (one, two)} < pids


def test_after_its_block_a_connection_is_closed_to_the_handler(
    url: str, idle: IdleConnections
) -> None:
    with connections.begin(url, idle) as tx:
        cursor = tx.execute(PID)
    assert len(idle) == 1
    assert tx.closed
    for use in (lambda: tx.execute(PID), lambda: cursor.execute(PID), tx.commit, tx.cursor):
        with pytest.raises(psycopg.OperationalError, match="closed"):
            use()
    # What was fetched can be read as before
    assert cursor.fetchone() is not None
    tx.close()
    assert len(idle) == 1


async def test_a_block_with_a_swallowed_error_does_not_look_committed(
    url: str, idle: IdleConnections
) -> None:
    """The server answers its COMMIT with ROLLBACK, and psycopg calls that no error."""
    with pytest.raises(psycopg.errors.InFailedSqlTransaction), connections.begin(url, idle) as tx:  # noqa: PT012
        tx.execute("insert into effect values (1)")
        with suppress(psycopg.Error):
            tx.execute("select 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):  # noqa: PT012
        async with connections.begin_async(url, idle) as tx:
            await tx.execute("insert into effect values (2)")
            with suppress(psycopg.Error):
                await tx.execute("select 1 / 0")
    with connections.begin(url, idle) as tx:
        tx.execute("insert into effect values (3)")
        with suppress(psycopg.Error), tx.transaction():  # a savepoint
            tx.execute("select 1 / 0")
    with psycopg.connect(url) as tx:
        assert tx.execute("select number from effect").fetchall() == [(3,)]


def test_a_connection_is_kept_where_no_timer_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler has committed: what comes after that must not fail its attempt."""

    def start(self: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", start)
    idle = IdleConnections(1)
    idle.put("session", lambda: None)
    assert idle.take() == "session"


def test_what_is_not_usable_is_not_kept(url: str, idle: IdleConnections) -> None:
    with connections.begin(url, idle) as tx:
        tx.close()
    with connections.begin(url, idle) as tx, tx.pipeline():
        pass
    assert len(idle) == 1
    session = idle.take()
    session.finish()
    idle.put(session, session.finish)
    with connections.begin(url, idle) as tx:
        assert tx.execute(PID).fetchone() is not None


async def test_a_reset_that_fails_is_not_ignored(url: str, idle: IdleConnections) -> None:
    with connections.begin(url, idle) as tx:
        pid = tx.execute(PID).fetchone()
    session = idle.take()
    while session.get_result() is not None:
        pass
    session.send_query(b"select 1 / 0")
    idle.put(session, session.finish)
    async with connections.begin_async(url, idle) as tx:
        assert await (await tx.execute(PID)).fetchone() != pid


def test_one_that_was_idle_for_long_is_closed(url: str) -> None:
    idle = IdleConnections(2, idle_s=0.05)
    with connections.begin(url, idle) as tx:
        tx.execute(PID)
    asyncio.run(until(lambda: not idle and not others(url)))
    # Another may be kept after that
    with connections.begin(url, idle) as tx:
        tx.execute(PID)
    idle.close()
    assert not others(url)


def test_a_forked_child_does_not_touch_those_of_its_parent(url: str, idle: IdleConnections) -> None:
    with connections.begin(url, idle) as tx:
        pid = tx.execute(PID).fetchone()
    child = os.fork()
    if child == 0:
        taken = idle.take()
        idle.close()
        os._exit(0 if taken is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    with connections.begin(url, idle) as tx:
        assert tx.execute(PID).fetchone() == pid
