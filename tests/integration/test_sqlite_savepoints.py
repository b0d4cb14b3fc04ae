"""Enqueues in savepoints of SQLAlchemy on SQLite: refused where a rollback would not reach them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import late
from late.errors import InvalidTask
from late.outbox.adapters import sqlalchemy_savepoints
from tests.support import sqlite

WRITE = text("create table if not exists o (x int)")


class Undo(Exception):
    pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    sqlite.database(tmp_path / "x.db")
    return tmp_path / "x.db"


@pytest.fixture
def enqueue(path: Path) -> Callable[[Any], Any]:
    app = late.App(f"sqlite:///{path}")

    @app.task
    def job(n: int) -> None: ...

    return lambda tx: job.enqueue(tx, 1)


@pytest.fixture
def engine(path: Path) -> Engine:
    return create_engine(f"sqlite:///{path}")


def waiting(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute("select count(*) from late_task").fetchone()[0])


@pytest.mark.parametrize("read_first", [False, True])
def test_a_savepoint_that_comes_first_is_refused(
    path: Path, engine: Engine, enqueue: Callable[[Any], Any], read_first: bool
) -> None:
    with Session(engine) as session, session.begin():
        if read_first:
            session.execute(text("select 1"))
        with (
            pytest.raises(InvalidTask, match="before any write of its transaction"),
            session.begin_nested(),
        ):
            enqueue(session)
    assert waiting(path) == 0


def test_a_rollback_takes_back_what_is_accepted(
    path: Path, engine: Engine, enqueue: Callable[[Any], Any]
) -> None:
    with suppress(Undo), Session(engine) as session, session.begin():
        session.execute(WRITE)
        session.execute(text("insert into o values (1)"))
        with session.begin_nested(), session.begin_nested():
            enqueue(session)
        raise Undo
    assert waiting(path) == 0
    # The same connection, and a savepoint that has ended: what comes behind is in a transaction.
    with engine.begin() as connection:
        with connection.begin_nested():
            connection.execute(text("select 1"))
        enqueue(connection)
    assert waiting(path) == 1
    with engine.begin() as connection:
        connection.execute(text("insert into o values (1)"))
        with connection.begin_nested():
            enqueue(connection)
    assert waiting(path) == 2


def test_sqlalchemys_recipe_makes_it_part_of_the_transaction(
    path: Path, engine: Engine, enqueue: Callable[[Any], Any]
) -> None:
    event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("begin immediate"))
    with suppress(Undo), Session(engine) as session, session.begin():
        with session.begin_nested():
            enqueue(session)
        raise Undo
    assert waiting(path) == 0
    with Session(engine) as session, session.begin(), session.begin_nested():
        enqueue(session)
    assert waiting(path) == 1


async def test_async_sessions_are_looked_at_too(path: Path, enqueue: Callable[[Any], Any]) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with AsyncSession(engine) as session, session.begin():
        with pytest.raises(InvalidTask, match="before any write"):
            async with session.begin_nested():
                await enqueue(session)
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(WRITE)
        await session.execute(text("insert into o values (1)"))
        async with session.begin_nested():
            await enqueue(session)
    await engine.dispose()
    assert waiting(path) == 1


def test_a_savepoint_that_nobody_has_seen_is_refused(
    path: Path, engine: Engine, enqueue: Callable[[Any], Any]
) -> None:
    """As one that began before the first app was made."""
    event.remove(Engine, "savepoint", sqlalchemy_savepoints._begins)
    try:
        with (
            engine.begin() as connection,
            pytest.raises(InvalidTask, match="before any write"),
            connection.begin_nested(),
        ):
            enqueue(connection)
    finally:
        sqlalchemy_savepoints.watch()
    assert event.contains(Engine, "savepoint", sqlalchemy_savepoints._begins)
