"""What is particular to a driver: recognising it, autocommit, sessions, waiting, connecting."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)

import late
from late import outbox
from late.control import Control
from late.model.ids import shard_of
from late.model.lanes import place
from tests.integration import outbox_kit as kit
from tests.servers import drop_database, migrated_database, postgres_url

app = late.App("sqlite:///unused.db")


class Failed(Exception):
    pass


class Base(DeclarativeBase):
    pass


class Trip(Base):
    __tablename__ = "trip"
    id: Mapped[int] = mapped_column(primary_key=True)


@app.task
def greet(name: str) -> None: ...


alone = greet.options(autocommit=True)
"""Calls that may commit by themselves."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    made = migrated_database(admin)
    yield made
    drop_database(admin, made)


@pytest.fixture
def clean(postgres: str) -> str:
    with closing(kit.raw(postgres)) as connection:
        connection.execute("delete from late_task")
        connection.execute("delete from late_unique")
    return postgres


def sqlite_engine(url: str) -> Any:
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    return engine


def test_an_unknown_type_is_refused_by_naming_the_accepted_ones(late_db: str) -> None:
    engine = create_engine(late_db)
    for tx in (None, object(), "sqlite:///x.db", engine, sessionmaker(engine)):
        with pytest.raises(late.InvalidTask, match=r"AsyncSession.*sqlite3\.Connection"):
            greet.enqueue(tx, "Ada")  # type: ignore[call-overload]
    with pytest.raises(late.InvalidTask, match="a transaction is needed"):
        greet.enqueue(engine, "Ada")  # type: ignore[call-overload]
    connection = sqlite3.connect(":memory:")
    with closing(connection), pytest.raises(late.InvalidTask, match="pass its connection"):
        greet.enqueue(connection.cursor(), "Ada")  # type: ignore[call-overload]


