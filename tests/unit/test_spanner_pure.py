"""What the Spanner store computes without a server: cursors, ranges, the map of errors, options."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import pytest

pytest.importorskip("google.cloud.spanner_v1", reason="no google-cloud-spanner")

from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.cloud.spanner_v1 import types
from hypothesis import given
from hypothesis import strategies as st

from late.errors import (
    ConfigError,
    SchemaMismatch,
    StoreClosed,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TransactionAborted,
)
from late.schema.engine import make_engine
from late.schema.spanner.address import options_of, place_of
from late.schema.spanner.errors import CLASSES, translate
from late.store import open_store
from late.store.base import WorkerInfo
from late.store.spanner import connection
from late.store.spanner import guard as spanner_guard
from late.store.spanner import membership as spanner_fleet
from late.store.spanner import prune as spanner_prune
from late.store.spanner.client import _Database
from late.store.spanner.cursor import beyond, moment_of, nanoseconds, parse, timestamp

ID = "01a1fc28-e4c7-7000-8000-032c1f517f29"
NS = 1_795_231_900_895_684_123
URL = "spanner+spanner:///projects/p/instances/i/databases/d"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (api.Aborted("x"), TransactionAborted),
        (api.ServiceUnavailable("x"), StoreUnavailable),
        (api.DeadlineExceeded("x"), StoreUnavailable),
        (api.Unknown("x"), StoreUnavailable),
        (api.Cancelled("x"), StoreUnavailable),
        (api.InternalServerError("x"), StoreUnavailable),
        (api.ResourceExhausted("x"), StoreUnavailable),
        (api.RetryError("x", None), StoreUnavailable),
        (api.PermissionDenied("x"), StoreRefused),
        (api.Unauthenticated("x"), StoreRefused),
        (auth.DefaultCredentialsError("x"), StoreRefused),
        (auth.TransportError("x"), StoreUnavailable),
        (auth.RefreshError("x"), StoreRefused),
        (auth.GoogleAuthError("x"), StoreRefused),
        (api.AlreadyExists("x"), StoreError),
        (api.NotFound("Session not found: s"), StoreUnavailable),
        (api.NotFound("Database not found: d"), StoreRefused),
        (api.NotFound("Instance not found: i"), StoreRefused),
        (api.NotFound("Table not found: late_meta"), SchemaMismatch),
        (api.InvalidArgument("Table not found: late_worker"), SchemaMismatch),
        (api.InvalidArgument("Syntax error"), StoreError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or f"{type(value).__name__} {value}"[:40],
)
def test_every_error_of_the_client_is_one_of_ours(
    error: Exception, expected: type[StoreError]
) -> None:
    assert type(translate(error)) is expected


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for host, said in (("127.0.0.1:9", "127.0.0.1:9"), ("", "Spanner")):
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", host)
        error = translate(api.DeadlineExceeded("504 Deadline Exceeded"))  # type: ignore[no-untyped-call]
        assert str(error).startswith(f"{said} does not answer in time: 504")


def test_the_map_of_errors_has_no_line_that_cannot_be_reached() -> None:
    for index, (foreign, _, reason) in enumerate(CLASSES):
        assert not any(issubclass(foreign, earlier) for earlier, _, _ in CLASSES[:index]), foreign
        assert reason


def test_every_code_of_grpc_has_its_line() -> None:
    codes = {code.value[0]: code.name for code in grpc.StatusCode if code.value[0]}
    found = {
        foreign.grpc_status_code.value[0]
        for foreign, _, _ in CLASSES
        if getattr(foreign, "grpc_status_code", None) is not None
    }
    assert {name for code, name in codes.items() if code not in found} == set()


def test_timestamps_keep_every_nanosecond() -> None:
    assert timestamp(NS) == "2026-11-21T03:31:40.895684123Z"
    assert nanoseconds(moment_of(NS)) == NS
    assert nanoseconds(moment_of(NS - NS % 10**9)) == NS - NS % 10**9


def test_cursors_are_told_apart_and_ordered() -> None:
    nothing, all_of, inside = parse(""), parse(f"{NS}"), parse(f"{NS + 9}@{NS},{ID}")
    assert (nothing.position, all_of.task_id, inside.window) == (0, None, NS + 9)
    assert nothing.key < inside.key < all_of.key, "a whole timestamp covers more than one row of it"
    for wrong in ("x", "1:2:", f"@{NS},{ID}", f"{NS}@{NS}", "12345678901234567890"):
        with pytest.raises(StoreError, match="not a cursor"):
            parse(wrong)


def test_a_range_leaves_out_ties_only_where_all_of_them_are_covered() -> None:
    assert beyond(3, parse("")).start_closed == [3]
    assert beyond(3, parse(f"{NS}")).start_open == [3, timestamp(NS)]
    assert beyond(3, parse(f"{NS}@{NS},{ID}")).start_open == [3, timestamp(NS), ID]


def test_ranges_to_delete_leave_what_must_stay() -> None:
    keys = [(n, "a") for n in range(1, 9)]
    assert list(spanner_prune._ranges(keys, {(1, "a"), (4, "a")})) == [
        ([2, "a"], [2, "a"]),
        ([3, "a"], [3, "a"]),
        ([5, "a"], [5, "a"]),
        ([8, "a"], [8, "a"]),
        ([6], [7]),
    ]
    assert list(spanner_prune._ranges(keys, set(keys))) == []


def test_only_whole_timestamps_are_deleted_without_ids() -> None:
    """At the edges of a run there may be rows of the same timestamp that are not settled."""
    ties = [(position, task_id) for position in (1, 2, 3, 4) for task_id in "abc"]
    assert list(spanner_prune._ranges(ties[1:-1], set())) == [
        ([1, "b"], [1, "c"]),
        ([4, "a"], [4, "b"]),
        ([2], [3]),
    ]
    assert list(spanner_prune._ranges(ties, {(2, "b")})) == [
        ([1, "a"], [1, "c"]),
        ([2, "a"], [2, "a"]),
        ([2, "c"], [2, "c"]),
        ([4, "a"], [4, "c"]),
        ([3], [3]),
    ]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from("abcd")), unique=True),
    st.sets(st.tuples(st.integers(1, 6), st.sampled_from("abcd"))),
)
def test_ranges_take_the_settled_rows_and_no_other(
    log: list[spanner_prune.Key], stay: set[spanner_prune.Key]
) -> None:
    log = sorted(log)
    found = log[: len(log) // 2 + 1]
    gone = set()
    for low, high in spanner_prune._ranges(found, stay):
        assert low[:-1] == high[:-1], "Spanner takes no other"
        gone |= {key for key in log if low <= list(key[: len(low)]) <= high}
    assert gone == set(found) - stay


def test_gaps_are_all_shards_that_are_not_known() -> None:
    assert spanner_fleet._gaps(set()) == [(0, 4095)]
    assert spanner_fleet._gaps({0, 1, 5, 4095}) == [(2, 4), (6, 4094)]
    assert spanner_fleet._gaps(set(range(4096))) == []


def test_a_shard_outside_every_lane_is_found_by_its_timers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = [["g", 7]]
    monkeypatch.setattr(spanner_fleet, "_any", lambda *asked: asked[-1] == waiting)
    monkeypatch.setattr(spanner_fleet, "_gaps", lambda shards: [])
    shards = {0, 1}
    spanner_fleet._outside(None, None, shards, [("g", 0), ("g", 6), ("g", 7)])
    assert shards == {0, 1, 7}


@pytest.mark.parametrize(
    "url",
    [
        "spanner:///projects/p",
        f"{URL}?staleness_s=x",
        f"{URL}?staleness_s=-1",
        f"{URL}?staleness_s=9999",
        f"{URL}?stale=1",
        f"{URL}?replica=US",
        f"{URL}?replica=us-east4:witness",
    ],
)
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        open_store(url)
    with pytest.raises(ConfigError):
        make_engine(url)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("us-east4", {"location": "us-east4"}),
        ("read_only", {"type_": "READ_ONLY"}),
        ("us-east4:read_write", {"location": "us-east4", "type_": "READ_WRITE"}),
    ],
)
def test_a_url_names_the_replicas_that_are_to_answer(text: str, wanted: dict[str, str]) -> None:
    found = options_of(f"{URL}?replica={text}&staleness_s=2")
    assert found.staleness_s == 2
    assert found.directed is not None
    assert types.DirectedReadOptions(found.directed) == types.DirectedReadOptions(
        include_replicas={"replica_selections": [wanted]}
    )
    assert options_of(URL) == (0.0, None)
    assert place_of(f"{URL}?replica={text}") == place_of(URL)


async def test_all_clients_are_closed_once_also_if_the_server_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []
    unwatched: list[str] = []

    class Database:
        def __init__(self, name: str) -> None:
            self.name = name
            self.late_channels = self

        def unwatch(self) -> None:
            unwatched.append(self.name)

    def close(database: Database) -> None:
        assert sorted(unwatched) == ["one", "two"], "all of them before the first is closed"
        closed.append(database.name)
        raise api.ServiceUnavailable("gone")

    monkeypatch.setattr(connection, "close_database", close)
    clients = connection.SpannerClients(URL)
    clients._databases = {"foreground": Database("one"), "background": Database("two")}
    for _ in range(2):
        await clients.close()
    assert sorted(closed) == ["one", "two"]
    with pytest.raises(StoreClosed):
        clients.require_open()


class _Beats:
    """A transaction in which the worker has a row."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    def execute_update(self, *_: Any) -> int:
        return 1

    def update(self, table: str, columns: Any, rows: list[Any]) -> None:
        self.written += rows


