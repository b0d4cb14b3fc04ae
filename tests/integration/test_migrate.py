"""Migrations on real databases: repeatable, concurrent, printed, and equal to a fresh schema."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from late.app.app import App
from late.errors import (
    ConfigError,
    SchemaMismatch,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from late.model.ids import new_id
from late.schema import fresh, migrate
from late.schema.engine import make_engine, reading, writing
from late.schema.tables import NOW_US
from late.schema.version import OLDEST_SCHEMA, SCHEMA_VERSION, check
from late.testing import drain
from tests.servers import drop_database, fresh_database, postgres_url


@pytest.fixture(params=["sqlite", "postgresql"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A function that makes the URL of a new, empty database."""
    if request.param == "sqlite":
        numbers = iter(range(100))
        yield lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"
        return
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    made: list[str] = []

    def make() -> str:
        made.append(fresh_database(admin))
        return made[-1]

    yield make
    for url in made:
        drop_database(admin, url)


def _lines(url: str, statement: str) -> list[tuple[Any, ...]]:
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            return [tuple(row) for row in connection.execute(text(statement))]
    finally:
        engine.dispose()


def _execute(url: str, statement: str) -> None:
    engine = make_engine(url)
    with writing(engine) as connection:
        connection.execute(text(statement))
    engine.dispose()


POSTGRES_CATALOGUE = {
    "columns": """
        select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
               pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated
          from pg_attribute a join pg_class c on c.oid = a.attrelid
          left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
         where c.relnamespace = 'public'::regnamespace and a.attnum > 0 and not a.attisdropped
           and c.relkind in ('r', 'p')""",
    "relations": """
        select relname, relkind, relispartition, pg_get_expr(relpartbound, oid),
               case when relkind = 'p' then pg_get_partkeydef(oid) end, reloptions
          from pg_class
         where relnamespace = 'public'::regnamespace and relkind <> 'S'  -- as no functions""",
    "indexes": "select tablename, indexname, indexdef from pg_indexes where schemaname = 'public'",
    "constraints": """
        select conrelid::regclass::text, conname, contype, pg_get_constraintdef(oid)
          from pg_constraint where connamespace = 'public'::regnamespace""",
}


def _shape(url: str) -> dict[str, Any]:
    """Everything that the schema is: relations, columns, types, defaults, indexes, checks."""
    if url.startswith("postgresql"):
        # Without the partitions of the log: they are named by the transaction that made them, and
        # maintenance makes others.
        return {
            name: sorted(
                (row for row in _lines(url, sql) if not re.search(r"late_task_\d", repr(row))),
                key=repr,
            )
            for name, sql in POSTGRES_CATALOGUE.items()
        }
    engine = make_engine(url)
    with reading(engine) as connection:
        shape = _sqlite_shape(connection)
    engine.dispose()
    return shape


def _sqlite_shape(connection: Connection) -> dict[str, Any]:
    inspector = inspect(connection)
    shape: dict[str, Any] = {}
    for table in sorted(inspector.get_table_names()):
        columns = connection.exec_driver_sql(f"pragma table_xinfo({table})")
        indexes = connection.exec_driver_sql(f"pragma index_list({table})")
        made = connection.exec_driver_sql(
            f"select sql from sqlite_master where name = '{table}'"
        ).scalar_one()
        shape[table] = {
            # Without the ordinal: a column added later by a migration comes last.
            "columns": sorted(tuple(row)[1:] for row in columns),
            "indexes": sorted(tuple(row)[1:] for row in indexes),
            "autoincrement": "AUTOINCREMENT" in made,
            "without_rowid": "WITHOUT ROWID" in made.upper(),
            "checks": sorted(
                (str(c["name"]), c["sqltext"]) for c in inspector.get_check_constraints(table)
            ),
            "index_sql": sorted(
                re.sub(r"\s+", " ", row[0])
                for row in connection.exec_driver_sql(
                    "select sql from sqlite_master "
                    f"where type = 'index' and tbl_name = '{table}' and sql is not null"
                )
            ),
        }
    return shape


