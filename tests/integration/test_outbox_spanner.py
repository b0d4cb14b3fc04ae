"""A task lives and dies with the caller's transaction on Spanner, and outlives its replays."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.api_core.exceptions import Aborted, InvalidArgument, NotFound, ServiceUnavailable
from google.cloud.spanner_v1 import AsyncClient
from google.cloud.spanner_v1.transaction import Transaction
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.orm import Session

import late
from late import events, outbox
from late.errors import BatchTooLarge, ConfigError, InvalidTask, KeyConflict, SchemaMismatch
from late.outbox.adapters import spanner as outbox_spanner
from late.outbox.adapters import spanner_session
from late.store.spanner.client import close_database, open_database, place_of
from tests.integration import spanner_kit as kit

# What sqlalchemy-spanner uses of SQLAlchemy and of its own driver is deprecated there.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

app = late.App("sqlite:///unused.db", shards=4)


@app.task
def greet(name: str, times: int = 1) -> None: ...


class Verdict(grpc.RpcError):
    """What the client looks at for the server's advice on when to come back."""

    def trailing_metadata(self) -> tuple[()]:
        return ()


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


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = create_engine(url)
    yield made
    made.dispose()


def names(database: Any) -> list[str]:
    return [name for (name,) in kit.rows(database, "late_task", "name")]


def trip(tx: Any, number: int = 1) -> None:
    """The business's own row, the way this transaction has them written."""
    if isinstance(tx, Connection | Session):
        connection = tx.connection() if isinstance(tx, Session) else tx
        connection.exec_driver_sql("insert into trip (id) values (%s)", (number,))
    else:
        tx.insert("trip", ["id"], [(number,)])


@pytest.fixture(params=["native", "connection", "session"])
def run(request: pytest.FixtureRequest, database: Any, engine: Engine) -> Any:
    """`run(body)` runs `body(tx)` in one transaction and commits, or rolls back if it raises."""

    def native(body: Any) -> Any:
        return database.run_in_transaction(body, default_retry_delay=0.01)

    def connection(body: Any) -> Any:
        with engine.begin() as tx:
            return body(tx)

    def session(body: Any) -> Any:
        with Session(engine) as tx, tx.begin():
            return body(tx)

    return {"native": native, "connection": connection, "session": session}[request.param]


def test_commit_makes_the_task_real(run: Any, database: Any) -> None:
    def body(tx: Any) -> Any:
        trip(tx)
        return greet.options(headers={"a": "b"}, priority=3).enqueue(tx, "Ada", times=3)

    task_id = run(body)
    columns = ("task_id", "queue", "name", "payload", "headers")
    [[found, queue, name, payload, headers]] = kit.rows(database, "late_task", *columns)
    assert (found, queue, name) == (task_id, "default", "greet")
    assert b64decode(payload) == b'{"name":"Ada","times":3}'
    assert headers == '{"a":"b"}'
    assert kit.rows(database, "trip", "id") == [[1]]


def test_the_position_is_the_commit_timestamp_of_the_business_row(database: Any) -> None:
    def body(tx: Any) -> Any:
        greet.enqueue(tx, "Ada")
        return tx

    committed = database.run_in_transaction(body).committed
    assert kit.rows(database, "late_task", "created_at") == [[committed]]


def test_rollback_leaves_nothing(run: Any, database: Any) -> None:
    def body(tx: Any) -> None:
        trip(tx)
        greet.enqueue(tx, "Ada")
        greet.options(unique_key="one").enqueue(tx, "Ada")
        raise Rollback

    with pytest.raises(Rollback):
        run(body)
    assert names(database) == []
    assert kit.rows(database, "late_unique", "unique_key") == []


def test_many_tasks_are_all_there_and_in_order(run: Any, database: Any) -> None:
    ids = run(lambda tx: app.enqueue_many(tx, [greet.call(str(n)) for n in range(250)]))
    found = kit.rows(database, "late_task", "task_id")
    assert sorted(task_id for (task_id,) in found) == sorted(ids)
    assert len(set(ids)) == 250


