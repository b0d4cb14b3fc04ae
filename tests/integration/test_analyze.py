"""`late analyze` names two conflicting kinds of tasks with their row."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from google.cloud.spanner_v1 import param_types
from sqlalchemy import create_engine, text

import late
from late import events
from late.control import Control
from late.control.analyze import analyze, postgres, spanner
from late.handler.context import AsyncContext, Context
from late.model.task import Options
from late.observability import conflicts, logs
from late.outbox.connections import begin
from late.schema.engine import make_engine
from late.worker.watch.lock_waits import TELL_EVERY_S, LockWaits
from tests.integration import postgres_kit
from tests.integration import spanner_kit as kit
from tests.unit.cli_kit import Cli
from tests.unit.dispatcher_kit import Rig, attempt, rig, task

PATIENCE_S = 120.0
ADD = "update account set balance = balance + 1 where id = %s"
QUERY = "select current_query()"
ACCOUNT = "CREATE TABLE account (id INT64 NOT NULL, balance INT64) PRIMARY KEY (id)"


class Stage:
    """What the two handlers wait for: never for time."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.release = threading.Event()
        self.both = threading.Barrier(2)


stage = Stage()


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys, "")


@pytest.fixture(autouse=True)
def _stage() -> Iterator[None]:
    global stage
    stage = Stage()
    yield
    stage.release.set()
    stage.both.abort()


