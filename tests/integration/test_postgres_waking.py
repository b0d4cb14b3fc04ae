"""A worker that sleeps is told of commits by the database, and only while it has asked for that."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import late
from late.config import WorkerConfig
from late.control import Control
from late.outbox import connect
from late.schema import migrate
from late.schema.notices import TELL_FLEET
from late.store.postgres import wake_ups
from late.store.postgres.wake_ups import PostgresWakeUps
from late.worker.worker import Worker
from tests import servers
from tests.integration.waking_kit import (
    INSERT,
    database,
    listening,
    nothing_heard,
    producer,
    until,
)


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


async def test_commits_are_told_of_from_the_announcement_until_it_is_taken_back(url: str) -> None:
    made = PostgresWakeUps(url, prepared=True)
    async with listening(made) as heard, asyncio.timeout(120):
        with closing(producer(url)) as service:
            service.execute(INSERT)
            assert await nothing_heard(heard, made)
            assert await made.announce(), "nobody had asked before"
            assert not await made.announce()
            service.execute(INSERT)
            await heard.get()
            service.execute("select late_enqueue('note')")
            await heard.get()
            with service.transaction(force_rollback=True):
                service.execute(INSERT)
            assert await nothing_heard(heard, made)
            await made.withdraw()
            service.execute(INSERT)
            assert await nothing_heard(heard, made)


async def test_a_schema_of_the_service_may_come_first_in_the_search_path(url: str) -> None:
    with closing(producer(url)) as service:
        service.execute("create schema shop")
    options = "options=-csearch_path%3Dshop,public"
    made = PostgresWakeUps(f"{url}{'&' if '?' in url else '?'}{options}", prepared=True)
    lapsed, changed = asyncio.Event(), asyncio.Event()
    async with listening(made, lapsed.set, changed.set) as heard, asyncio.timeout(120):
        await made.announce()
        with closing(producer(url)) as service:
            service.execute(INSERT)
            await heard.get()
            service.execute(f"select {TELL_FLEET}")
            await changed.wait()
        await made._call(wake_ups.WITHDRAW)
        await lapsed.wait()


async def test_who_takes_it_back_tells_the_others(url: str) -> None:
    one, two = PostgresWakeUps(url, prepared=True), PostgresWakeUps(url, prepared=True)
    lapsed = asyncio.Event()
    async with listening(one), listening(two, lapsed.set) as heard, asyncio.timeout(120):
        assert await two.announce()
        with closing(producer(url)) as service:
            service.execute("select pg_notify('late_wake', 'another withdrawn')")
        assert await nothing_heard(heard, two)
        assert not lapsed.is_set(), "that is of another schema"
        await one.withdraw()
        await lapsed.wait()
        assert heard.empty(), "and nobody has committed anything"
        assert await two.announce()


async def test_who_goes_takes_its_own_announcement_back_and_leaves_that_of_others(url: str) -> None:
    one, two = PostgresWakeUps(url, prepared=True), PostgresWakeUps(url, prepared=True)
    async with asyncio.timeout(120):
        async with listening(one):
            async with listening(two):
                await two.announce()
                await two.withdraw()
                assert await one.announce()
            assert not await one.announce(), "it stands, for the other one asks for nothing"
        async with listening(two):
            assert await two.announce(), "nobody asks any more"


async def test_the_announcement_of_a_dead_worker_ends_by_itself(url: str) -> None:
    made = PostgresWakeUps(url, prepared=True)
    async with listening(made) as heard, asyncio.timeout(120):
        assert await made.announce()
        with closing(producer(url)) as service:
            ended = "select last_value < extract(epoch from clock_timestamp()) from late_waiting"
            await until(lambda: service.execute(ended).fetchall()[0][0])
            service.execute(INSERT)
            assert await nothing_heard(heard, made)
        assert await made.announce(), "it had ended, so there is one more look"


async def test_an_announcement_costs_no_transaction_id(url: str) -> None:
    made = PostgresWakeUps(url, prepared=True)
    async with listening(made):
        with closing(producer(url)) as service:
            if service.info.server_version < 150_000:
                pytest.skip("an unlogged sequence needs PostgreSQL 15")
            next_xid = "select pg_snapshot_xmax(pg_current_snapshot())::text"
            before = service.execute(next_xid).fetchall()
            assert await made.announce()
            assert service.execute(next_xid).fetchall() == before


async def test_a_transaction_can_be_prepared_where_nobody_may_announce(url: str) -> None:
    made = PostgresWakeUps(url)
    async with listening(made):
        with closing(producer(url)) as service:
            (allowed,) = service.execute("show max_prepared_transactions").fetchall()[0]
            if allowed == "0":
                pytest.skip("max_prepared_transactions is 0")
            assert "max_prepared_transactions" in made.unable
            assert not made.ready
            await made.announce()
            two_phase(service, "")


async def test_one_that_says_so_is_prepared_beside_a_sleeper(url: str) -> None:
    made = PostgresWakeUps(url, prepared=True)
    async with listening(made) as heard:
        assert await made.announce()
        with closing(producer(url)) as service:
            (allowed,) = service.execute("show max_prepared_transactions").fetchall()[0]
            if allowed == "0":
                pytest.skip("max_prepared_transactions is 0")
            two_phase(service, "set local late.wake = off")
            assert await nothing_heard(heard, made)


def two_phase(service: psycopg.Connection[Any], first: str) -> None:
    name = f"late-{secrets.token_hex(4)}"
    service.execute("begin")
    if first:
        service.execute(first)
    service.execute(INSERT)
    service.execute(f"prepare transaction '{name}'")
    service.execute(f"commit prepared '{name}'")


async def test_a_broken_connection_is_made_anew(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, again, opened = PostgresWakeUps(url, prepared=True), asyncio.Event(), wake_ups.connect

    async def later(conninfo: str) -> Any:
        await again.wait()
        return await opened(conninfo)

    async with listening(made) as heard, asyncio.timeout(120):
        rows = await made._call("select pg_backend_pid()")
        monkeypatch.setattr(wake_ups, "connect", later)  # It may be back within a millisecond.
        with closing(producer(url)) as service:
            service.execute("select pg_terminate_backend(%s)", rows[0])
            await until(lambda: not made.ready)
            assert not await made.announce(), "no error either"
            again.set()
            await until(lambda: made.ready)
            await made.announce()
            service.execute(INSERT)
            await heard.get()


async def test_a_schema_without_the_sequence_is_polled(url: str) -> None:
    with closing(producer(url)) as service:
        migrate.downgrade(url, "0011")
        made = PostgresWakeUps(url, prepared=True)
        async with listening(made):
            assert "late_waiting" in made.unable
        service.execute(INSERT)


async def test_a_worker_that_never_polls_runs_what_it_is_told_of(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = late.App(url, shards=2)
    ran: asyncio.Queue[int] = asyncio.Queue()

    @app.task
    async def note(number: int) -> None:
        await ran.put(number)

    worker = Worker(app, settings=WorkerConfig(waking="on", grace_s=5.0))
    await worker.start()
    try:
        async with asyncio.timeout(120):
            await until(lambda: worker.tailer._announcement.stands)
            monkeypatch.setattr(
                "late.tailer.announcement.Announcement.look_after_s", lambda *_: 3_600.0
            )
            monkeypatch.setattr("late.notify.notifier._here", set())  # a hint of this process
            for number in range(3):
                # The announcement is renewed by looks, of which there are none.
                await worker.tailer._wake_ups.announce()  # type: ignore[union-attr]
                with connect(url) as tx:
                    note.enqueue(tx, number)
                assert await ran.get() == number
    finally:
        await worker.stop()


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PgBouncer in transaction mode: LISTEN succeeds, and goes with its session."""

    async def pooled(conninfo: dict[str, object]) -> Any:
        connection = await connect_direct(conninfo)
        execute = connection.execute

        async def run(statement: Any, *more: Any) -> Any:
            cursor = await execute(statement, *more)
            await execute("unlisten *")
            return cursor

        connection.execute = run  # type: ignore[method-assign, assignment]
        return connection

    connect_direct = wake_ups.connect
    monkeypatch.setattr(wake_ups, "connect", pooled)
    monkeypatch.setattr(wake_ups, "TEST_S", 0.2)