def test_buffered_tasks_add_no_round_trip(database: Any) -> None:
    heard: list[str] = []
    stop = events.default.subscribe(lambda _, values: heard.append(values["method"]), [events.RPC])

    def calls(count: int) -> list[str]:
        heard.clear()

        def body(tx: Any) -> None:
            trip(tx, count)
            if count:
                app.enqueue_many(tx, [greet.call(str(n)) for n in range(count)])

        database.run_in_transaction(body)
        return [*heard]

    try:
        database.run_in_transaction(trip, -1)  # makes the session
        calls(2)  # asks, once a minute, whether the database has the table of full queues
        assert calls(0) == calls(1) == calls(1000)
    finally:
        stop()


def test_a_unique_key_is_taken_once(run: Any, database: Any) -> None:
    def body(tx: Any) -> Any:
        once = greet.options(unique_key="one")
        return [once.enqueue(tx, "Ada"), once.enqueue(tx, "Ada"), greet.enqueue(tx, "Bea")]

    first = run(body)
    again = run(lambda tx: greet.options(unique_key="one").enqueue(tx, "Ada"))
    assert first[0] == first[1] == again
    assert len(names(database)) == 2
    assert kit.rows(database, "late_unique", "unique_key", "task_id") == [["one", again]]


def test_a_conflict_leaves_the_transaction_usable(run: Any, database: Any) -> None:
    run(lambda tx: greet.options(unique_key="one").enqueue(tx, "Ada"))

    def body(tx: Any) -> None:
        trip(tx)
        batch = [
            greet.options(unique_key="two").call("Bea"),
            greet.options(unique_key="one").call("Eve"),
        ]
        with pytest.raises(KeyConflict):
            app.enqueue_many(tx, batch)
        greet.enqueue(tx, "Cleo")

    run(body)
    assert len(names(database)) == 2
    assert kit.rows(database, "late_unique", "unique_key") == [["one"]]
    assert kit.rows(database, "trip", "id") == [[1]]


def test_bad_input_leaves_the_transaction_usable(run: Any, database: Any) -> None:
    def body(tx: Any) -> None:
        with pytest.raises(InvalidTask):
            greet.enqueue(tx, "Ada", nobody="knows")
        with pytest.raises(InvalidTask):
            greet.options(delay=float("nan")).enqueue(tx, "Ada")
        trip(tx)
        greet.enqueue(tx, "Ada")

    run(body)
    assert names(database) == ["greet"]


def test_what_is_no_transaction_is_named(database: Any) -> None:
    with pytest.raises(InvalidTask, match="run_in_transaction"):
        greet.enqueue(database, "Ada")
    with database.snapshot() as snapshot, pytest.raises(InvalidTask, match="Snapshot"):
        greet.enqueue(snapshot, "Ada")


def test_missing_tables_are_named(emulator: None) -> None:
    engine = create_engine(kit.fresh(kit.TRIP))
    with engine.connect() as tx, pytest.raises(SchemaMismatch, match="late migrate"):
        greet.enqueue(tx, "Ada")
    engine.dispose()


def test_missing_tables_are_named_where_the_client_commits(emulator: None) -> None:
    bare: Any = open_database(kit.fresh(kit.TRIP), priority="foreground")

    def body(tx: Any) -> None:
        trip(tx)
        greet.enqueue(tx, "Ada")

    with pytest.raises(SchemaMismatch, match="late migrate") as mismatch:
        bare.run_in_transaction(body)
    assert isinstance(mismatch.value.__cause__, NotFound | InvalidArgument)
    assert kit.rows(bare, "trip", "id") == []
    close_database(bare)


def test_what_spanner_would_refuse_at_the_commit_is_refused_at_the_enqueue(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_spanner, "TASKS_MAX", 1_500)

    def body(tx: Any) -> None:
        app.enqueue_many(tx, [greet.call("Ada") for _ in range(1000)])
        keyed = [greet.options(unique_key=f"k{n}").call("Bea") for n in range(501)]
        with pytest.raises(BatchTooLarge, match="1501 tasks"):
            app.enqueue_many(tx, keyed)
        app.enqueue_many(tx, [greet.call("Eve") for _ in range(500)])
        with pytest.raises(BatchTooLarge):
            greet.enqueue(tx, "Ada")

    database.run_in_transaction(body)
    assert len(names(database)) == 1_500
    assert kit.rows(database, "late_unique", "unique_key") == []


