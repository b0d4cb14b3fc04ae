"""The databases under measurement: a fresh one per measurement, and the bare work on each.

The bare work is the limit of the same run: what the same driver does with the same rows on the same
machine at the same moment, without any queue. Absolute numbers of a shared machine say little;
ratios to a limit that was measured a second earlier say more.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from bench.binary_copy import encoded
from late.schema import migrate

Row = tuple[int, str, str, str, bytes]
"""A row like that of the task log: shard, task id, queue, name, payload."""

PAGE = 1_000
_COPY = "copy bare (shard, task_id, queue, name, payload) from stdin"
_BY_HAND = "insert into late_task (shard_id, task_id, queue, name, payload) values"


@contextmanager
def transaction(connection: Any) -> Iterator[Any]:
    """Commits at the end of the block, rolls back if it raises; the connection stays open."""
    try:
        yield connection
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


class Target(Protocol):
    """One kind of database."""

    name: str

    def fresh(self) -> str:
        """URL of an empty database with the schema of late and a table `business`."""

    def connect(self, url: str) -> Any:
        """A native connection; `transaction(connection)` is a transaction on it."""

    def business(self, connection: Any, number: int) -> None:
        """Write one row of the service's own."""

    def task_by_hand(self, connection: Any, row: Row) -> None:
        """Write one row of the task log with the driver alone."""

    def versions(self) -> str: ...

    def write_rate(self, rows: Sequence[Row]) -> float:
        """Rows per second of a bare bulk write, given row by row as Python values, in transactions
        of `PAGE` rows."""

    def commit_rate(self, count: int) -> float:
        """Transactions per second of two bare inserts each, on one connection."""

    def drain_rate(self, rows: Sequence[Row]) -> float:
        """Rows per second of the bare loop: read a page, delete it, commit."""

    def clear(self) -> None:
        """Remove what was made: a database that is vacuumed disturbs what is measured next."""

    def written_bytes(self, url: str) -> int:
        """Bytes the database has written to its log so far."""