@pytest.mark.usefixtures("forgetful")
async def test_a_pooler_that_forgets_the_listener_is_found_out(url: str) -> None:
    made = PostgresWakeUps(url, prepared=True)
    async with listening(made):
        assert "LATE_LISTEN_URL" in made.unable
        assert not await made.announce()
        with closing(producer(url)) as service:
            assert service.execute("select last_value from late_waiting").fetchall() == [(1,)]


@pytest.mark.usefixtures("forgetful")
async def test_the_doctor_names_a_worker_that_cannot_listen(url: str) -> None:
    def said() -> str:
        with Control(url) as control:
            return next(each.detail for each in control.doctor() if each.name == "wake-ups")

    worker = Worker(late.App(url), settings=WorkerConfig(waking="on"))
    await worker.start()
    try:
        async with asyncio.timeout(60):
            while "1 live workers are not told" not in (told := await asyncio.to_thread(said)):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert worker.address in told
        assert "LATE_LISTEN_URL" in told
    finally:
        await worker.stop()
    assert "are not told" not in said()


def test_a_plain_server_allows_it() -> None:
    """As PostgreSQL is installed: nothing has to be set."""
    with servers.own_server({"fsync": "off", "max_prepared_transactions": "0"}) as server:
        migrate.upgrade(server.url)

        async def told() -> None:
            made = PostgresWakeUps(server.url)
            async with listening(made) as heard, asyncio.timeout(120):
                assert await made.announce()
                with closing(producer(server.url)) as service:
                    service.execute(INSERT)
                await heard.get()

        asyncio.run(told())


def test_the_bounds_fit() -> None:
    from late.tailer import announcement

    assert announcement.RENEW_S + announcement.LOOK_MAX_S < wake_ups.ANNOUNCED_S - 1