def test_the_bytes_of_a_transaction_are_bounded(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_spanner, "BYTES_MAX", 1_000)

    def body(tx: Any) -> None:
        greet.enqueue(tx, "x" * 900)
        with pytest.raises(BatchTooLarge, match="bytes"):
            greet.enqueue(tx, "x" * 100)

    database.run_in_transaction(body)
    assert len(names(database)) == 1


def test_the_limit_is_that_of_the_service() -> None:
    # A quarter is left for the caller: a unique key adds the four columns of its own row.
    assert outbox_spanner.TASKS_MAX * (len(outbox_spanner.COLUMNS) + 4) <= 60_000
    assert outbox_spanner.BYTES_MAX < 100 * 1024 * 1024


def test_a_body_that_was_aborted_is_enqueued_once(database: Any) -> None:
    seen: list[Any] = []

    def body(tx: Any) -> Any:
        trip(tx)
        seen.append(greet.options(unique_key="one").enqueue(tx, "Ada"))
        if len(seen) < 3:
            raise Aborted("as the server does", errors=[Verdict()])
        return seen[-1]

    task_id = database.run_in_transaction(body, default_retry_delay=0.01)
    assert len(seen) == 3
    assert kit.rows(database, "late_task", "task_id") == [[task_id]]
    assert kit.rows(database, "late_unique", "task_id") == [[task_id]]


def test_connect_commits_and_rolls_back(url: str, database: Any) -> None:
    with outbox.connect(f"{url}?staleness_s=2&replica=us-east4") as tx:
        trip(tx)
        greet.enqueue(tx, "Ada")

    def fail() -> None:
        with outbox.connect(url) as tx:
            greet.options(unique_key="one").enqueue(tx, "Bea")
            raise Rollback

    with pytest.raises(Rollback):
        fail()
    assert names(database) == ["greet"]
    assert kit.rows(database, "late_unique", "unique_key") == []


async def test_connect_async_commits_and_rolls_back(url: str, database: Any) -> None:
    async with outbox.connect_async(url) as tx:
        assert await tx.execute_update("insert into trip (id) values (7)") == 1
        assert await tx.execute_sql("select id from trip") == [[7]]
        await greet.options(unique_key="one").enqueue(tx, "Ada")

    async def fail() -> None:
        async with outbox.connect_async(url) as tx:
            await greet.enqueue(tx, "Bea")
            raise Rollback

    with pytest.raises(Rollback):
        await fail()
    assert names(database) == ["greet"]
    assert kit.rows(database, "trip", "id") == [[7]]


def test_a_block_that_does_nothing_is_fine(url: str, database: Any) -> None:
    with outbox.connect(url):
        pass
    assert names(database) == []