def _seeds(url: str) -> dict[str, Any]:
    return {
        "lane": _lines(url, "select name, first_shard, shards from late_lane"),
        "group": _lines(url, "select name from late_group"),
        "meta": _lines(url, "select key from late_meta where key <> 'xid_sample' order by key"),
        "version": _lines(url, "select value from late_meta where key = 'schema_version'"),
        "revision": _lines(url, "select version_num from late_revision"),
        "log": _lines(url, "select count(*) from late_task"),
    }


def test_a_fresh_schema_equals_a_migrated_one(urls: Any) -> None:
    migrated, built = urls(), urls()
    migrate.upgrade(migrated)
    engine = make_engine(built, create=True)
    with writing(engine) as connection:
        fresh.create(connection)
    engine.dispose()

    assert _shape(migrated) == _shape(built)
    assert _seeds(migrated) == _seeds(built)
    assert _seeds(migrated) == {
        "lane": [("default", 0, 8)],
        "group": [("default",)],
        "meta": [("deployment",), ("schema_oldest",), ("schema_version",)],
        "version": [(SCHEMA_VERSION,)],
        "revision": [(SCHEMA_VERSION,)],
        "log": [(0,)],
    }


def test_the_comparison_sees_a_difference(urls: Any) -> None:
    """The control of the test above: each kind of change is noticed."""
    for change in (
        "alter table late_meta add column extra text",
        "create index extra on late_dead (queue)",
        "drop index late_timer_held",
        "create table extra (id integer primary key, check (id > 0))",
    ):
        url = urls()
        migrate.upgrade(url)
        before = _shape(url)
        _execute(url, change)
        assert _shape(url) != before, change


def test_each_deployment_gets_a_name_of_its_own_and_now_is_the_databases(urls: Any) -> None:
    names = set()
    for url in (urls(), urls()):
        migrate.upgrade(url)
        ((name,),) = _lines(url, "select value from late_meta where key = 'deployment'")
        names.add(name)
        assert len(name) >= 32
        ((created,),) = _lines(url, "select created_at_us from late_group")
        assert isinstance(created, int)
        assert 1_700_000_000_000_000 < created < 4_000_000_000_000_000
    assert len(names) == 2


def test_running_again_changes_nothing(urls: Any) -> None:
    url = urls()
    assert migrate.upgrade(url) == migrate.revisions()
    before = _shape(url), _lines(url, "select * from late_meta order by key")
    assert migrate.upgrade(url) == []
    assert (_shape(url), _lines(url, "select * from late_meta order by key")) == before
    assert migrate.current(url) == SCHEMA_VERSION


def test_concurrent_runs_apply_each_revision_once(urls: Any) -> None:
    url = urls()
    barrier = threading.Barrier(4)
    applied: list[list[str]] = []
    errors: list[BaseException] = []

    def run() -> None:
        barrier.wait()
        try:
            applied.append(migrate.upgrade(url))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert sorted(applied) == [[], [], [], migrate.revisions()]
    assert migrate.current(url) == SCHEMA_VERSION


def test_a_failed_run_leaves_nothing_behind(urls: Any) -> None:
    url = urls()
    engine = make_engine(url, create=True)
    with writing(engine) as connection:
        connection.execute(text("create table late_unique (mine integer)"))
    engine.dispose()
    with pytest.raises(StoreError, match="late_unique"):
        migrate.upgrade(url)
    assert migrate.current(url) is None
    ((columns,),) = _lines(url, "select count(*) from late_unique")
    assert columns == 0

    _execute(url, "drop table late_unique")
    assert migrate.upgrade(url) == migrate.revisions()


def _make(url: str, version: str) -> None:
    """Make the schema as it was at `version`."""
    config = migrate._config()
    engine = make_engine(url, create=True)
    with writing(engine) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, version)
    engine.dispose()