@pytest.mark.parametrize("handlers", [None, "{}"])
def test_handlers_are_written_by_a_heartbeat_that_has_them(handlers: str | None) -> None:
    transaction = _Beats()
    spanner_fleet.beat(transaction, WorkerInfo("w", "h:1", ("g",), handlers=handlers), 5)
    assert transaction.written == ([] if handlers is None else [["w", handlers]])


class _NoSessions:
    """A database that cannot be reached when a transaction wants a session."""

    def get_session(self, *_: Any) -> Any:
        raise api.NotFound("no such database")


def test_a_transaction_that_got_no_session_leaves_its_thread_usable() -> None:
    class Unreachable(_Database):
        _resource_info = None
        late_tag = "late"

        def __init__(self) -> None:
            self._local = threading.local()
            self._sessions_manager = _NoSessions()

    database = Unreachable()
    for _ in range(2):  # the second one was "nested"
        with pytest.raises(api.NotFound):
            database.run_in_transaction(lambda tx: None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Table not found: late_meta", SchemaMismatch), ("Database not found: d", api.NotFound)],
)
def test_a_database_without_our_tables_is_not_one_that_is_missing(
    text: str, expected: type[Exception]
) -> None:
    class Snapshot:
        def __enter__(self) -> Snapshot:
            return self

        def __exit__(self, *_: object) -> None: ...

        def execute_sql(self, _: str) -> list[tuple[str]]:
            return [("GOOGLE_STANDARD_SQL",)]

        def read(self, *_: object) -> None:
            raise api.NotFound(text)

    class Database:
        snapshot = Snapshot

    with pytest.raises(expected):
        spanner_guard.facts(Database(), URL)
