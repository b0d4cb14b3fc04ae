"""What is around the CockroachDB store: schema, producers, a worker's start, the control plane."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_mock_engine
from sqlalchemy.dialects import postgresql

from late.app.app import SCHEMES
from late.config import WorkerConfig, margin_s
from late.control import Filter
from late.control.dead_letters import dry_run as rehearsal
from late.control.sql import beyond_cursor as unread
from late.control.sql import per_shard as shardwise
from late.control.sql.rows import now_us
from late.errors import ConfigError
from late.model.task import NewTask, TaskId
from late.outbox import connections as connecting
from late.outbox.adapters import psycopg as through_psycopg
from late.outbox.adapters import sqlalchemy as through_sqlalchemy
from late.outbox.statements import COCKROACH
from late.schema import engine, migrate
from late.schema.tables import all_tables
from late.store.base import Features
from late.store.cockroach import store as cockroach
from late.store.cockroach.cursor import first_id

URL = "cockroachdb://late@h:26257/db"


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().rstrip(";").lower()


def test_the_migration_makes_the_tables_of_the_schema() -> None:
    printed = re.sub(r"(?m)^--.*$", "", migrate.sql(URL))
    script = [plain(part) for part in printed.split(";\n")]
    for found in [re.fullmatch(r"alter table (\w+) add column (.*)", part) for part in script]:
        if found is None:
            continue
        # A later revision has added the column; a table that is made at once has it at its end.
        table, column = found.groups()
        place = next(n for n, p in enumerate(script) if p.startswith(f"create table {table} "))
        head, key, tail = script[place].rpartition(", primary key")
        script[place] = f"{head}, {column}{key}{tail}"
    made: list[str] = []
    mock = create_mock_engine(
        engine.parse(URL), lambda ddl, *_: made.append(str(ddl.compile(dialect=mock.dialect)))
    )
    all_tables("cockroachdb").create_all(mock, checkfirst=False)

    tables = all_tables("cockroachdb").tables.values()
    assert len(made) == sum(1 + len(table.indexes) for table in tables)
    for statement in made:
        assert plain(statement) in script


def test_the_schema_has_nothing_of_postgresql_alone() -> None:
    script = migrate.sql(URL).lower()

    for word in ("xid8", "partition", "pg_", "cluster_logical_timestamp"):
        assert word not in script
    assert "primary key (shard_id, task_id)" in script
    assert "insert into late_meta (key, value) values ('schema_version'" in script


@pytest.mark.parametrize("url", [URL, URL.replace("cockroachdb", "cockroachdb+psycopg")])
def test_an_engine_speaks_its_dialect(url: str) -> None:
    made = engine.make_engine(url)
    assert (made.dialect.name, made.dialect.driver) == ("cockroachdb", "psycopg")
    found = through_sqlalchemy._dialect(made)  # type: ignore[arg-type]
    assert found is COCKROACH
    assert connecting.conninfo(url) == "postgresql://late@h:26257/db"
    assert "cockroachdb" in SCHEMES


class Connection:
    def __init__(self, crdb: str | None) -> None:
        self.pgconn = self
        self._crdb = crdb

    def parameter_status(self, name: bytes) -> str | None:
        return self._crdb if name == b"crdb_version" else None


def test_a_psycopg_connection_is_known_by_what_the_server_says() -> None:
    assert through_psycopg._dialect(Connection("CockroachDB CCL v25.2.1")) is COCKROACH
    assert through_psycopg._dialect(Connection(None)) is through_psycopg.NATIVE


def test_producers_send_text_and_casts() -> None:
    row = NewTask(3, TaskId(first_id(1)), "q", "n", b"\x00")
    for statement in (COCKROACH.tasks([row]), COCKROACH.tasks([row, row])):
        assert "%b" not in statement.sql
        assert "::uuid" in statement.sql


def test_a_worker_leaves_room_for_clocks_that_are_apart() -> None:
    other = Features(
        commit_order=True,
        delay_counts_from="commit",
        time_resolution_s=1.0,
        poll_min_s=1.0,
        group_commit=True,
        batch_size_max=1,
    )
    short = WorkerConfig(lease_ttl_s=2.0)
    assert margin_s(short, other.lease_margin_min_s) == short.margin_s == pytest.approx(0.2)
    assert margin_s(short, cockroach.FEATURES.lease_margin_min_s) == 0.5
    assert margin_s(
        WorkerConfig(lease_ttl_s=30.0), cockroach.FEATURES.lease_margin_min_s
    ) == pytest.approx(3.0)
    with pytest.raises(ConfigError, match="too short"):
        margin_s(WorkerConfig(lease_ttl_s=0.6), cockroach.FEATURES.lease_margin_min_s)


class Speaks:
    """A connection of the control plane, as far as a condition asks for one."""

    dialect = type("Dialect", (), {"name": "cockroachdb"})


@pytest.mark.parametrize(
    ("cursor", "parts"),
    [
        ("", ["<= 0000"]),
        ("70000000,80000000", ["<= 70000000000", "<= 80000000000", first_id(10_000_000)]),
        (
            f"70000000,80000000>90000000@1,{first_id(50_000_000)}",
            ["<= 90000000000", first_id(50_000_000)],
        ),
    ],
)
def test_the_backlog_is_what_no_pass_has_covered(cursor: str, parts: list[str]) -> None:
    speaks: Any = Speaks()
    condition = unread.beyond(speaks, 3, cursor)
    compiled = condition.compile(dialect=postgresql.dialect())
    text = str(compiled) + str(compiled.params)

    assert "crdb_internal_mvcc_timestamp" in text
    assert [part for part in parts if part not in text] == []


def test_a_bounded_count_of_dead_letters_ends_leg_by_leg() -> None:
    which = Filter(queue="mail", error="Timeout", until_us=7)
    legs = list(rehearsal._legs(which, [("default", 0), ("default", 1)]))
    dialect = engine.make_engine(URL).dialect
    text = plain(str(shardwise.within(legs, 9).compile(dialect=dialect)))
    assert text.count(" union all ") == 1
    assert text.count("order by late_dead.dead_at_us, late_dead.task_id limit") == 2
    assert re.search(r"\) as anon_2 limit \S+$", text), "and of both together"
    assert text.count("late_dead.dead_at_us < ") == 2
    assert "queue = " not in text, "it is asked of the rows that were looked at"


class Driver:
    """An engine with one connection, itself, that keeps what it is told."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.sent: list[str] = []
        self.options = options
        self.dialect = SimpleNamespace(name="cockroachdb")
        info = SimpleNamespace(server_version=230100)
        self.connection = SimpleNamespace(driver_connection=SimpleNamespace(info=info))

    def connect(self) -> Driver:
        return self

    def execution_options(self, **_: Any) -> AbstractContextManager[Driver]:
        return nullcontext(self)

    def get_execution_options(self) -> dict[str, Any]:
        return self.options

    def begin(self) -> AbstractContextManager[None]:
        return nullcontext()

    def exec_driver_sql(self, sql: str) -> None:
        self.sent.append(sql)

    def execute(self, statement: Any) -> Any:
        self.sent.append(str(statement))
        return SimpleNamespace(scalar_one=lambda: 7)


@pytest.mark.parametrize(
    ("options", "moment", "clock"),
    [
        ({}, None, "clock_timestamp()"),
        ({"late_stale_s": 10.0}, "follower_read_timestamp()", "cluster_logical_timestamp()"),
        ({"late_stale_s": 10.0, "late_at_us": 1_500_000}, "'1.500000'", None),
    ],
)
def test_a_stale_read_asks_a_follower(
    options: dict[str, Any], moment: str | None, clock: str | None
) -> None:
    """The moment of what is read is that of its transaction, and not of a clock."""
    made = engine.make_engine(URL, stale_s=10.0)
    assert made.get_execution_options()["late_stale_s"] == 10.0
    driver = Driver(options)
    reads: Any = driver
    with engine.reading(reads) as connection:
        now = now_us(connection)
    if moment is not None:
        assert driver.sent.pop(0) == f"set transaction as of system time {moment}"
    if clock is None:
        assert (now, driver.sent) == (1_500_000, [])
    else:
        (asked,) = driver.sent
        assert clock in asked
        assert now == 7
