"""Transactions that were begun before a resize, where several write at the same time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, event, text

import late
from late.config import WorkerConfig
from late.control import Control
from late.control.lanes import open_transactions as transactions
from late.control.lanes.resize import advance
from late.model.lanes import place
from late.outbox import connect
from late.payload.command import CLOSED
from late.worker.worker import Worker
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
    async with asyncio.timeout(120):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 (it is in a database)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("isolation", "writes"),
    [("read committed", "first"), ("repeatable read", "next"), ("serializable", "last")],
)
async def test_what_began_before_runs_first(url: str, isolation: str, writes: str) -> None:
    """Also where it writes last: a snapshot from before the resize counts as before it."""
    app, ran = late.App(url), []

    @app.task
    def note(n: int) -> None:
        ran.append(n)

    worker = Worker(app, settings=WorkerConfig(poll_max_s=0.05, grace_s=5.0))
    worker.settings_sync._every_s = 0.2
    await worker.start()
    try:
        with psycopg.connect(url.replace("+psycopg", "")) as old, Control(url) as control:
            # Its snapshot, or its statement, sees the lane as it was; its xid comes later.
            old.execute(f"set transaction isolation level {isolation}")
            old.execute("select shards from late_lane")
            if writes == "first":
                enqueue(old)
            control.lanes.resize("default", 3)
            if writes == "next":
                enqueue(old)
            with connect(url) as tx:
                note.options(ordering_key=KEY).enqueue(tx, 2)
                note.enqueue(tx, 0)
            if writes == "last":
                enqueue(old)
            await until(lambda: ran == [0])
            await until(lambda: control.lanes.all()[0].draining[0].transactions == 1)
            assert ran == [0], "a task of the new width ran before the old one was committed"
            old.commit()
            await until(lambda: len(ran) == 3)
            await until(lambda: not control.lanes.layout().extents)
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
        control.lanes.resize("default", 3)
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        advance(engine)

        def before(_: Any, __: Any, statement: str, *___: Any) -> None:
            if "pg_locks" in statement and not old.closed:
                enqueue(old)
                old.commit()
                old.close()

        event.listen(engine, "before_cursor_execute", before)
        advance(engine)
        engine.dispose()
        names = look.execute("select name from late_task order by xid, shard_id").fetchall()
    assert old.closed
    assert [name for (name,) in names] == ["note"] + [CLOSED] * 8


def test_what_is_prepared_is_waited_for_and_no_other(url: str) -> None:
    """Given a transaction that is prepared after the resize, and others so that there is never a
    moment without any."""
    plain = url.replace("+psycopg", "")
    with Control(url) as control, psycopg.connect(plain, autocommit=True) as sql:
        sql.execute("begin")
        enqueue(sql)
        control.lanes.resize("default", 3)
        control.lanes.advance()
        sql.execute("prepare transaction 'old'")
        prepare(sql, "beside")
        control.lanes.advance()
        control.lanes.advance()
        assert control.lanes.all()[0].draining[0].transactions == 2
        prepare(sql, "later")
        sql.execute("rollback prepared 'beside'")
        control.lanes.advance()
        assert not control.lanes.layout().extents[0].closings
        sql.execute("commit prepared 'old'")
        control.lanes.advance()
        control.lanes.advance()
        assert control.lanes.layout().extents[0].closings, "it waits for one that began afterwards"
        sql.execute("rollback prepared 'later'")
        names = sql.execute("select name from late_task order by xid, shard_id").fetchall()
    assert [name for (name,) in names] == ["note"] + [CLOSED] * 8


def prepare(sql: psycopg.Connection[Any], name: str) -> None:
    sql.execute("begin")
    sql.execute("select pg_current_xact_id()")
    sql.execute(f"prepare transaction '{name}'")  # type: ignore[arg-type]


def test_who_may_not_read_statistics_waits_for_users_and_not_for_autovacuum(url: str) -> None:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with psycopg.connect(url.replace("+psycopg", "")) as old, engine.connect() as look:
        old.execute("select 1")
        pid = old.info.backend_pid
        role = f"stranger_{pid}"  # never committed
        look.execute(text(f"create role {role}"))
        look.execute(text(f"set role {role}"))
        seen = "select usesysid is null, backend_type from pg_stat_activity where pid = :pid"
        assert look.execute(text(seen), {"pid": pid}).one() == (False, None)
        assert json.loads(transactions.waits(look, None) or "") != []
        # As such a role sees autovacuum: a table of one's own goes before the view.
        view = "create temp table pg_stat_activity as select * from pg_catalog.pg_stat_activity"
        look.execute(text(view))
        look.execute(text("update pg_stat_activity set usesysid = null where pid = :pid"),
                     {"pid": pid})  # fmt: skip
        assert json.loads(transactions.waits(look, None) or "") == []
    engine.dispose()


def test_the_function_places_by_the_lane_as_it_is(url: str) -> None:
    with Control(url) as control, psycopg.connect(url.replace("+psycopg", "")) as sql:
        control.lanes.resize("default", 3)
        enqueue(sql)
        row = sql.execute("select shard_id, options::jsonb from late_task").fetchone()
        assert row is not None
        assert row[1].pop("committed_below") > 0
        assert row == (place(KEY, 0, 3), {"ordering_key": KEY, "layout": 1})
        sql.execute("select late_enqueue('note', '{}')")
        [plain] = sql.execute(
            "select options from late_task where name = 'note' and options is null"
        )
        assert plain == (None,)
