"""Transactions that were begun before a resize, where several write at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, event

import late
from late.command import CLOSED
from late.config import WorkerConfig
from late.control import Control
from late.control.resizing import keep
from late.lanes import place
from late.outbox import connect
from late.worker import Worker
from tests.servers import drop_database, migrated_database, postgres_url

KEY = next(f"k{n}" for n in range(99) if place(f"k{n}", 0, 8) != place(f"k{n}", 0, 3))


@pytest.fixture
def url() -> Iterator[str]:
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    made = migrated_database(admin)
    yield made
    drop_database(admin, made)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30.0):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 (it is in a database)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
async def test_what_began_before_runs_first(url: str, isolation: str) -> None:
    app, ran = late.App(url), []

    @app.task
    def note(n: int) -> None:
        ran.append(n)

    worker = Worker(app, settings=WorkerConfig(poll_max_s=0.05, grace_s=5.0))
    worker.steering._every_s = 0.2
    await worker.start()
    try:
        with psycopg.connect(url.replace("+psycopg", "")) as old, Control(url) as control:
            # Its snapshot, or its statement, sees the lane as it was; its xid comes later.
            old.execute(f"set transaction isolation level {isolation}")
            old.execute("select shards from late_lane")
            if isolation == "read committed":
                enqueue(old)
            control.resize("default", 3)
            if isolation == "repeatable read":
                enqueue(old)
            with connect(url) as tx:
                note.options(ordering_key=KEY).enqueue(tx, 2)
                note.enqueue(tx, 0)
            await until(lambda: ran == [0])
            await until(lambda: control.lanes()[0].draining[0].transactions == 1)
            assert ran == [0], "a task of the new width ran before the old one was committed"
            old.commit()
            await until(lambda: len(ran) == 3)
            await until(lambda: not control.layout().extents)
    finally:
        await worker.stop()
    assert ran == [0, 1, 2]


def enqueue(old: psycopg.Connection[Any]) -> None:
    old.execute("select late_enqueue('note', '{\"n\": 1}', ordering_key => %s)", (KEY,))


def test_what_writes_at_the_last_moment_stands_before_the_closing(url: str) -> None:
    plain = url.replace("+psycopg", "")
    with Control(url) as control, psycopg.connect(plain) as old, psycopg.connect(plain) as look:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select shards from late_lane")
        control.resize("default", 3)
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        keep(engine)

        def before(_: Any, __: Any, statement: str, *___: Any) -> None:
            if "pg_locks" in statement and not old.closed:
                enqueue(old)
                old.commit()
                old.close()

        event.listen(engine, "before_cursor_execute", before)
        keep(engine)
        engine.dispose()
        names = look.execute("select name from late_task order by xid, shard_id").fetchall()
    assert old.closed
    assert [name for (name,) in names] == ["note"] + [CLOSED] * 8


def test_the_function_places_by_the_lane_as_it_is(url: str) -> None:
    with Control(url) as control, psycopg.connect(url.replace("+psycopg", "")) as sql:
        control.resize("default", 3)
        enqueue(sql)
        row = sql.execute("select shard_id, options::jsonb from late_task").fetchone()
        assert row == (place(KEY, 0, 3), {"ordering_key": KEY, "layout": 1})
        sql.execute("select late_enqueue('note', '{}')")
        [plain] = sql.execute(
            "select options from late_task where name = 'note' and options is null"
        )
        assert plain == (None,)