def test_an_error_is_heard_of_although_the_server_cannot_be_told(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled_back: list[int] = []

    def rollback(_: Any) -> None:
        rolled_back.append(1)
        raise ServiceUnavailable("gone")

    def block() -> None:
        with outbox.connect(url) as tx:
            list(tx.execute_sql("select 1"))
            raise Rollback

    monkeypatch.setattr(Transaction, "rollback", rollback)
    with pytest.raises(Rollback):
        block()
    assert rolled_back
    monkeypatch.undo()
    with outbox.connect(url) as tx:
        greet.enqueue(tx, "Ada")


def test_a_forked_child_gets_a_client_of_its_own(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def client() -> Any:
        with outbox.connect(url) as tx:
            return tx._session._database

    ours = client()
    assert client() is ours
    monkeypatch.setattr(spanner_session.os, "getpid", lambda: -1)
    theirs = client()
    assert theirs is not ours
    # Used before it is closed: a channel that is closed while it connects makes gRPC's own
    # thread complain.
    list(theirs.spanner_api.list_sessions(database=theirs.name))
    close_database(theirs)


def test_no_block_keeps_its_session(url: str) -> None:
    def block(wrong: bool) -> None:
        with outbox.connect(url) as tx:
            greet.enqueue(tx, "Ada")
            if wrong:
                list(tx.execute_sql("select nonsense"))

    for number in range(12):
        if number % 2:
            with pytest.raises(InvalidArgument):
                block(wrong=True)
        else:
            block(wrong=False)
    client: Any = open_database(url, priority="background")
    listed = client.spanner_api.list_sessions(database=client.name)
    plain = [session for session in listed if not session.multiplexed]
    assert len(plain) <= 1, "one after the other, they need one session"
    close_database(client)


async def test_a_block_that_is_cancelled_while_it_begins_holds_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go = threading.Event(), threading.Event()
    real, ended = spanner_session._transaction_of, threading.Event()

    def slow(database: Any, tag: str) -> Any:
        started.set()
        go.wait()
        try:
            yield from real(database, tag)
        finally:
            ended.set()

    kept: list[Any] = []  # or the garbage collection would end it

    class Kept(spanner_session.AsyncSpanner):
        def __init__(self, url: str, tag: str) -> None:
            super().__init__(url, tag)
            kept.append(self)

    monkeypatch.setattr(spanner_session, "_transaction_of", slow)
    monkeypatch.setattr(spanner_session, "AsyncSpanner", Kept)

    async def block() -> None:
        async with outbox.connect_async(url):
            pytest.fail("cancelled before")

    running = asyncio.create_task(block())
    await asyncio.to_thread(started.wait)
    running.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(ended.wait, 5)


async def test_the_clients_own_asyncio_half_is_served(url: str, database: Any) -> None:
    place = place_of(url)
    client: Any = AsyncClient(project=place.project, disable_builtin_metrics=True)
    own = await client.instance(place.instance).database(place.database)
    seen: list[Any] = []

    async def body(tx: Any) -> Any:
        trip(tx)
        seen.append(await greet.options(unique_key="one").enqueue(tx, "Ada"))
        with pytest.raises(KeyConflict):
            await greet.options(unique_key="one").enqueue(tx, "Eve")
        await app.enqueue_many(tx, [greet.call(str(n)) for n in range(9)])
        if len(seen) == 1:
            raise Aborted("as the server does", errors=[Verdict()])
        return seen[-1]

    task_id = await own.run_in_transaction(body, default_retry_delay=0.01)
    assert len(seen) == 2
    assert len(names(database)) == 10
    assert kit.rows(database, "late_unique", "task_id") == [[task_id]]
    assert kit.rows(database, "trip", "id") == [[1]]


def test_a_url_of_another_shape_is_a_config_error() -> None:
    for wrong in ("spanner+spanner:///projects/p", "spanner://host/x", "spanner:///a/b/c"):
        with pytest.raises(ConfigError, match="spanner"), outbox.connect(wrong):
            pass


@pytest.fixture(scope="module")
def faulty() -> Iterator[None]:
    """An emulator that aborts some commits although nobody is in the way."""
    with kit.emulator("--enable_fault_injection") as host, kit.environment(host):
        yield


def test_every_commit_that_was_aborted_and_replayed_has_its_task(faulty: None) -> None:
    url = kit.fresh(*kit.TABLES, kit.TRIP)
    database: Any = open_database(url, priority="foreground")
    aborted: list[str] = []
    stop = events.default.subscribe(
        lambda _, values: aborted.append(values["code"]) if values["code"] == "ABORTED" else None,
        [events.RPC],
    )

    def body(tx: Any, number: int) -> None:
        trip(tx, number)
        greet.enqueue(tx, str(number))

    for number in range(150):
        database.run_in_transaction(body, number, default_retry_delay=0.001)
    stop()
    assert aborted, "the emulator injected no fault"
    assert len(names(database)) == len(kit.rows(database, "trip", "id")) == 150
    close_database(database)


def test_every_replayed_commit_of_sqlalchemy_has_its_task(faulty: None) -> None:
    url = kit.fresh(*kit.TABLES, kit.TRIP)
    engine = create_engine(url)
    for number in range(100):
        with Session(engine) as tx, tx.begin():
            trip(tx, number)
            greet.enqueue(tx, str(number))
    engine.dispose()
    database = open_database(url, priority="foreground")
    assert len(names(database)) == len(kit.rows(database, "trip", "id")) == 100
    close_database(database)