class Sqlite:
    """A file per measurement; WAL, synchronous=FULL, as the promises need it."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fresh(self) -> str:
        path = self._folder / f"{secrets.token_hex(4)}.db"
        url = f"sqlite:///{path}"
        migrate.upgrade(url)
        with closing(self.connect(url)) as connection:
            connection.execute("create table business (id integer primary key, note text)")
        return url

    def connect(self, url: str) -> sqlite3.Connection:
        path = url.removeprefix("sqlite:///")
        connection = sqlite3.connect(path, timeout=30, check_same_thread=False)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        return connection

    def business(self, connection: sqlite3.Connection, number: int) -> None:
        connection.execute("insert into business values (?, ?)", (number, "order"))

    def task_by_hand(self, connection: sqlite3.Connection, row: Row) -> None:
        connection.execute(f"{_BY_HAND} (?, ?, ?, ?, ?)", row)

    def versions(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    def clear(self) -> None:
        for path in (*self._folder.glob("*.db*"), *self._folder.glob("*.bare*")):
            path.unlink(missing_ok=True)

    def _bare(self) -> sqlite3.Connection:
        connection = self.connect(f"sqlite:///{self._folder / secrets.token_hex(4)}.bare")
        connection.execute(
            "create table bare (seq integer primary key autoincrement, shard integer,"
            " task_id text, queue text, name text, payload blob)"
        )
        connection.execute("create table business (id integer primary key, note text)")
        return connection

    def _write(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        for start in range(0, len(rows), PAGE):
            with transaction(connection):
                connection.executemany(
                    "insert into bare (shard, task_id, queue, name, payload)"
                    " values (?, ?, ?, ?, ?)",
                    rows[start : start + PAGE],
                )

    def write_rate(self, rows: Sequence[Row]) -> float:
        with closing(self._bare()) as connection:
            began = time.perf_counter()
            self._write(connection, rows)
            return len(rows) / (time.perf_counter() - began)

    def commit_rate(self, count: int) -> float:
        with closing(self._bare()) as connection:
            began = time.perf_counter()
            for number in range(count):
                with transaction(connection):
                    self.business(connection, number)
                    connection.execute(
                        "insert into bare (shard, payload) values (?, ?)", (0, b"x" * 120)
                    )
            return count / (time.perf_counter() - began)

    def drain_rate(self, rows: Sequence[Row]) -> float:
        with closing(self._bare()) as connection:
            self._write(connection, rows)
            began = time.perf_counter()
            seen = 0
            while True:
                with transaction(connection):
                    page = connection.execute(
                        "select * from bare order by seq limit ?", (PAGE,)
                    ).fetchall()
                    if not page:
                        break
                    seen += len(page)
                    connection.execute("delete from bare where seq <= ?", (page[-1][0],))
            return seen / (time.perf_counter() - began)

    def written_bytes(self, url: str) -> int:
        wal = Path(url.removeprefix("sqlite:///") + "-wal")
        return wal.stat().st_size if wal.exists() else 0


class Postgres:
    """A database per measurement on a running server, with its own settings left as they are."""

    name = "postgresql"

    def __init__(self, admin_url: str) -> None:
        self._admin = admin_url.replace("postgresql+psycopg://", "postgresql://")
        self._made: list[str] = []

    def _create(self) -> str:
        name = f"bench_{secrets.token_hex(4)}"
        with closing(self.connect(self._admin, autocommit=True)) as connection:
            connection.execute(f"create database {name}")
        self._made.append(name)
        base, mark, query = self._admin.partition("?")
        return base.rsplit("/", 1)[0] + "/" + name + mark + query

    def empty(self) -> str:
        """URL of a database with nothing in it."""
        return self._create()

    def clear(self) -> None:
        self._drop(*self._made)
        self._made.clear()

    def drop(self, url: str) -> None:
        """Remove one that was made, while others are in use."""
        name = url.partition("?")[0].rpartition("/")[2]
        self._made.remove(name)
        self._drop(name)

    def _drop(self, *names: str) -> None:
        with closing(self.connect(self._admin, autocommit=True)) as connection:
            for name in names:
                connection.execute(f"drop database if exists {name} with (force)")

    def fresh(self) -> str:
        url = self._create()
        migrate.upgrade(url)
        with closing(self.connect(url)) as connection, transaction(connection):
            connection.execute("create table business (id bigint primary key, note text)")
        return url

    def connect(self, url: str, *, autocommit: bool = False) -> Any:
        import psycopg

        return psycopg.connect(url, autocommit=autocommit)

    def business(self, connection: Any, number: int) -> None:
        connection.execute("insert into business values (%s, %s)", (number, "order"))

    def task_by_hand(self, connection: Any, row: Row) -> None:
        connection.execute(f"{_BY_HAND} (%s, %s, %s, %s, %s)", row)

    def versions(self) -> str:
        import psycopg

        with closing(self.connect(self._admin)) as connection:
            settings = [
                f"{name}={connection.execute(f'show {name}').fetchone()[0]}"
                for name in ("fsync", "synchronous_commit", "shared_buffers")
            ]
            version = connection.execute("show server_version").fetchone()[0]
        return f"PostgreSQL {version} ({', '.join(settings)}), psycopg {psycopg.__version__}"

    def _bare(self) -> Any:
        connection = self.connect(self._create())
        connection.execute(
            "create table bare (seq bigint generated always as identity primary key,"
            " shard smallint, task_id uuid, queue text, name text, payload bytea)"
        )
        connection.execute("create table business (id bigint primary key, note text)")
        connection.commit()
        return connection

    def _write(self, connection: Any, rows: Sequence[Row]) -> None:
        for start in range(0, len(rows), PAGE):
            with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
                for row in rows[start : start + PAGE]:
                    copy.write_row(row)
            connection.commit()

    def write_rate(self, rows: Sequence[Row]) -> float:
        with closing(self._bare()) as connection:
            began = time.perf_counter()
            self._write(connection, rows)
            return len(rows) / (time.perf_counter() - began)

    def prepared_rate(self, rows: Sequence[Row]) -> float:
        """`write_rate` of rows that were encoded before the clock runs, in binary."""
        binary = f"{_COPY} (format binary)"
        pages = [encoded(rows[start : start + PAGE]) for start in range(0, len(rows), PAGE)]
        with closing(self._bare()) as connection:
            began = time.perf_counter()
            for page in pages:
                with connection.cursor() as cursor, cursor.copy(binary) as copy:
                    copy.write(page)
                connection.commit()
            return len(rows) / (time.perf_counter() - began)

    def commit_rate(self, count: int) -> float:
        with closing(self._bare()) as connection:
            began = time.perf_counter()
            for number in range(count):
                self.business(connection, number)
                connection.execute(
                    "insert into bare (shard, payload) values (%s, %s)", (0, b"x" * 120)
                )
                connection.commit()
            return count / (time.perf_counter() - began)

    def drain_rate(self, rows: Sequence[Row]) -> float:
        with closing(self._bare()) as connection:
            self._write(connection, rows)
            began = time.perf_counter()
            seen = 0
            with connection.cursor(binary=True) as cursor:
                while True:
                    page = cursor.execute(
                        "select * from bare order by seq limit %s", (PAGE,)
                    ).fetchall()
                    if not page:
                        break
                    seen += len(page)
                    cursor.execute("delete from bare where seq <= %s", (page[-1][0],))
                    connection.commit()
            return seen / (time.perf_counter() - began)

    def written_bytes(self, url: str) -> int:
        with closing(self.connect(url)) as connection:
            (lsn,) = connection.execute(
                "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"
            ).fetchone()
        return int(lsn)