def test_no_driver_is_imported_that_the_caller_has_not(late_db: str) -> None:
    code = f"""
import sqlite3, sys
import late
app = late.App({late_db!r})
@app.task
def greet(name: str) -> None: ...
with sqlite3.connect({kit.path(late_db).as_posix()!r}) as tx:
    greet.options(unique_key="k").enqueue(tx, "Ada")
print(sorted(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'sqlalchemy'" not in done.stdout
    assert "'psycopg'" not in done.stdout
    assert kit.count(late_db, "late_task") == 1


def test_sqlite_in_autocommit_mode_commits_one_task_by_itself(late_db: str) -> None:
    with closing(sqlite3.connect(kit.path(late_db), isolation_level=None)) as tx:
        with pytest.raises(late.InvalidTask, match="no transaction is open"):
            greet.enqueue(tx, "Ada")
        with pytest.raises(late.InvalidTask, match="no transaction is open"):
            app.enqueue_many(tx, [greet.call("Ada"), alone.call("Ada")])
        task_id = alone.enqueue(tx, "Ada")
        assert kit.rows(late_db) == [(task_id, "greet")]
        with pytest.raises(late.InvalidTask, match="needs a transaction"):
            greet.options(unique_key="k", autocommit=True).enqueue(tx, "Ada")
        tx.execute("begin")
        greet.enqueue(tx, "Ada")
        tx.execute("rollback")
        assert kit.count(late_db, "late_task") == 1
    assert kit.count(late_db, "late_unique") == 0


def own_greet() -> Any:
    """Of an app of its own: it learns of the lane."""

    def greet(name: str) -> None: ...

    return late.App("sqlite:///unused.db").task(greet)


@pytest.mark.parametrize("mode", ["", "DEFERRED", "IMMEDIATE"])
@pytest.mark.parametrize("unique_key", [None, "u"])
def test_sqlite_s_legacy_mode_sees_a_resize_of_the_last_moment(
    late_db: str, mode: Any, unique_key: str | None
) -> None:
    """It begins no transaction for a read, so that the lane may change behind it."""
    ordered = own_greet().options(ordering_key="k", unique_key=unique_key)
    with Control(late_db) as control, closing(sqlite3.connect(kit.path(late_db))) as tx:
        tx.isolation_level = mode
        control.lanes.resize("default", 5)
        resized: list[Any] = []

        def before(statement: str) -> None:
            if statement.startswith("BEGIN") and not resized:
                resized.append(statement)
                control.lanes.advance()
                resized.append(control.lanes.resize("default", 3))

        with closing(sqlite3.connect(kit.path(late_db))) as first:
            ordered.enqueue(first, "nobody")  # rolled back: its app knows the lane now
        tx.set_trace_callback(before)
        task_id = ordered.enqueue(tx, "Ada")
        tx.set_trace_callback(None)
        tx.commit()
        assert resized[1].version == 2
        assert control.tasks.show(task_id).options["layout"] == 2
        assert shard_of(task_id) == place("k", 0, 3)
    assert kit.count(late_db, "late_unique") == (unique_key is not None)


def test_sqlite_refuses_a_transaction_that_has_seen_the_lane_before_its_resize(
    late_db: str,
) -> None:
    with Control(late_db) as control, closing(sqlite3.connect(kit.path(late_db))) as tx:
        tx.isolation_level = None
        tx.execute("begin")
        tx.execute("select * from late_lane").fetchall()
        control.lanes.resize("default", 3)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            own_greet().options(ordering_key="k").enqueue(tx, "Ada")
    assert kit.count(late_db, "late_task") == 0


def test_psycopg_in_autocommit_mode(clean: str) -> None:
    with closing(psycopg.connect(clean, autocommit=True)) as tx:
        with pytest.raises(late.InvalidTask, match="no transaction is open"):
            greet.enqueue(tx, "Ada")
        task_id = alone.enqueue(tx, "Ada")
        assert kit.rows(clean) == [(task_id, "greet")]
        with pytest.raises(late.InvalidTask, match="needs a transaction"):
            greet.options(unique_key="k", autocommit=True).enqueue(tx, "Ada")
        with tx.transaction():
            greet.options(unique_key="k").enqueue(tx, "Ada")
    assert kit.count(clean, "late_task") == 2


@pytest.mark.parametrize("on", ["engine", "connection"])
def test_sqlalchemy_in_autocommit_mode(clean: str, on: str) -> None:
    options = {"isolation_level": "AUTOCOMMIT"}
    engine = create_engine(kit.sqlalchemy_url(clean), **(options if on == "engine" else {}))
    with engine.connect() as connection:
        tx = connection.execution_options(**options) if on == "connection" else connection
        with pytest.raises(late.InvalidTask, match="no transaction is open"):
            greet.enqueue(tx, "Ada")
        task_id = alone.enqueue(tx, "Ada")
        assert kit.rows(clean) == [(task_id, "greet")]
        with pytest.raises(late.InvalidTask, match="needs a transaction"):
            greet.options(unique_key="k", autocommit=True).enqueue(tx, "Ada")
    engine.dispose()


def test_many_tasks_are_one_statement(late_db: str, clean: str) -> None:
    calls = [greet.call(str(n)) for n in range(1000)]
    for url in (late_db, clean):
        engine = create_engine(kit.sqlalchemy_url(url))
        seen: list[str] = []
        event.listen(engine, "before_cursor_execute", lambda *a, seen=seen: seen.append(a[2]))
        with engine.begin() as tx:
            app.enqueue_many(tx, calls)
        assert len(seen) == 1
        assert kit.count(url, "late_task") == 1000
        engine.dispose()


def test_a_flush_before_or_after_makes_no_difference(late_db: str) -> None:
    engine = sqlite_engine(late_db)
    with Session(engine) as session, session.begin():
        greet.enqueue(session, "before")
        session.add(Trip(id=1))
        greet.enqueue(session, "between")
        session.flush()
        greet.enqueue(session, "after")
        with session.begin_nested() as nested:
            greet.enqueue(session, "nested")
            nested.rollback()
    assert kit.count(late_db, "late_task") == 3

    def fails() -> None:
        with Session(engine) as session, session.begin():
            session.add(Trip(id=2))
            greet.enqueue(session, "lost")
            raise Failed

    with pytest.raises(Failed):
        fails()
    assert kit.count(late_db, "late_task") == 3
    engine.dispose()


def test_subclasses_and_scoped_sessions(late_db: str) -> None:
    class OurSession(Session):
        pass

    engine = create_engine(late_db)
    scoped = scoped_session(sessionmaker(engine, class_=OurSession))
    greet.enqueue(scoped, "Ada")
    greet.enqueue(scoped(), "Ada")
    scoped.commit()
    scoped.remove()
    assert kit.count(late_db, "late_task") == 2
    engine.dispose()


async def test_async_scoped_sessions(late_db: str) -> None:
    engine = create_async_engine(late_db.replace("sqlite:", "sqlite+aiosqlite:"))
    make = async_sessionmaker(engine)
    scoped: async_scoped_session[AsyncSession] = async_scoped_session(make, asyncio.current_task)
    await greet.enqueue(scoped, "Ada")
    await scoped.commit()
    await scoped.remove()
    await engine.dispose()
    assert kit.count(late_db, "late_task") == 1


async def test_async_input_is_refused_before_anything_is_awaited(late_db: str) -> None:
    async with outbox.connect_async(late_db) as tx:
        with pytest.raises(late.InvalidPayload):
            greet.enqueue(tx, "NUL \0")


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_key_that_another_open_transaction_holds_is_waited_for(
    clean: str, ending: str
) -> None:
    once = greet.options(unique_key="k")
    first = await psycopg.AsyncConnection.connect(clean)
    second = await psycopg.AsyncConnection.connect(clean)
    try:
        first_id = await once.enqueue(first, "Ada")
        waiting = asyncio.ensure_future(once.enqueue(second, "Ada"))
        with closing(kit.raw(clean)) as look:
            sql = "select count(*) from pg_locks where not granted"
            # The server tells nobody that it waits: it has to be asked.
            while not look.execute(sql).fetchone()[0]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await (first.commit() if ending == "commit" else first.rollback())
        second_id = await waiting
        assert (second_id == first_id) == (ending == "commit")
        await second.commit()
    finally:
        await first.close()
        await second.close()
    assert kit.rows(clean) == [(second_id, "greet")]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("late_db" if request.param == "sqlite" else "clean"))


async def test_connect_commits_at_the_end_and_rolls_back_on_an_error(url: str) -> None:
    with outbox.connect(url) as tx:
        greet.enqueue(tx, "Ada")
        assert kit.count(url, "late_task") == 0
    async with outbox.connect_async(url) as tx:
        await greet.options(unique_key="k").enqueue(tx, "Ada")
        assert kit.count(url, "late_task") == 1

    def fails() -> None:
        with outbox.connect(url) as tx:
            greet.enqueue(tx, "lost")
            raise Failed

    async def fails_too() -> None:
        async with outbox.connect_async(url) as tx:
            await greet.enqueue(tx, "lost")
            raise Failed

    with pytest.raises(Failed):
        fails()
    with pytest.raises(Failed):
        await fails_too()
    assert kit.count(url, "late_task") == 2


async def test_connect_async_lets_the_loop_run_while_it_waits_for_the_lock(late_db: str) -> None:
    async def spin() -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    async def second() -> None:
        async with outbox.connect_async(late_db) as tx:
            await greet.enqueue(tx, "second")

    async with outbox.connect_async(late_db) as tx:
        waiting = asyncio.ensure_future(second())
        await spin()
        assert not waiting.done()
        await greet.enqueue(tx, "first")
    await waiting
    assert kit.count(late_db, "late_task") == 2


async def test_connect_cancelled_rolls_back(late_db: str) -> None:
    enqueued = asyncio.Event()

    async def work() -> None:
        async with outbox.connect_async(late_db) as tx:
            await greet.enqueue(tx, "lost")
            enqueued.set()
            await asyncio.Event().wait()

    working = asyncio.ensure_future(work())
    await enqueued.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    with outbox.connect(late_db) as tx:
        greet.enqueue(tx, "Ada")
    assert kit.count(late_db, "late_task") == 1


async def test_connect_names_what_is_wrong(tmp_path: Path) -> None:
    missing = f"sqlite:///{tmp_path}/missing.db"
    for wrong, error in (
        (missing, late.SchemaMismatch),
        ("sqlite://", late.ConfigError),
        ("mysql://root:secret@host/db", late.ConfigError),
    ):
        with pytest.raises(error) as caught, outbox.connect(wrong):
            pass
        assert "secret" not in str(caught.value)
        with pytest.raises(error):
            async with outbox.connect_async(wrong):
                pass
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize("kind", ["psycopg-pipeline", "psycopg-async-pipeline"])
async def test_a_pipeline_inserts_by_the_lane_as_it_is(clean: str, kind: str) -> None:
    lane = "update late_lane set version = {}"
    with closing(kit.raw(clean)) as connection:
        connection.execute(lane.format(1))
        try:
            async with kit.POSTGRES[kind](clean) as caller:
                by_version_0 = late.App(clean).task(greet.fn).options(ordering_key="k")
                ids = [await caller.wait(by_version_0.enqueue(caller.tx, "Ada")) for _ in range(2)]
                await caller.commit()
        finally:
            connection.execute(lane.format(0))
    assert kit.rows(clean) == [(task_id, "greet") for task_id in ids]


@pytest.mark.parametrize("kind", ["psycopg-pipeline", "psycopg-async-pipeline"])
async def test_a_pipeline_in_autocommit_mode(clean: str, kind: str) -> None:
    once = greet.options(unique_key="k", autocommit=True)
    async with kit.POSTGRES[kind](clean) as caller:
        await caller.wait(caller.tx.set_autocommit(True))
        await caller.execute("select 1")
        with pytest.raises(late.InvalidTask, match="needs a transaction"):
            await caller.wait(once.enqueue(caller.tx, "Ada"))
        assert kit.count(clean, "late_unique") == 0
        await caller.execute("begin")
        task_id = await caller.wait(once.enqueue(caller.tx, "Ada"))
        await caller.execute("commit")
    assert kit.rows(clean) == [(task_id, "greet")]


async def test_a_pool_of_asyncpg_is_refused_by_saying_how(clean: str) -> None:
    async with asyncpg.create_pool(clean, min_size=1, max_size=1) as pool:
        with pytest.raises(late.InvalidTask, match=r"async with pool\.acquire\(\) as tx"):
            greet.enqueue(pool, "Ada")


async def test_a_block_of_asyncpg_decides_about_its_tasks(clean: str) -> None:
    async with asyncpg.create_pool(clean, min_size=1, max_size=1) as pool, pool.acquire() as tx:
        with pytest.raises(late.InvalidTask, match="no transaction is open"):
            await greet.enqueue(tx, "Ada")
        async with tx.transaction():
            kept = await greet.enqueue(tx, "kept")
            inner = tx.transaction()
            await inner.start()
            await greet.enqueue(tx, "lost")
            await inner.rollback()
    assert kit.rows(clean) == [(kept, "greet")]


async def test_asyncpg_on_cockroachdb_is_refused() -> None:
    class Connection(asyncpg.Connection):
        def __init__(self) -> None:
            pass

        def __del__(self) -> None:
            pass

        def get_settings(self) -> Any:
            return SimpleNamespace(crdb_version="CockroachDB 24.1")

    with pytest.raises(late.InvalidTask, match="use psycopg"):
        await greet.enqueue(Connection(), "Ada")