def test_a_database_of_every_earlier_version_comes_to_the_same_schema(urls: Any) -> None:
    fresh = urls()
    migrate.upgrade(fresh)
    for number, version in enumerate(migrate.revisions()[:-1], start=1):
        url = urls()
        _make(url, version)
        assert migrate.current(url) == version
        assert migrate.upgrade(url) == migrate.revisions()[number:]
        assert _shape(url) == _shape(fresh)


def test_tasks_that_wait_run_after_every_upgrade(urls: Any) -> None:
    ran: list[int] = []
    for version in migrate.revisions()[:-1]:
        url = urls()
        _make(url, version)
        for number in range(20):
            key = f'\'{{"ordering_key": "k{number % 3}"}}\'' if number % 2 else "null"
            shard, payload = number % 8, f'{{"number": {number}}}'
            _execute(
                url,
                "insert into late_task (shard_id, task_id, queue, name, payload, options) values "
                f"({shard}, '{new_id(shard)}', 'default', 'count', '{payload}', {key})",
            )
        migrate.upgrade(url)
        app = App(url)
        app.task(name="count")(_count(ran))
        assert drain(app) == {"done": 20}, version
        assert sorted(ran) == list(range(20))
        ran.clear()


def _count(ran: list[int]) -> Callable[[int], None]:
    def count(number: int) -> None:
        ran.append(number)

    return count


UNDOABLE = [
    "0019",
    "0018",
    "0017",
    "0016",
    "0015",
    "0014",
    "0013",
    "0012",
    "0011",
    "0010",
    "0009",
    "0008",
    "0007",
]


def test_going_back_gives_the_earlier_schema(urls: Any) -> None:
    url = urls()
    migrate.upgrade(url)
    for number, version in enumerate(UNDOABLE):
        to = max(each for each in migrate.revisions() if each < version)
        earlier = urls()
        _make(earlier, to)
        assert migrate.downgrade(url, to) == [version], number
        assert migrate.current(url) == to
        assert migrate.downgrade(url, to) == []
        with pytest.raises(ConfigError, match=f"is at {to}: `late migrate` goes forward"):
            migrate.downgrade(url, version)
        assert _shape(url) == _shape(earlier)
        assert _functions(url) == _functions(earlier)
    assert migrate.upgrade(url) == UNDOABLE[::-1]


def _functions(url: str) -> list[tuple[Any, ...]]:
    if url.startswith("sqlite"):
        return []
    return _lines(
        url,
        "select proname, prosrc from pg_proc where proname like 'late%' order by 1, 2",
    )


def test_tasks_that_wait_run_after_going_back_and_forth(urls: Any) -> None:
    ran: list[int] = []
    url = urls()
    migrate.upgrade(url)
    app = App(url)
    count = app.task(name="count")(_count(ran))
    engine = make_engine(url)
    with writing(engine) as connection:
        for number in range(20):
            count.options(ordering_key=f"k{number % 3}").enqueue(connection, number)
    engine.dispose()

    assert migrate.downgrade(url, "0006") == UNDOABLE
    with pytest.raises(SchemaMismatch, match="0006"):
        drain(app)
    assert migrate.upgrade(url) == UNDOABLE[::-1]
    assert drain(app) == {"done": 20}
    assert sorted(ran) == list(range(20))


def test_going_back_is_refused_where_something_would_be_lost(urls: Any) -> None:
    url = urls()
    migrate.upgrade(url)
    with pytest.raises(ConfigError, match="0006 has no way back: restore a backup"):
        migrate.downgrade(url, "0005")
    with pytest.raises(ConfigError, match="no revision '7': there are 0001 to"):
        migrate.downgrade(url, "7")
    now_us = NOW_US["sqlite" if url.startswith("sqlite") else "postgresql"]
    _execute(
        url,
        "insert into late_worker (worker_id, expires_at_us, started_at_us, address, capacity, "
        f"version, consumer_groups) values ('w', {now_us} + 60000000, 0, '', 1, '', '[]')",
    )
    with pytest.raises(StoreRefused, match=r"workers are running \(1\): stop them first"):
        migrate.downgrade(url, "0007")
    assert migrate.current(url) == SCHEMA_VERSION


