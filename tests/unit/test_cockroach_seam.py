"""The CockroachDB store on a connection that answers what the test says: the errors that only a
cluster gives, and what is sent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel, crdb, errors

from late.errors import (
    ConfigError,
    SchemaMismatch,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TransactionAborted,
)
from late.model.task import Cursor, Epoch, OpenTask, ShardId, TaskId
from late.schema.version import SCHEMA_VERSION
from late.store import open_store
from late.store.base import Settlement, SettleResult
from late.store.cockroach import statements as cockroach_sql
from late.store.cockroach import store as cockroach
from late.store.cockroach.connection import TRIES, connect, conninfo_of, is_repeated, repeated
from late.store.cockroach.cursor import CockroachWindow, first_id
from late.store.cockroach.guard import CockroachGuard
from late.store.cockroach.journal import CockroachSettler, acquire
from late.store.cockroach.store import FEATURES, CockroachStore
from late.store.cockroach.tail import RowsRead, read
from late.store.postgres.connection import CountedCursor, translate

SHARD = ShardId(3)
NOW_US = 1_800_000_000_000_000


class Ambiguous(errors.OperationalError):
    """40003, for which psycopg has a class of its own too; this one is built from the code."""

    sqlstate = "40003"


class Answer:
    def __init__(self, rows: list[Any], count: int) -> None:
        self.rows, self.rowcount = rows, count

    async def fetchall(self) -> list[Any]:
        return self.rows


class Fake:
    """A connection with a journal of one shard: enough of a database for the settle function.

    `faults` are raised one by one, each at the place that it names: a part of a statement, or
    "commit" before or "committed" after the transaction took effect.
    """

    def __init__(self, faults: list[tuple[str, Exception]] | None = None) -> None:
        self.faults = faults or []
        self.sent: list[str] = []
        self.journal: dict[int, str] = {1: "takeover"}
        self.groups = ["default"]
        self.deleted: list[str] = []
        self.now_us = NOW_US
        self.answers: dict[str, list[Any]] = {}

    def fail_at(self, place: str) -> None:
        if self.faults and self.faults[0][0] in place:
            raise self.faults.pop(0)[1]

    @asynccontextmanager
    async def transaction(self) -> Any:
        before = dict(self.journal), list(self.deleted)
        self.sent.append("begin")
        try:
            yield self
            self.fail_at("commit")
        except psycopg.Rollback:
            self.journal, self.deleted = before
            return
        except BaseException:
            self.journal, self.deleted = before
            raise
        self.sent.append("commit")
        self.fail_at("after the end")

    @asynccontextmanager
    async def pipeline(self) -> Any:
        yield

    def cursor(self, *, binary: bool) -> Any:
        assert binary
        return _Cursor(self)

    async def execute(
        self, statement: str, values: Any = None, *, prepare: bool | None = None
    ) -> Answer:
        self.sent.append(" ".join(statement.split()))
        self.fail_at(statement)
        for part, rows in self.answers.items():
            if part in statement:
                return Answer(rows, len(rows))
        if statement == cockroach_sql.SETTLE:
            fits = values["seq"] == max(self.journal) + 1
            if fits:
                self.journal[values["seq"]] = values["id"]
            return Answer([], int(fits))
        if "select settlement_id" in statement:
            found = self.journal.get(values[2])
            return Answer([(found,)] if found else [], 1)
        if statement == cockroach_sql.GROUPS:
            return Answer([(name,) for name in self.groups], 1)
        if statement == cockroach_sql.DELETE_SETTLED:
            if set(self.groups) <= set(values["groups"]):
                self.deleted += values["ids"]
                return Answer([], len(values["ids"]))
            return Answer([], 0)
        if "extract(epoch" in statement and statement.startswith("select ("):
            return Answer([(self.now_us,)], 1)
        return Answer([], 0)


class _Cursor:
    def __init__(self, fake: Fake) -> None:
        self._fake, self._answer = fake, Answer([], 0)

    async def execute(
        self, statement: str, values: Any = None, *, prepare: bool | None = None
    ) -> None:
        self._answer = await self._fake.execute(statement, values)

    async def fetchall(self) -> list[Any]:
        return self._answer.rows


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_: float) -> None: ...

    monkeypatch.setattr(repeated, "__kwdefaults__", {"pause": at_once})


def settlement(seq: int = 2, **changes: Any) -> Settlement:
    given: dict[str, Any] = {"cursor": Cursor("10,10"), "open": ()} | changes
    return Settlement("mine", "default", SHARD, seq, Epoch(1), "w1", **given)


START_AGAIN = errors.SerializationFailure("restart transaction")

FAULTS: dict[str, tuple[str, Exception]] = {
    "told to start again by a statement": ("insert into late_settlement", START_AGAIN),
    "told to start again at the commit": ("commit", START_AGAIN),
    "ambiguous and not committed": ("commit", Ambiguous("result is ambiguous")),
    "ambiguous and committed": ("after the end", Ambiguous("result is ambiguous")),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_settlement_is_written_once_whatever_it_is_told(name: str) -> None:
    fake = Fake([FAULTS[name]])
    handed = RowsRead()
    handed.add(SHARD, first_id(1), 9)

    result = await CockroachSettler(handed).settle(fake, settlement())  # type: ignore[arg-type]

    assert result is SettleResult.SETTLED
    assert fake.journal == {1: "takeover", 2: "mine"}
    assert fake.deleted == [first_id(1)]
    assert fake.faults == []


@pytest.mark.parametrize("name", FAULTS)
async def test_a_rival_fences_also_after_doubt(name: str) -> None:
    if "and committed" in name:
        fake = Fake([("commit", Ambiguous("result is ambiguous"))])
    else:
        fake = Fake([FAULTS[name]])
    handed = RowsRead()
    handed.add(SHARD, first_id(1), 9)
    real = fake.fail_at

    def overtaken(place: str) -> None:
        try:
            real(place)
        except psycopg.Error:
            raise
        finally:
            if not fake.faults:
                fake.journal.setdefault(2, "rival")

    fake.fail_at = overtaken  # type: ignore[method-assign]
    before = dict(fake.journal)

    result = await CockroachSettler(handed).settle(fake, settlement())  # type: ignore[arg-type]

    assert before == {1: "takeover"}
    assert result is SettleResult.FENCED
    assert fake.journal[2] == "rival"
    assert fake.deleted == [], "a fenced owner deletes nothing"
    assert handed.settled(SHARD, Cursor("10,10"), ()) == [], "it has nothing more to say here"


async def test_starting_again_has_an_end() -> None:
    fake = Fake([("commit", START_AGAIN)] * (TRIES + 1))
    with pytest.raises(errors.SerializationFailure) as raised:
        await CockroachSettler(RowsRead()).settle(fake, settlement())  # type: ignore[arg-type]

    assert fake.sent.count("begin") == TRIES
    assert fake.journal == {1: "takeover"}
    error = translate(raised.value, "CockroachDB")
    assert isinstance(error, TransactionAborted)
    assert error.transient


async def test_statements_of_its_connections_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Made:
        async def set_isolation_level(self, level: IsolationLevel) -> None:
            given["level"] = level

    async def made(**conninfo: Any) -> Made:
        given.update(conninfo)
        return Made()

    monkeypatch.setattr(crdb.AsyncCrdbConnection, "connect", made)
    await connect({"host": "h"})
    assert given["cursor_factory"] is CountedCursor
    assert given["level"] is IsolationLevel.SERIALIZABLE


async def test_pauses_grow_and_are_never_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def work() -> None:
        raise START_AGAIN

    monkeypatch.setattr("random.Random.uniform", lambda _, low, high: high)
    with pytest.raises(errors.SerializationFailure):
        await repeated(work, pause=pause)

    assert pauses == sorted(pauses)
    assert pauses == [pytest.approx(0.01 * 2**n) for n in range(1, TRIES)]


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (START_AGAIN, True),
        (Ambiguous("result is ambiguous"), True),
        (errors.DeadlockDetected("no such thing there"), False),
        (errors.UniqueViolation("taken"), False),
        (errors.NotNullViolation("null"), False),
        (errors.UndefinedTable("gone"), False),
        (errors.AdminShutdown("draining"), False),
        (psycopg.OperationalError("connection lost"), False),
        (TimeoutError(), False),
        (ValueError(), False),
    ],
)
async def test_only_two_codes_start_again(error: Exception, again: bool) -> None:
    assert is_repeated(error) is again
    calls = 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        raise error

    with pytest.raises(type(error)):
        await repeated(work)
    assert calls == (TRIES if again else 1)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("40001", TransactionAborted), ("40003", StoreUnavailable), ("57P01", StoreUnavailable),
        ("08006", StoreUnavailable), ("42P01", SchemaMismatch), ("28000", StoreRefused),
        ("XXUUU", StoreError),
    ],
)  # fmt: skip
def test_errors_come_out_as_ours(code: str, kind: type[StoreError]) -> None:
    error = psycopg.Error("first line\nDETAIL: a payload")
    error.sqlstate = code

    found = translate(error, "CockroachDB")

    assert type(found) is kind
    assert str(found).startswith("CockroachDB: first line")
    assert "payload" not in str(found)


async def test_what_another_group_needs_is_not_deleted() -> None:
    ids = [first_id(ms * 1_000) for ms in (1, 2, 3)]

    def handed() -> RowsRead:
        made = RowsRead()
        for number, task_id in enumerate(ids):
            made.add(SHARD, task_id, 5 + number)
        return made

    fake = Fake()
    fake.groups = ["audit", "default"]
    fake.answers["select s.cursor, s.open"] = []
    await CockroachSettler(handed()).settle(fake, settlement())  # type: ignore[arg-type]
    assert fake.deleted == [], "it has read nothing yet"

    # Covers the first two, and has the first still open.
    fake.answers["select s.cursor, s.open"] = [("6,6", f'[[1,"{ids[0]}"]]')]
    await CockroachSettler(handed()).settle(fake, settlement(3))  # type: ignore[arg-type]
    assert fake.deleted == [ids[1]]


async def test_a_group_that_appears_stops_the_deletes() -> None:
    fake = Fake()
    handed = RowsRead()
    settler = CockroachSettler(handed)
    handed.add(SHARD, first_id(1_000), 5)
    await settler.settle(fake, settlement())  # type: ignore[arg-type]
    assert len(fake.deleted) == 1

    fake.groups.append("audit")
    fake.answers["select s.cursor, s.open"] = []
    for seq in (3, 4):
        handed.add(SHARD, first_id(seq * 1_000), 5)
        await settler.settle(fake, settlement(seq))  # type: ignore[arg-type]
    assert len(fake.deleted) == 1


async def test_what_is_open_or_not_covered_is_not_deleted() -> None:
    ids = [first_id(ms * 1_000) for ms in (1, 2, 3)]
    handed = RowsRead()
    for moment, task_id in zip((5, 6, 11), ids, strict=True):
        handed.add(SHARD, task_id, moment)
    fake = Fake()

    opened = (OpenTask(1, TaskId(ids[1])),)
    await CockroachSettler(handed).settle(fake, settlement(open=opened))  # type: ignore[arg-type]

    assert fake.deleted == [ids[0]]


async def test_a_takeover_that_is_contested_goes_to_the_others() -> None:
    fake = Fake([("insert into late_lease", START_AGAIN)] * TRIES)
    fake.answers["select p.seq"] = [(7, 4, "10,10", "[]", None)]

    (lease,) = await acquire(fake, "w1", [("default", SHARD), ("default", ShardId(4))])  # type: ignore[arg-type]

    assert (lease.shard_id, lease.epoch, lease.seq) == (4, 5, 8)

    fake.faults = [("insert into late_lease", START_AGAIN)] * TRIES
    with pytest.raises(TransactionAborted, match="CockroachDB"):
        await acquire(fake, "w1", [("default", SHARD)])  # type: ignore[arg-type]


async def test_a_read_is_one_transaction_in_the_past() -> None:
    fake = Fake()
    cursors = {ShardId(0): Cursor(""), ShardId(1): Cursor(f"5,{NOW_US}"), SHARD: Cursor("5,6")}

    pages = await read(fake, cursors, 10, RowsRead())  # type: ignore[arg-type]

    at = NOW_US - 20_000
    begin, first, second, end = fake.sent[1:]
    assert begin == f"begin priority high, as of system time '{at}000.0000000000'"
    assert (first, second) == (" ".join(cockroach_sql.PAGE.split()),) * 2
    assert end == "commit"
    # Shard 1 was read by a gateway whose clock is ahead: this one has to wait.
    assert [(page.shard_id, page.cursor) for page in pages] == [
        (0, f"{at},{at}"),
        (3, f"{at},{at}"),
    ]


async def test_an_empty_recent_pass_is_no_news() -> None:
    fake = Fake()
    at = NOW_US - 20_000
    cursor = CockroachWindow(at - 1_000, at - 500).text
    assert await read(fake, {SHARD: cursor}, 10, RowsRead()) == []  # type: ignore[arg-type]

    inside = Cursor(f"{CockroachWindow(at - 1_000, at - 500, at - 100).mark}@1,{first_id(at)}")
    (page,) = await read(fake, {SHARD: inside}, 10, RowsRead())  # type: ignore[arg-type]
    assert page.cursor == f"{at - 1_000},{at - 100}", "or the pass would never end"


FORBIDDEN = ("cluster_logical_timestamp", "transaction_timestamp", "skip locked", "changefeed")


def test_no_statement_does_what_must_not_be_done() -> None:
    statements = {
        name: text.lower() for name, text in vars(cockroach_sql).items() if isinstance(text, str)
    }
    del statements["__doc__"]
    assert len(statements) > 20
    for name, text in statements.items():
        assert not [word for word in FORBIDDEN if word in text], name
        assert "update late_task" not in text, f"{name} gives a log row a new timestamp"


class Server:
    """What the guard asks of a connection."""

    def __init__(self, **changes: Any) -> None:
        self.meta = {"schema_version": SCHEMA_VERSION, "deployment": "d1"} | changes
        self.cluster: str | Exception = "c1"
        self.adopted: list[Any] = []
        self.info = type("Info", (), {"dbname": "db", "server_version": 250200})()
        self.pgconn = type("Conn", (), {"parameter_status": lambda *_: b"CockroachDB"})()

    async def execute(
        self, statement: str, values: Any = None, *, prepare: bool | None = None
    ) -> Answer:
        if statement == cockroach_sql.META:
            return Answer(list(self.meta.items()), 1)
        if statement == cockroach_sql.ADOPT:
            self.adopted.append(values)
        if isinstance(self.cluster, Exception):
            raise self.cluster
        return Answer([(self.cluster,)], 1)


async def test_the_guard_adopts_once_and_refuses_a_copy() -> None:
    new = Server()
    await CockroachGuard()(new)  # type: ignore[arg-type]
    assert new.adopted == [("identity", "c1")]
    await CockroachGuard()(Server(identity="c1"))  # type: ignore[arg-type]
    with pytest.raises(StoreRefused, match="late rebase"):
        await CockroachGuard()(Server(identity="c0"))  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [errors.InsufficientPrivilege("no"), errors.UndefinedFunction()])
async def test_a_cluster_that_hides_its_id_is_fine(error: Exception) -> None:
    server = Server(identity="c0")
    server.cluster = error
    await CockroachGuard()(server)  # type: ignore[arg-type]


def _postgres(server: Server) -> None:
    server.pgconn = type("Conn", (), {"parameter_status": lambda *_: None})()


def _old(server: Server) -> None:
    server.info.server_version = 220200


def _other_schema(server: Server) -> None:
    server.meta["schema_version"] = "0000"


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (_postgres, StoreRefused, "not CockroachDB"),
        (_old, StoreRefused, "v23.1"),
        (_other_schema, SchemaMismatch, "late migrate"),
    ],
)
async def test_the_guard_refuses(
    change: Callable[[Server], None], kind: type[StoreError], words: str
) -> None:
    server = Server()
    change(server)
    with pytest.raises(kind, match=words):
        await CockroachGuard()(server)  # type: ignore[arg-type]


async def test_another_deployment_at_the_address_is_refused() -> None:
    guard = CockroachGuard()
    await guard(Server(identity="c1"))  # type: ignore[arg-type]
    with pytest.raises(StoreRefused, match="another database"):
        await guard(Server(identity="c1", deployment="d2"))  # type: ignore[arg-type]


def test_urls() -> None:
    info = conninfo_of("cockroachdb+psycopg://u:s3cret@h:26257/db?sslmode=require")
    wanted = {"host": "h", "port": "26257", "dbname": "db", "user": "u", "sslmode": "require"}
    assert {name: info[name] for name in wanted} == wanted
    for bad in ("postgresql://h/db", "cockroachdb", "cockroachdb://u:s3cret%zz@h/db"):
        with pytest.raises(ConfigError) as raised:
            conninfo_of(bad)
        assert "s3cret" not in str(raised.value)
    assert isinstance(open_store("cockroachdb://u@h/db"), CockroachStore)
    with pytest.raises(ConfigError, match="3 or more"):
        CockroachStore("cockroachdb://u@h/db", connections=2)


def test_it_says_that_it_is_experimental() -> None:
    assert FEATURES.experimental
    assert FEATURES.lease_margin_min_s >= 0.5
    assert "never run on a real node" in (cockroach.__doc__ or "")
