"""What the client does on a bad network, with and without each of its measures."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.api_core.exceptions import Aborted, DeadlineExceeded
from google.cloud import spanner
from google.cloud.spanner_v1 import BeginTransactionRequest, CreateSessionRequest, RequestOptions
from google.cloud.spanner_v1.database_sessions_manager import TransactionType
from google.oauth2.credentials import Credentials
from msgspec import structs

import late
from late import events
from late.errors import ConfigError
from late.handler.context import Context
from late.model.task import Cursor, Options, ShardId
from late.outbox import connect
from late.schema import migrate
from late.schema.spanner import deadlines as spanner_bounds
from late.store.spanner import client as spanner_client
from late.store.spanner.client import close_database, open_database
from late.store.spanner.grpc_calls import Stamp
from late.store.spanner.grpc_channels import (
    AVOID_S,
    KEEPALIVE_TIME_S,
    KEEPALIVE_TIMEOUT_S,
    OPTIONS,
    ChannelPool,
)
from late.store.spanner.store import SpannerStore
from late.testing.servers.spanner import create_database
from tests.conformance.kit import BEGINNING, Owner, worker
from tests.integration import spanner_kit as kit
from tests.integration.grpc_proxy import GrpcProxy, Relay, Rule
from tests.unit.dispatcher_kit import attempt

app = late.App("sqlite:///unused.db", shards=4)
CREATE = "/google.spanner.v1.Spanner/CreateSession"
PRIORITY = RequestOptions.Priority


@app.task
def greet(name: str) -> None: ...


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    """The emulator itself."""
    with kit.emulator() as host, kit.environment(host):
        yield host


@pytest.fixture
def url(upstream: str) -> str:
    return kit.fresh(*kit.TABLES, kit.TRIP)


@pytest.fixture
def proxy(upstream: str) -> Iterator[GrpcProxy]:
    with GrpcProxy(upstream) as made, kit.environment(made.host):
        yield made


@pytest.fixture
def database(url: str, proxy: GrpcProxy) -> Iterator[Any]:
    """Behind the proxy."""
    made = open_database(url, priority="foreground")
    yield made
    close_database(made)


@pytest.fixture
def heard() -> Iterator[list[dict[str, Any]]]:
    """Every call that has ended."""
    found: list[dict[str, Any]] = []
    stop = events.default.subscribe(lambda _, values: found.append(dict(values)), [events.RPC])
    yield found
    stop()


def insert_trip(tx: Any) -> None:
    tx.insert("trip", ["id"], [(1,)])


def insert_trip_2(tx: Any) -> None:
    tx.insert("trip", ["id"], [(2,)])


def insert_trip_3(tx: Any) -> None:
    tx.insert("trip", ["id"], [(3,)])


@pytest.fixture
def conflicts() -> Iterator[list[dict[str, Any]]]:
    """Every conflict that is recorded."""
    found: list[dict[str, Any]] = []
    stop = events.default.subscribe(lambda _, v: found.append(dict(v)), [events.CONFLICT])
    yield found
    stop()


# --- Unknown outcomes: the proxy's own test ------------------------------------------------------


def test_a_commit_whose_answer_was_lost_is_repeated_and_written_once(
    database: Any, proxy: GrpcProxy
) -> None:
    proxy.add(Rule("Commit", grpc.StatusCode.UNAVAILABLE, forward=True))
    database.run_in_transaction(lambda tx: greet.enqueue(tx, "Ada"))
    first, second = proxy.calls("Commit")
    assert first.transaction_id == second.transaction_id
    assert len(kit.rows(database, "late_task", "task_id")) == 1


def test_an_aborted_commit_runs_the_whole_body_again(database: Any, proxy: GrpcProxy) -> None:
    proxy.add(Rule("Commit", grpc.StatusCode.ABORTED, times=2))
    runs: list[Any] = []

    def body(tx: Any) -> None:
        runs.append(greet.options(unique_key="one").enqueue(tx, "Ada"))

    database.run_in_transaction(body, default_retry_delay=0.01)
    assert len(runs) == 3
    assert kit.rows(database, "late_task", "task_id") == [[runs[-1]]]


def test_an_aborted_block_of_connect_raises_and_leaves_nothing(
    url: str, database: Any, proxy: GrpcProxy
) -> None:
    def block() -> None:
        with connect(url) as tx:
            greet.enqueue(tx, "Ada")

    proxy.add(Rule("Commit", grpc.StatusCode.ABORTED))
    with pytest.raises(Aborted):
        block()
    assert kit.rows(database, "late_task", "task_id") == []
    block()
    assert len(kit.rows(database, "late_task", "task_id")) == 1


def test_a_block_of_connect_has_its_own_time(url: str) -> None:
    """Whatever its thread was given for something else, a look at the schema for one, is over."""
    assert migrate.current(url) is None
    spanner_bounds.start(0.0)  # later

    with connect(url) as tx:
        assert list(tx.execute_sql("select id from trip")) == []
        greet.options(unique_key="one").enqueue(tx, "Ada")
        database = tx._session._database
    assert len(kit.rows(database, "late_task", "task_id")) == 1


# --- Telemetry -----------------------------------------------------------------------------------


def test_every_call_tells_its_time_bytes_and_repeats(
    database: Any, proxy: GrpcProxy, heard: list[dict[str, Any]]
) -> None:
    proxy.add(Rule("Commit", grpc.StatusCode.UNAVAILABLE))
    database.run_in_transaction(insert_trip)
    commits = [values for values in heard if values["method"] == "Commit"]
    assert [(c["code"], c["retries"]) for c in commits] == [("UNAVAILABLE", 0), ("OK", 1)]
    assert [c["received_bytes"] > 0 for c in commits] == [False, True]
    sent = [len(type(request).serialize(request)) for request in proxy.calls("Commit")]
    assert [c["sent_bytes"] for c in commits] == sent
    assert {c["role"] for c in commits} == {"late-foreground"}


def test_the_time_of_a_call_is_what_its_caller_waited(
    database: Any, proxy: GrpcProxy, heard: list[dict[str, Any]]
) -> None:
    proxy.add(Rule("Commit", hold_s=0.25))
    database.run_in_transaction(insert_trip)
    [commit] = [values for values in heard if values["method"] == "Commit"]
    assert commit["duration_s"] >= 0.25


def test_a_read_tells_the_bytes_of_its_stream(database: Any, heard: list[dict[str, Any]]) -> None:
    assert kit.rows(database, "trip", "id") == []
    empty = [values for values in heard if values["method"] == "StreamingRead"]
    database.run_in_transaction(lambda tx: tx.insert("trip", ["id"], [(n,) for n in range(500)]))
    assert len(kit.rows(database, "trip", "id")) == 500
    reads = [values for values in heard if values["method"] == "StreamingRead"]
    assert len(empty) == 1
    assert len(reads) == 2
    assert reads[1]["received_bytes"] > reads[0]["received_bytes"] + 500
    assert reads[1]["code"] == "OK"


def test_a_client_that_is_not_ours_tells_nothing(
    url: str, proxy: GrpcProxy, heard: list[dict[str, Any]]
) -> None:
    place = spanner_client.place_of(url)
    client: Any = spanner.Client(project=place.project, disable_builtin_metrics=True)
    client.instance(place.instance).database(place.database).run_in_transaction(insert_trip)
    assert proxy.calls("Commit")
    assert heard == []


# --- Priority and tags ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "priority"),
    [("foreground", PRIORITY.PRIORITY_HIGH), ("background", PRIORITY.PRIORITY_LOW)],
)
def test_every_request_carries_its_role(
    url: str, proxy: GrpcProxy, role: Any, priority: PRIORITY
) -> None:
    database: Any = open_database(url, priority=role)

    def body(tx: Any) -> None:
        tx.execute_update("insert into trip (id) values (1)")

    database.run_in_transaction(body)
    kit.rows(database, "trip", "id")
    close_database(database)
    [statement], [commit] = proxy.calls("ExecuteSql"), proxy.calls("Commit")
    [read] = proxy.calls("StreamingRead")
    for request in (statement, commit, read):
        assert request.request_options.priority == priority
    assert statement.request_options.transaction_tag == f"late-{role}"
    assert commit.request_options.transaction_tag == f"late-{role}"
    assert read.request_options.request_tag == f"late-{role}"


def test_a_call_that_states_its_own_keeps_it(database: Any, proxy: GrpcProxy) -> None:
    own = {"priority": PRIORITY.PRIORITY_MEDIUM, "request_tag": "report"}
    with database.snapshot() as snapshot:
        list(snapshot.read("trip", ["id"], spanner.KeySet(all_=True), request_options=own))
    [read] = proxy.calls("StreamingRead")
    assert read.request_options.priority == PRIORITY.PRIORITY_MEDIUM
    assert read.request_options.request_tag == "report"


def test_without_ours_the_client_states_neither(url: str, proxy: GrpcProxy) -> None:
    place = spanner_client.place_of(url)
    client: Any = spanner.Client(project=place.project, disable_builtin_metrics=True)
    client.instance(place.instance).database(place.database).run_in_transaction(insert_trip)
    [commit] = proxy.calls("Commit")
    assert commit.request_options.priority == PRIORITY.PRIORITY_UNSPECIFIED
    assert commit.request_options.transaction_tag == ""


@pytest.mark.parametrize(
    ("priority", "role", "on_the_wire"),
    [(0, "foreground", PRIORITY.PRIORITY_HIGH), (-1, "background", PRIORITY.PRIORITY_LOW)],
)
def test_a_handlers_transaction_has_its_tasks_class_and_name(
    url: str,
    proxy: GrpcProxy,
    priority: int,
    role: str,
    on_the_wire: PRIORITY,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Once a second the app reads what is full: not here, where each call is counted.
    monkeypatch.setattr(app.admission, "_look_s", math.inf)
    one = structs.replace(attempt("greet"), options=Options(priority=priority))
    with Context(one, 0, 1.0, None, url, lambda _: None).begin() as tx:
        list(tx.execute_sql("select id from trip"))
        tx.execute_update("insert into trip (id) values (1)")
        greet.enqueue(tx, "Ada")
    requests = [proxy.calls(m) for m in ("ExecuteStreamingSql", "ExecuteSql", "Commit")]
    assert [len(found) for found in requests] == [1, 1, 1]
    for [request] in requests:
        assert request.request_options.priority == on_the_wire
        assert request.request_options.transaction_tag == f"late-{role}:greet"


def test_a_services_database_is_tagged_with_one_line(url: str, proxy: GrpcProxy) -> None:
    place = spanner_client.place_of(url)
    client: Any = spanner.Client(project=place.project, disable_builtin_metrics=True)
    theirs = client.instance(place.instance).database(place.database)
    late.watch(theirs, "shop")
    theirs.run_in_transaction(lambda tx: tx.execute_update("insert into trip (id) values (1)"))
    with late.tag("checkout"):
        theirs.run_in_transaction(insert_trip_2)
    theirs.run_in_transaction(insert_trip_3, transaction_tag="own")
    tags = [call.request_options.transaction_tag for call in proxy.calls("Commit")]
    assert tags == ["shop", "checkout", "own"]
    [statement] = proxy.calls("ExecuteSql")
    assert statement.request_options.transaction_tag == "shop"


def test_a_deadline_is_recorded_with_its_tag_and_row(
    url: str, proxy: GrpcProxy, conflicts: list[dict[str, Any]]
) -> None:
    proxy.add(Rule("Commit", grpc.StatusCode.DEADLINE_EXCEEDED))
    with pytest.raises(DeadlineExceeded), late.tag("checkout"), connect(url) as tx:
        insert_trip(tx)
    [found] = conflicts
    assert (found["kind"], found["tag"], found["key"]) == ("deadline", "checkout", "trip(1)")


def test_the_callers_enqueue_through_connect_is_foreground(url: str, proxy: GrpcProxy) -> None:
    with connect(url) as tx:
        greet.enqueue(tx, "Ada")
    [commit] = proxy.calls("Commit")
    assert commit.request_options.priority == PRIORITY.PRIORITY_HIGH
    assert commit.request_options.transaction_tag == "late-foreground"


async def test_the_store_is_urgent_where_somebody_waits(upstream: str, proxy: GrpcProxy) -> None:
    with kit.environment(upstream):
        url = create_database(migrated=True)
    store = SpannerStore(url)
    await store.open()

    async def priorities(call: Any) -> set[int]:
        proxy.heard.clear()
        await call
        asked = [one.request for one in proxy.heard if not isinstance(one.request, bytes)]
        return {
            request.request_options.priority
            for request in asked
            if "request_options" in type(request)._meta.fields
            and not isinstance(request, BeginTransactionRequest)
        }

    high, low = {PRIORITY.PRIORITY_HIGH}, {PRIORITY.PRIORITY_LOW}
    with kit.environment(upstream), connect(url) as tx:
        app.enqueue_many(tx, [greet.options(ordering_key="a").call("Ada")] * 3)
    shard = ShardId(kit.rows(tx._session._database, "late_task", "shard_id")[0][0])
    await store.prune(journal_keep_s=0)  # makes the sessions
    assert await priorities(store.heartbeat(worker("w1"), 60)) == high
    [lease] = await store.acquire("w1", [("default", shard)])
    assert await priorities(store.read({shard: BEGINNING}, 9)) == low
    settled = Owner(store, lease).settle(cursor=Cursor(str(await store.now() * 1000)))
    assert await priorities(settled) == high
    assert await priorities(store.prune(journal_keep_s=0)) == low
    assert kit.rows(tx._session._database, "late_task", "shard_id") == []
    assert await priorities(store.release([lease])) == high
    await store.close()


# --- Sessions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplexed", [True, False], ids=["with", "without"])
def test_one_session_serves_all_reads(
    url: str, proxy: GrpcProxy, monkeypatch: pytest.MonkeyPatch, multiplexed: bool
) -> None:
    """The emulator has multiplexed sessions for reads, though not for transactions."""
    if not multiplexed:
        monkeypatch.setenv("GOOGLE_CLOUD_SPANNER_MULTIPLEXED_SESSIONS", "false")
    database = open_database(url, priority="foreground")
    hold = threading.Event()
    proxy.add(Rule("StreamingRead", hold=hold, times=8))
    with ThreadPoolExecutor(8) as threads:
        reads = [threads.submit(kit.rows, database, "trip", "id") for _ in range(8)]
        deadline = time.monotonic() + 20
        while len(proxy.calls("StreamingRead")) < 8 and time.monotonic() < deadline:
            time.sleep(0.01)
        hold.set()
        assert [read.result() for read in reads] == [[]] * 8
    sessions = {request.session for request in proxy.calls("StreamingRead")}
    created = proxy.calls("CreateSession")
    assert len(sessions) == (1 if multiplexed else 8)
    assert [request.session.multiplexed for request in created] == (
        [True] if multiplexed else [False] * 8
    )
    close_database(database)


@pytest.mark.parametrize("emulator", [True, False])
def test_transactions_leave_the_multiplexed_session_on_the_emulator_only(
    emulator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "GOOGLE_CLOUD_SPANNER_MULTIPLEXED_SESSIONS_FOR_RW"
    monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SPANNER_EMULATOR_HOST", raising=False)
    if emulator:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", "127.0.0.1:1")

    def client(**given: Any) -> Any:
        make: Any = Credentials
        return spanner.Client(credentials=make("token"), **given)

    monkeypatch.setattr(spanner_client, "Client", client)
    database: Any = open_database(
        "spanner:///projects/p/instances/i/databases/d", priority="foreground"
    )
    use = database.sessions_manager._use_multiplexed(TransactionType.READ_WRITE)
    assert use is not emulator
    close_database(database)


# --- Channels ------------------------------------------------------------------------------------


def a_session(url: str) -> bytes:
    """Any request that the emulator answers."""
    name = url.partition(":///")[2]
    return bytes(CreateSessionRequest.serialize(CreateSessionRequest(database=name)))


def outcome(channel: grpc.Channel, request: bytes, timeout: float = 10.0) -> str:
    try:
        channel.unary_unary(CREATE)(request, timeout=timeout)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code.name
    return "OK"


def pool_of(*hosts: str) -> ChannelPool:
    stamp = Stamp(int(PRIORITY.PRIORITY_HIGH), "test")
    return ChannelPool(
        [grpc.insecure_channel(host, options=OPTIONS) for host in hosts], stamp=stamp
    )


def test_traffic_leaves_a_channel_that_broke(
    url: str, upstream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stamp, "put", lambda *_: None)
    request = a_session(url)
    with Relay(upstream) as bad, Relay(upstream) as good:
        alone = grpc.insecure_channel(bad.host, options=OPTIONS)
        with pool_of(bad.host, good.host) as pool:
            # Both are in use.
            assert [outcome(pool, request) for _ in range(8)] == ["OK"] * 8
            assert outcome(alone, request) == "OK"
            assert bad.opened == 2
            assert good.opened == 1
            bad.refuse()
            # The first call may be the one that finds out; none after it fails.
            found = [outcome(pool, request) for _ in range(50)]
            assert found.count("UNAVAILABLE") <= 1
            assert found[1:] == ["OK"] * 49
        assert [outcome(alone, request) for _ in range(3)] == ["UNAVAILABLE"] * 3
        alone.close()


def test_traffic_rests_a_channel_that_answers_unavailable(
    url: str, upstream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stamp, "put", lambda *_: None)
    request = a_session(url)
    with GrpcProxy(upstream) as bad, GrpcProxy(upstream) as good:
        bad.add(Rule("CreateSession", grpc.StatusCode.UNAVAILABLE, times=1000))
        with pool_of(bad.host, good.host) as pool:
            began = time.monotonic()
            found = [outcome(pool, request) for _ in range(20)]
            rests = (time.monotonic() - began) / AVOID_S
        # One call finds out; on a machine that is busy for so long, one more after each rest.
        assert found.count("UNAVAILABLE") <= 1 + int(rests)
        alone = grpc.insecure_channel(bad.host, options=OPTIONS)
        assert outcome(alone, request) == "UNAVAILABLE"
        assert outcome(alone, request) == "UNAVAILABLE"
        alone.close()


def test_a_dead_connection_is_found_by_keepalive_only(url: str, upstream: str) -> None:
    request = a_session(url)
    bound = KEEPALIVE_TIME_S + KEEPALIVE_TIMEOUT_S
    assert bound <= 6.0
    ping = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    without = [(key, value) for key, value in OPTIONS if key not in ping]
    assert len(without) == len(OPTIONS) - len(ping)
    with Relay(upstream) as relay:
        ours = grpc.insecure_channel(relay.host, options=OPTIONS)
        plain = grpc.insecure_channel(relay.host, options=without)
        for channel in (ours, plain):
            assert outcome(channel, request) == "OK"
        relay.silence()
        started = time.monotonic()
        waiting = plain.unary_unary(CREATE).future(request, timeout=60)
        # Found long before the call's own deadline; the other still waits for an answer.
        assert outcome(ours, request, timeout=60) == "UNAVAILABLE"
        assert time.monotonic() - started < 30
        assert not waiting.done()
        waiting.cancel()
        ours.close()
        plain.close()


# --- Opening -------------------------------------------------------------------------------------


def test_without_credentials_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPANNER_EMULATOR_HOST", raising=False)

    def nobody(**_: Any) -> Any:
        raise spanner_client.DefaultCredentialsError("no file")

    monkeypatch.setattr(spanner_client, "Client", nobody)
    with pytest.raises(ConfigError, match="gcloud auth"):
        open_database("spanner:///projects/p/instances/i/databases/d", priority="foreground")