def test_the_services_own_alembic_table_is_left_alone(urls: Any) -> None:
    url = urls()
    engine = make_engine(url, create=True)
    with writing(engine) as connection:
        connection.execute(text("create table alembic_version (version_num varchar(32))"))
        connection.execute(text("insert into alembic_version values ('theirs')"))
    engine.dispose()
    migrate.upgrade(url)
    assert _lines(url, "select * from alembic_version") == [("theirs",)]


def test_the_printed_script_makes_the_same_schema(urls: Any) -> None:
    migrated, scripted = urls(), urls()
    migrate.upgrade(migrated)
    script = migrate.sql(scripted)
    if scripted.startswith("sqlite"):
        connection = sqlite3.connect(scripted.removeprefix("sqlite:///"))
        connection.executescript(script)
        connection.close()
    else:
        import psycopg

        with psycopg.connect(scripted, autocommit=True) as connection:
            connection.execute(script)
    assert _shape(scripted) == _shape(migrated)
    assert _seeds(scripted) == _seeds(migrated)
    assert migrate.upgrade(scripted) == []


def test_printing_connects_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    assert "CREATE TABLE late_task" in migrate.sql(f"sqlite:///{path}")
    assert not path.exists()
    printed = migrate.sql("postgresql://nobody:hidden@127.0.0.1:1/none")
    assert "PARTITION BY RANGE (xid)" in printed
    assert "hidden" not in printed


def test_a_newer_schema_is_refused_and_left_alone(urls: Any) -> None:
    url = urls()
    migrate.upgrade(url)
    _execute(
        url, "update late_meta set value = '9999' where key in ('schema_version', 'schema_oldest')"
    )
    with pytest.raises(SchemaMismatch, match=r"9999.*upgrade late"):
        migrate.upgrade(url)
    assert migrate.current(url) == "9999"


def test_a_damaged_late_meta_is_named(urls: Any) -> None:
    url = urls()
    migrate.upgrade(url)
    _execute(url, "delete from late_meta where key = 'schema_version'")
    with pytest.raises(SchemaMismatch, match="schema_version"):
        migrate.upgrade(url)


def test_no_schema_is_none_and_not_an_error(urls: Any) -> None:
    url = urls()
    if url.startswith("sqlite"):
        with pytest.raises(StoreUnavailable, match="no database file"):
            migrate.current(url)
        make_engine(url, create=True).connect().close()
    assert migrate.current(url) is None


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (None, "run `late migrate URL`"),
        ("0000", "run `late migrate URL`"),
        ("0001", "run `late migrate URL`"),
        ("9999", "upgrade late"),
        ("head", "never writes"),
        ("", "never writes"),
    ],
)
def test_check_says_what_to_do(version: str | None, words: str) -> None:
    with pytest.raises(SchemaMismatch, match=words):
        check(version, where="shop.db")
    check(SCHEMA_VERSION)


def test_revisions_are_numbered_marked_and_independent_of_the_tables() -> None:
    script = ScriptDirectory(str(migrate.directory()))
    numbers = [revision.revision for revision in script.walk_revisions()][::-1]
    assert numbers == migrate.revisions() == sorted(set(numbers))
    assert numbers[-1] == SCHEMA_VERSION
    no_old_code = {r.revision for r in script.walk_revisions() if r.module.phase == "post"}
    assert max(no_old_code) <= OLDEST_SCHEMA <= SCHEMA_VERSION
    for revision in script.walk_revisions():
        assert revision.module.phase in ("pre", "post"), revision
        source = Path(revision.path).read_text()
        assert not re.search(r"^\s*(from|import) late", source, re.MULTILINE), revision


def test_the_schema_version_needs_no_alembic() -> None:
    """Opening a store checks the version: that must not cost Alembic's import."""
    code = "import sys, late.schema.version; sys.exit('alembic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
