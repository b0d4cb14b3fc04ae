"""The connections that a worker keeps for its handlers' transactions, on SQLite."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from late.handler.context import AsyncContext, Context
from late.outbox import connections
from late.outbox.idle_connections import IdleConnections
from late.schema import migrate
from tests.unit.dispatcher_kit import Task, attempt, rig, task

seen: set[int] = set()


def make(path: Path) -> str:
    url = f"sqlite:///{path}"
    migrate.upgrade(url)
    with connections.connect(url) as tx:
        tx.execute("create table effect (number integer)")
    return url


@pytest.fixture
def url(tmp_path: Path) -> str:
    seen.clear()
    return make(tmp_path / "late.db")


@pytest.fixture
def idle() -> Iterator[IdleConnections]:
    made = IdleConnections(2)
    yield made
    made.close()


def open_files(url: str) -> int:
    """The number of times that this process has the database open."""
    path = os.path.realpath(url.removeprefix("sqlite:///"))
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.realpath(link) == path for link in links)


def numbers(url: str) -> list[int]:
    with connections.connect(url) as tx:
        return [n for (n,) in tx.execute("select number from effect order by number")]


@task()
def charge(ctx: Context, n: int) -> None:
    with ctx.once() as tx:
        tx.execute("insert into effect values (?)", (n,))
        seen.add(id(tx))


@task()
async def charge_async(ctx: AsyncContext, n: int) -> None:
    async with ctx.once() as tx:
        await tx.execute("insert into effect values (?)", (n,))
        seen.add(id(tx.raw))


@pytest.mark.parametrize("kind", [charge, charge_async])
async def test_many_tasks_use_few_connections(url: str, kind: Task) -> None:
    async with rig(kind, concurrency=2, url=url) as it:
        outcomes = await it.run(*(attempt(kind.name, n=n) for n in range(40)))
        assert {outcome.kind for outcome in outcomes} == {"done"}, outcomes[0].error
        assert len(seen) <= 2
        assert open_files(url) == len(seen)
    # Stopping has closed them
    assert open_files(url) == 0
    assert numbers(url) == list(range(40))


def fail(tx: Any) -> None:
    tx.execute("insert into effect values (1)")
    tx.row_factory, tx.text_factory = sqlite3.Row, bytes
    raise KeyError


def test_after_a_failure_the_same_connection_is_clean(url: str, idle: IdleConnections) -> None:
    with pytest.raises(KeyError), connections.begin(url, idle) as first:
        fail(first)
    with connections.begin(url, idle) as tx:
        assert tx is first
        assert tx.execute("select 'a', count(*) from effect").fetchone() == ("a", 0)
    # What was sent in the failed block holds no lock
    with connections.connect(url) as tx:
        tx.execute("insert into effect values (2)")
    assert numbers(url) == [2]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tx: tx.execute("pragma foreign_keys = on"),
        lambda tx: tx.execute("create temporary table mine (id integer)"),
        lambda tx: tx.execute("create temporary view mine as select 1"),
        lambda tx: tx.create_function("mine", 0, lambda: 1),
        lambda tx: tx.set_trace_callback(print),
        lambda tx: tx.close(),
    ],
)
def test_a_changed_connection_is_not_kept(
    url: str, idle: IdleConnections, spoil: Callable[[Any], object]
) -> None:
    try:
        with connections.begin(url, idle) as first:
            spoil(first)
    except sqlite3.ProgrammingError:
        pass  # The handler has closed it.
    assert len(idle) == 0
    assert open_files(url) == 0


def test_an_attached_file_is_not_kept(url: str, idle: IdleConnections, tmp_path: Path) -> None:
    with connections.begin(url, idle) as tx:
        tx.commit()
        tx.execute("attach database ? as other", (str(tmp_path / "other.db"),))
    assert len(idle) == 0


def test_after_its_block_a_connection_is_closed_to_the_handler(
    url: str, idle: IdleConnections
) -> None:
    with connections.begin(url, idle) as tx:
        tx.execute("insert into effect values (1)")
    assert len(idle) == 1
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        tx.execute("insert into effect values (2)")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        tx.cursor()
    assert numbers(url) == [1]


def test_a_file_in_place_of_another_is_opened(
    url: str, idle: IdleConnections, tmp_path: Path
) -> None:
    with connections.begin(url, idle) as first:
        first.execute("insert into effect values (1)")
    other = make(tmp_path / "other.db")
    for end in ("-wal", "-shm"):
        (tmp_path / f"late.db{end}").unlink(missing_ok=True)
    os.replace(other.removeprefix("sqlite:///"), url.removeprefix("sqlite:///"))
    with connections.begin(url, idle) as tx:
        assert tx is not first
        tx.execute("insert into effect values (2)")
    assert numbers(url) == [2]
