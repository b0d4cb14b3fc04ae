"""The ends of Spanner's transactions: none takes a task afterwards, an abort before the block costs
no attempt, and a test can read tasks after the commit alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core.exceptions import Aborted

import late
from late.errors import InvalidTask
from late.outbox.adapters import spanner_session
from late.outbox.connections import begin, begin_async
from late.schema.engine import make_engine, reading
from late.schema.migrate import version_of
from late.schema.spanner import deadlines
from late.schema.version import SCHEMA_VERSION
from late.store.spanner.client import close_database, open_database
from late.testing import assert_enqueued
from late.testing.servers.spanner import create_database
from tests.integration import spanner_kit as kit

app = late.App("sqlite:///unused.db", shards=4)


@app.task
def greet(name: str, times: int = 1) -> None: ...


class Rollback(Exception):
    """The caller changes its mind."""


@pytest.fixture(scope="module")
def emulator() -> Iterator[None]:
    with kit.emulator() as host, kit.environment(host):
        yield


@pytest.fixture
def url(emulator: None) -> str:
    return kit.fresh(*kit.TABLES, kit.TRIP)


@pytest.fixture
def database(url: str) -> Iterator[Any]:
    made = open_database(url, priority="foreground")
    yield made
    close_database(made)


def trip(tx: Any, number: int = 1) -> None:
    tx.insert("trip", ["id"], [(number,)])


def test_a_transaction_that_has_ended_takes_no_task(database: Any) -> None:
    """The client would keep the row, and send it never."""
    kept: list[Any] = []

    def works(tx: Any) -> None:
        trip(tx)
        kept.append(tx)

    database.run_in_transaction(works)
    with pytest.raises(InvalidTask, match="was committed before"):
        greet.enqueue(kept[0], "Ada")

    def changes_its_mind(tx: Any) -> None:
        list(tx.execute_sql("select 1"))
        kept.append(tx)
        raise Rollback

    with pytest.raises(Rollback):
        database.run_in_transaction(changes_its_mind)
    with pytest.raises(InvalidTask, match="was rolled back before"):
        greet.enqueue(kept[1], "Ada")
    assert kit.rows(database, "late_task", "name") == []


@pytest.mark.parametrize("aborts", [2, 99])
def test_an_abort_before_the_block_runs_no_block_and_is_tried_again(
    url: str, database: Any, monkeypatch: pytest.MonkeyPatch, aborts: int
) -> None:
    """So a claim that others are in the way of costs its task no attempt."""
    monkeypatch.setattr(spanner_session, "PAUSES_S", (0.001,) * 5)
    tries: list[Any] = []
    blocks: list[Any] = []

    def first(tx: Any) -> None:
        list(tx.execute_sql("select 1"))
        tries.append(tx)
        if len(tries) <= aborts:
            raise Aborted("others hold its locks")

    async def first_async(tx: Any) -> None:
        await tx.execute_sql("select 1")
        first(tx.raw)

    def sync() -> None:
        with begin(url, first=first) as tx:
            blocks.append(tx)
            trip(tx, len(blocks))

    async def coroutine() -> None:
        async with begin_async(url, first=first_async) as tx:
            blocks.append(tx)
            trip(tx.raw, len(blocks))

    for run in (sync, lambda: asyncio.run(coroutine())):
        tries.clear()
        if aborts > 5:
            with pytest.raises(Aborted):
                run()
            assert len(tries) == 6
        else:
            run()
            assert len(tries) == aborts + 1
        assert all(tx.rolled_back for tx in tries[:aborts])
    assert len(kit.rows(database, "trip", "id")) == len(blocks) == (0 if aborts > 5 else 2)


def test_the_tasks_of_a_test_are_asserted_by_url(database: Any, url: str) -> None:
    run = database.run_in_transaction
    assert_enqueued(url, greet, count=0)
    run(lambda tx: greet.options(headers={"a": "b"}).enqueue(tx, "Ada", times=3))
    (found,) = assert_enqueued(url, greet, args={"name": "Ada", "times": 3})
    assert found.headers == {"a": "b"}
    with pytest.raises(AssertionError, match="Ada"):
        assert_enqueued(url, greet, args={"name": "Bob"})
    with pytest.raises(InvalidTask, match="give the app's URL"):
        run(lambda tx: assert_enqueued(tx, greet))


def test_a_kept_connection_has_its_own_time(emulator: None) -> None:
    """As a thread does that begins with the context of a caller whose time is over."""
    engine = make_engine(create_database(migrated=True))
    for _ in range(2):  # The second one finds a connection.
        deadlines.start(0.0)
        with reading(engine) as connection:
            assert version_of(connection) == SCHEMA_VERSION
    engine.dispose()