@contextmanager
def log_file(path: Path) -> Iterator[Path]:
    """The log that a worker with `--log-json` writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter())
    logger = logging.getLogger("late.worker")
    logger.addHandler(handler)
    before, logger.level = logger.level, logging.INFO
    stop = logs.log_events(events.default)
    try:
        yield path
    finally:
        stop()
        logger.level = before
        logger.removeHandler(handler)
        path.write_text(stream.getvalue())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# --- PostgreSQL ----------------------------------------------------------------------------------


@pytest.fixture
def url() -> Iterator[str]:
    with postgres_kit.database() as made:
        with psycopg.connect(made) as tx:
            tx.execute("create table account (id integer primary key, balance integer)")
            tx.execute("insert into account values (7, 0), (8, 0)")
        yield made


@task()
def pay(ctx: Context) -> None:
    with ctx.begin() as tx:
        tx.execute(ADD, (7,))
        stage.held.set()
        assert stage.release.wait(PATIENCE_S)


@task()
def refund(ctx: Context) -> None:
    assert stage.held.wait(PATIENCE_S)
    with ctx.begin() as tx:
        tx.execute(ADD, (7,))


@task()
def pay_both(ctx: Context) -> None:
    _both(ctx, 7, 8)


@task()
def refund_both(ctx: Context) -> None:
    _both(ctx, 8, 7)


def _both(ctx: Context, first: int, second: int) -> None:
    with ctx.begin() as tx:
        # Long enough to be seen, however busy the machine is.
        tx.execute("set local deadlock_timeout = '3s'")
        tx.execute(ADD, (first,))
        stage.both.wait(PATIENCE_S)
        tx.execute(ADD, (second,))


@asynccontextmanager
async def running(url: str, *tasks: Any) -> AsyncIterator[Rig]:
    async with rig(*tasks, concurrency=2, url=url) as it:
        it.dispatcher.submit([attempt(each.name) for each in tasks])
        yield it


async def test_a_wait_is_named_with_both_tasks_and_the_row(
    url: str, cli: Cli, tmp_path: Path
) -> None:
    before = tmp_path / "before.json"
    async with running(url, pay, refund) as it:
        engine = make_engine(url)
        await until(lambda: bool(postgres.look(engine, 0.0).waits))
        engine.dispose()
        seen = await asyncio.to_thread(
            cli.fine, "analyze", url, "--seconds", "0.3", "--json", "--save", str(before)
        )
        shown = (await asyncio.to_thread(cli.fine, "analyze", url, "--seconds", "0.1")).out
        stage.release.set()
        assert {o.kind for o in await it.ended(2)} == {"done"}
    [pair] = seen.json["pairs"]
    assert pair["tags"] == ["late-foreground:pay", "late-foreground:refund"]
    assert [place["place"] for place in pair["places"]] == ["account(id=7)"]
    assert pair["waited_s"].keys() == {"late-foreground:refund"}
    assert pair["lost_s"] > 0
    assert pair["count"] == 1
    assert any("update account" in each["statement"] for each in pair["statements"])
    assert any("call others" in each for each in pair["advice"])
    for word in ("late-foreground:pay", "late-foreground:refund", "account(id=7)"):
        assert word in shown

    # Nothing is in the way any more.
    after = cli.fine("analyze", url, "--seconds", "0.1", "--json", "--against", str(before)).json
    assert after["pairs"] == []
    [change] = after["changes"]
    assert change["before"] > 0
    assert change["after"] is None


async def test_a_worker_that_looks_at_the_locks_records_both_tasks_and_the_row(url: str) -> None:
    now, recorder, tag = 0.0, conflicts.Recorder(events.Emitter()), "late-foreground:refund"
    with Control(url) as control:
        waits = LockWaits(lambda: control, record=recorder.record, clock=lambda: now)

        async def seen() -> bool:
            nonlocal now
            now += TELL_EVERY_S
            await waits.look()
            return any(each.tag == tag for each in recorder.tally.told())

        async with running(url, pay, refund) as it:
            async with asyncio.timeout(PATIENCE_S):
                while not await seen():
                    pass
            stage.release.set()
            await it.ended(2)
        await waits.look()
    [told] = [each for each in recorder.tally.told() if each.tag == tag]  # others may wait, too
    assert told.kind == "waiting"
    assert (told.other, told.place) == ("late-foreground:pay", "account(id=7)")
    assert told.statement.endswith("update account set balance = balance + 1 where id = $1")
    assert told.lost_s > 0


async def test_a_deadlock_is_named_with_both_tasks(url: str, cli: Cli, tmp_path: Path) -> None:
    engine = make_engine(url)
    sampler = postgres.Sampler(lambda *at: f"{at[0]} ({at[1]},{at[2]})")
    with log_file(tmp_path / "worker.log") as log:
        async with running(url, pay_both, refund_both) as it:

            def both_seen() -> bool:
                found = postgres.look(engine, 0.0)
                sampler.tags.update(found.tags)
                return len(found.waits) == 2

            await until(both_seen)
            assert sorted(o.kind for o in await it.ended(2)) == ["done", "failed"]
    engine.dispose()
    with log.open() as lines:
        seen = analyze.Seen(tags=sampler.tags)
        [pair] = analyze.join(seen, [lines], []).pairs
    assert pair.tags == ("late-foreground:pay_both", "late-foreground:refund_both")
    assert pair.kinds == {"deadlock": 1}
    assert pair.places[0].place.startswith("account ctid (0,")
    assert pair.lost_s > 0
    assert "in one order" in pair.advice[0]
    # The log alone knows one of them.
    alone = cli.fine("analyze", "--seconds", "0", "--json", "--log", str(log)).json
    assert alone["pairs"][0]["tags"][0].startswith("late-foreground:")
    assert alone["pairs"][0]["tags"][1].startswith("process ")


@task()
def said(ctx: Context) -> None:
    with ctx.begin() as tx:
        queries.append(tx.execute(QUERY).fetchone()[0])
        queries.append(tx.cursor().execute(QUERY.encode()).fetchone()[0])
        queries.append(tx.execute(psycopg.sql.SQL(QUERY)).fetchone()[0])


@task()
async def said_async(ctx: AsyncContext) -> None:
    async with ctx.begin() as tx:
        for query in (QUERY, QUERY.encode(), psycopg.sql.SQL(QUERY)):
            cursor = await tx.execute(query)
            queries.extend(await cursor.fetchone())


queries: list[str] = []


@pytest.mark.parametrize("kind", [said, said_async])
@pytest.mark.parametrize("priority", [0, -1])
async def test_each_statement_of_a_handler_says_its_task_and_class(
    url: str, kind: Any, priority: int
) -> None:
    queries.clear()
    async with rig(kind, concurrency=1, url=url) as it:
        one = msgspec.structs.replace(attempt(kind.name), options=Options(priority=priority))
        [outcome] = await it.run(one)
        assert outcome.kind == "done", outcome.error
    role = "background" if priority < 0 else "foreground"
    assert queries == [f"/* tag=late-{role}:{kind.name} */ {QUERY}"] * 3


def test_a_service_tags_its_own_with_one_line(url: str) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    late.watch(engine, "shop")
    with engine.begin() as connection:
        assert connection.execute(text(QUERY)).scalar_one().startswith("/* tag=shop */ ")
        with late.tag("GET /orders"):
            assert connection.execute(text(QUERY)).scalar_one().startswith("/* tag=GET_/orders */")
        with late.tag("nightly", background=True):
            said = connection.execute(text(QUERY)).scalar_one()
            assert said.startswith("/* tag=late-background:nightly */")
    engine.dispose()
    with psycopg.connect(url) as tx:
        late.watch(tx, "script")
        [found] = tx.execute(QUERY).fetchone() or ("",)
        assert str(found).startswith("/* tag=script */ ")
    with begin(url) as tx, pytest.raises(late.ConfigError, match="SQLAlchemy engine"):
        late.watch(object())


def test_a_lock_time_out_of_a_service_is_recorded(url: str, tmp_path: Path) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    late.watch(engine, "shop")
    with log_file(tmp_path / "service.log") as log, psycopg.connect(url) as holder:
        holder.execute(ADD, (7,))
        with engine.connect() as connection:
            connection.execute(text("set local lock_timeout = '20ms'"))
            with pytest.raises(Exception, match="lock timeout"):
                connection.execute(text("update account set balance = 1 where id = 7"))
    engine.dispose()
    [line] = [json.loads(each) for each in log.read_text().splitlines() if "conflict" in each]
    assert (line["kind"], line["tag"]) == ("lock_timeout", "shop")
    assert "update account" in line["statement"]
    assert line["lost_s"] > 0


def test_a_busy_sqlite_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "service.db"
    path.touch()
    with (
        log_file(tmp_path / "worker.log") as log,
        begin(f"sqlite:///{path}"),
        pytest.raises(Exception, match="locked"),
        late.tag("job"),
        begin(f"sqlite:///{path}"),
    ):
        pass
    [line] = [json.loads(each) for each in log.read_text().splitlines() if "conflict" in each]
    assert (line["kind"], line["tag"], line["key"]) == ("busy", "job", "the file")


# --- Spanner's emulator --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    with kit.emulator() as made, kit.environment(made):
        yield made


@pytest.fixture
def on_spanner(host: str) -> str:
    made = kit.fresh(*kit.TABLES, ACCOUNT)
    with begin(made) as tx:
        tx.insert("account", ["id", "balance"], [(7, 0), (8, 0)])
    return made


def _add(tx: Any) -> None:
    statement = "update account set balance = balance + 1 where id = @id"
    tx.execute_update(statement, {"id": 7}, {"id": param_types.INT64})


@task()
def take(ctx: Context) -> None:
    with ctx.begin() as tx:
        _add(tx)
        stage.held.set()
        assert stage.release.wait(PATIENCE_S)


@task()
def give(ctx: Context) -> None:
    assert stage.held.wait(PATIENCE_S)
    try:
        with ctx.begin() as tx:
            tx.read("account", ["balance"], kit.spanner.KeySet(keys=[(7,)])).one()
    finally:
        stage.release.set()


async def test_an_abort_is_named_with_both_tasks_and_the_key(
    on_spanner: str, cli: Cli, tmp_path: Path
) -> None:
    with log_file(tmp_path / "worker.log") as log:
        async with running(on_spanner, take, give) as it:
            outcomes = {o.attempt.record.name: o for o in await it.ended(2)}
    # The emulator chooses by chance which of the two it aborts.
    [(lost, outcome)] = [(n, o) for n, o in outcomes.items() if o.kind == "failed"]
    assert "Aborted" in (outcome.error or "")
    engine = make_engine(on_spanner)
    assert spanner.look(engine) is None
    engine.dispose()
    found = cli.fine("analyze", on_spanner, "--json", "--log", str(log)).json
    assert found["notes"] == [spanner.MISSING]
    [pair] = found["pairs"]
    assert pair["tags"] == ["late-foreground:give", "late-foreground:take"]
    assert pair["kinds"] == {"aborted": 1}
    assert [place["place"] for place in pair["places"]] == ["account(7)"]
    assert pair["waited_s"].keys() == {f"late-foreground:{lost}"}
    assert pair["lost_s"] > 0
