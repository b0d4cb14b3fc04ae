"""The stores that the suite runs against, one entry each, and how a test gets behind their back.

A new store is one more `Backend` in `BACKENDS`. Everything here is what a *producer*, an operator
or a fault would do with the database itself; the tests see only this and the seam.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import pytest

from late import outbox
from late.model.task import NewTask
from tests.support import sqlite


class Raw:
    """A connection of somebody else's: autocommit until `begin`, one statement at a time."""

    def __init__(self, connection: Any, *, mark: str = "?", begin: str = "begin") -> None:
        self._connection = connection
        self._mark = mark
        self._begin = begin

    def begin(self) -> None:
        self.execute(self._begin)

    def commit(self) -> None:
        self.execute("commit")

    def rollback(self) -> None:
        self.execute("rollback")

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement with `?` for its values; all rows, none where it returns none."""
        cursor = self._connection.execute(statement.replace("?", self._mark), values)
        return [] if cursor.description is None else cursor.fetchall()

    def insert(self, *tasks: NewTask) -> None:
        """What a producer does, through the adapter that a producer uses."""
        for start in range(0, len(tasks), 1000):
            outbox.insert(self._connection, tasks[start : start + 1000], autocommit=True)

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True)
class Backend:
    """One kind of database."""

    name: str
    create: Callable[[Path], str]
    """Make a database with the current schema and return its URL; skips where none can be had."""
    create_empty: Callable[[Path], str]
    """The same without a schema."""
    drop: Callable[[str], None]
    raw: Callable[[str], Raw]
    make_old: Callable[[Raw], None]
    """Make every row of the log look years old, without changing what else it is."""
    prunes_rows: bool
    """Whether settled rows go one by one, so that a test sees them go; else whole partitions."""
    version: Callable[[], str]
    """What it is that the suite ran against, for the table of stores."""
    savepoints: bool = True
    emulated: bool = False
    """Whether this is a service's emulator, which has one read-write transaction at a time: tests
    that measure themselves in tasks take fewer."""
    network: Literal["", "tcp", "grpc"] = ""
    """What lies before it, for faults to happen in; nothing where it is a file."""
    two_phases: bool = False
    """Whether a transaction can be prepared by one session and ended by another."""
    resizes: bool = True
    """Whether a lane can be resized while it works."""
    keeps_past: bool = False
    """Whether it can be read as it was a while ago."""


def _created_long_ago(raw: Raw) -> None:
    raw.execute("update late_task set created_at_us = 1")


# --- SQLite --------------------------------------------------------------------------------------


def _sqlite_create(directory: Path) -> str:
    return sqlite.database(directory / "conformance.db")


def _sqlite_empty(directory: Path) -> str:
    path = directory / "empty.db"
    sqlite3.connect(path).close()
    path.touch()
    return f"sqlite:///{path}"


def _sqlite_raw(url: str) -> Raw:
    path = url.removeprefix("sqlite:///")
    connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
    return Raw(connection, begin="begin immediate")


# --- PostgreSQL ----------------------------------------------------------------------------------


def _postgres_admin() -> str:
    from tests import servers

    url = servers.postgres_url()
    if url is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install a server")
    return url


def _postgres_create(_: Path) -> str:
    from tests import servers

    return servers.migrated_database(_postgres_admin())


def _postgres_empty(_: Path) -> str:
    from tests import servers

    return servers.fresh_database(_postgres_admin())


def _postgres_drop(url: str) -> None:
    from tests import servers

    servers.drop_database(_postgres_admin(), url)


def _postgres_raw(url: str) -> Raw:
    import psycopg

    # Behind a PgBouncer before version 1.21 a prepared statement is in somebody else's session.
    connection = psycopg.connect(
        url.replace("+psycopg", ""), autocommit=True, prepare_threshold=None
    )
    return Raw(connection, mark="%s")


def _postgres_version() -> str:
    import psycopg

    with psycopg.connect(_postgres_admin().replace("+psycopg", "")) as connection:
        number = connection.info.server_version
    return f"PostgreSQL {number // 10_000}.{number % 10_000}"


# --- CockroachDB ---------------------------------------------------------------------------------


def _cockroach_create(*, migrated: bool) -> str:
    from tests import servers

    return servers.cockroach_database(migrated=migrated)


def _cockroach_drop(url: str) -> None:
    from tests import servers

    servers.cockroach_drop(url)


def _cockroach_raw(url: str) -> Raw:
    from tests import servers

    return Raw(servers.cockroach_connection(url), mark="%s")


def _cockroach_version() -> str:
    from tests import servers

    with servers.cockroach_connection(servers.cockroach_url()) as connection:
        row = connection.execute("select version()").fetchone()
    return " ".join(str(row[0] if row else "").split()[:3])


# --- Spanner -------------------------------------------------------------------------------------


def _spanner_create(*, migrated: bool) -> str:
    from late.testing.servers import spanner
    from tests import servers

    if servers.spanner_host() is None:
        pytest.skip("no Spanner emulator: install it with gcloud or set SPANNER_EMULATOR_HOST")
    if not migrated:
        return spanner.create_database(migrated=False)
    from tests.support import spanner as copies

    return copies.database()


def _spanner_drop(url: str) -> None:
    from late.testing.servers import spanner

    spanner.drop_database(url)


def _spanner_raw(url: str) -> Raw:
    from tests.conformance.spanner_raw import SpannerRaw

    return SpannerRaw(url)


def _spanner_version() -> str:
    return f"the official emulator, google-cloud-spanner {metadata.version('google-cloud-spanner')}"


def _committed_long_ago(raw: Raw) -> None:
    columns = "shard_id, task_id, queue, name, payload"
    raw.execute(
        f"insert into late_task (created_at, {columns})"
        f" select timestamp '2020-01-01T00:00:00Z', {columns} from late_task"
    )
    raw.execute("delete from late_task where created_at > timestamp '2020-01-01T00:00:00Z'")


BACKENDS: Sequence[Backend] = (
    Backend(
        name="cockroach",
        create=lambda _: _cockroach_create(migrated=True),
        create_empty=lambda _: _cockroach_create(migrated=False),
        drop=_cockroach_drop,
        raw=_cockroach_raw,
        make_old=_created_long_ago,
        prunes_rows=True,
        version=_cockroach_version,
        network="tcp",
        resizes=False,
    ),
    Backend(
        name="sqlite",
        create=_sqlite_create,
        create_empty=_sqlite_empty,
        drop=lambda url: None,  # the directory is the test's own
        raw=_sqlite_raw,
        make_old=_created_long_ago,
        prunes_rows=True,
        version=lambda: f"SQLite {sqlite3.sqlite_version}",
    ),
    Backend(
        name="postgres",
        create=_postgres_create,
        create_empty=_postgres_empty,
        drop=_postgres_drop,
        raw=_postgres_raw,
        make_old=_created_long_ago,
        prunes_rows=False,
        version=_postgres_version,
        network="tcp",
        two_phases=True,
    ),
    Backend(
        name="spanner",
        create=lambda _: _spanner_create(migrated=True),
        create_empty=lambda _: _spanner_create(migrated=False),
        drop=_spanner_drop,
        raw=_spanner_raw,
        make_old=_committed_long_ago,
        prunes_rows=True,
        version=_spanner_version,
        savepoints=False,
        emulated=True,
        network="grpc",
        keeps_past=True,
    ),
)
