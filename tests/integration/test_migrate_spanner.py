"""`late migrate` on Spanner: repeatable, concurrent, cut off, printed; and aborted writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core.exceptions import Aborted
from google.cloud.spanner_v1.transaction import Transaction
from sqlalchemy import inspect

from late.cli import main
from late.control import Control
from late.errors import SchemaMismatch, TransactionAborted
from late.schema import engine as engines
from late.schema import migrate
from late.schema.engine import make_engine, reading
from late.schema.spanner import ddl as spanner_ddl
from late.schema.spanner import migrate as spanner
from late.schema.tables import all_tables
from late.schema.version import OLDEST_SCHEMA, SCHEMA_VERSION
from late.testing.servers.spanner import create_database, drop_database
from tests import servers
from tests.integration.control_kit import execute, rows
from tests.support import spanner as copies

CATALOGUE = (
    "select table_name, column_name, spanner_type, is_nullable from information_schema.columns"
    " where table_schema = '' order by table_name, column_name",
    "select table_name, index_name, column_name, ordinal_position, column_ordering"
    " from information_schema.index_columns where table_schema = ''"
    " order by table_name, index_name, column_name",
    "select table_name, column_name, option_name, option_value"
    " from information_schema.column_options where table_schema = ''"
    " order by table_name, column_name, option_name",
)


@pytest.fixture
def empty() -> Iterator[str]:
    if servers.spanner_host() is None:
        pytest.skip("no Spanner emulator: install it with gcloud or set SPANNER_EMULATOR_HOST")
    made = create_database(migrated=False)
    yield made
    drop_database(made)


def shape(url: str) -> list[list[Any]]:
    return [rows(url, statement) for statement in CATALOGUE]


def seeds(url: str) -> list[list[Any]]:
    return [
        rows(url, "select name, first_shard, shards from late_lane"),
        rows(url, "select name from late_group"),
        rows(url, "select key, value from late_meta where key != 'deployment' order by key"),
    ]


VERSIONS = [("schema_oldest", OLDEST_SCHEMA), ("schema_version", SCHEMA_VERSION)]
SEEDS = [[("default", 0, 8)], [("default",)], VERSIONS]


def test_running_again_changes_nothing(empty: str) -> None:
    assert migrate.current(empty) is None
    assert migrate.upgrade(empty) == migrate.revisions()
    assert migrate.current(empty) == SCHEMA_VERSION
    assert seeds(empty) == SEEDS
    before = shape(empty), rows(empty, "select key, value from late_meta order by key")
    assert migrate.upgrade(empty) == []
    assert (shape(empty), rows(empty, "select key, value from late_meta order by key")) == before


def test_a_version_that_changes_nothing_on_spanner_is_applied(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, last = migrate.upgrade(empty)[-2:]
    monkeypatch.setitem(spanner_ddl.STATEMENTS, last, ())
    execute(empty, f"update late_meta set value = '{before}' where key = 'schema_version'")
    assert migrate.upgrade(empty) == [last]
    assert migrate.current(empty) == SCHEMA_VERSION


def test_a_database_of_other_tests_is_as_a_migrated_one(empty: str) -> None:
    """They take one that is made of the statements of a migrated one."""
    migrate.upgrade(empty)
    made = copies.database()
    try:
        assert (shape(made), seeds(made)) == (shape(empty), SEEDS)
        keys = "select name, length(peer_key), length(form_key) from late_secret"
        assert rows(made, keys) == rows(empty, keys) == [("1", 64, 64)]
        deployment = "select value from late_meta where key = 'deployment'"
        assert rows(made, deployment) != rows(empty, deployment)
    finally:
        drop_database(made)


def test_the_tables_have_the_columns_that_the_control_plane_knows(empty: str) -> None:
    migrate.upgrade(empty)
    engine = make_engine(empty)
    with reading(engine) as connection:
        inspector = inspect(connection)
        for table in all_tables("spanner+spanner").sorted_tables:
            columns = {
                column["name"]: column["nullable"] for column in inspector.get_columns(table.name)
            }
            assert columns == {c.name: bool(c.nullable) for c in table.c}, table.name
            key = inspector.get_pk_constraint(table.name)["constrained_columns"]
            assert key == [column.name for column in table.primary_key], table.name
    engine.dispose()


def test_runs_at_once_apply_each_version_once(empty: str) -> None:
    barrier = threading.Barrier(3, timeout=120)
    applied: list[list[str]] = []
    errors: list[BaseException] = []

    def run() -> None:
        barrier.wait()
        try:
            applied.append(migrate.upgrade(empty))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(applied) == [[], [], migrate.revisions()]
    assert seeds(empty) == SEEDS


def test_a_run_that_was_cut_off_is_finished_by_the_next(empty: str) -> None:
    """The tables without the version: Spanner's DDL is no part of the transaction behind it."""
    spanner_half = spanner_ddl.FIRST[: len(spanner_ddl.FIRST) // 2]
    with spanner._opened(empty) as database:
        database.update_ddl(spanner_half).result(30)
    assert migrate.current(empty) is None
    with Control(empty) as control, pytest.raises(SchemaMismatch, match="run `late migrate URL`"):
        control.status.read()
    assert migrate.upgrade(empty) == migrate.revisions()
    assert seeds(empty) == SEEDS


def test_a_database_of_the_first_version_is_brought_forward(empty: str) -> None:
    with spanner._opened(empty) as database:
        database.update_ddl(spanner_ddl.FIRST).result(30)
    execute(empty, "insert into late_meta (key, value) values ('schema_version', '0001')")
    assert migrate.upgrade(empty) == migrate.revisions()[1:]
    assert migrate.current(empty) == SCHEMA_VERSION
    test_the_tables_have_the_columns_that_the_control_plane_knows(empty)


def test_the_printed_script_makes_the_same_schema(
    empty: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["migrate", empty, "--sql"])
    assert ended.value.code == 0
    script = capsys.readouterr().out
    statements = [text.strip() for text in script.split(";\n") if text.strip()]
    with spanner._opened(empty) as database:
        database.update_ddl(statements).result(30)
    scripted = shape(empty)
    # What the script cannot have are the rows; a run adds them and finds the tables as they are.
    assert migrate.upgrade(empty) == migrate.revisions()
    assert shape(empty) == scripted
    assert seeds(empty) == SEEDS


def test_a_newer_schema_is_refused_and_left_alone(empty: str) -> None:
    migrate.upgrade(empty)
    execute(
        empty,
        "update late_meta set value = '9999' where key in ('schema_version', 'schema_oldest')",
    )
    with pytest.raises(SchemaMismatch, match=r"9999.*upgrade late"):
        migrate.upgrade(empty)
    assert migrate.current(empty) == "9999"


@pytest.fixture
def aborts(monkeypatch: pytest.MonkeyPatch) -> list[Aborted]:
    """As many of the next commits as it has errors are aborted, as under contention."""
    coming: list[Aborted] = []
    real = Transaction.commit

    def commit(self: Transaction, *args: Any, **kwargs: Any) -> Any:
        if coming:
            error = coming.pop()
            self.rollback()
            raise error
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Transaction, "commit", commit)
    return coming


def test_an_aborted_write_of_an_operator_is_begun_again(empty: str, aborts: list[Aborted]) -> None:
    migrate.upgrade(empty)
    aborts += [Aborted("others hold the locks")] * 3
    with Control(empty) as control:
        assert control.lanes.set_shards("default", 16).shards == 16
        assert aborts == []
        assert [lane.shards for lane in control.lanes.all()] == [16]


def test_what_is_always_aborted_ends_with_one_line(
    empty: str,
    aborts: list[Aborted],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    migrate.upgrade(empty)
    monkeypatch.setattr(engines, "REPEAT_S", 0.0)
    aborts += [Aborted("others hold the locks")] * 100
    with Control(empty) as control, pytest.raises(TransactionAborted):
        control.lanes.set_shards("default", 16)
    with pytest.raises(SystemExit) as ended:
        main(["shards", empty, "--set", "16"])
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("late: Spanner has aborted the transaction")
    assert "Run it again; the emulator takes one" in line
    aborts.clear()
    assert seeds(empty) == SEEDS
