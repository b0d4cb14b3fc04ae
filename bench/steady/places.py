"""The databases of `bench.steady`: a fresh one for each run, and a look at what it holds.

A look has what its store can tell; the rest is None, which the tables show as a dash.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import psycopg
from sqlalchemy import func, select

from bench import fleet
from bench.peers import cost
from bench.peers.environments import ROOT, Environment
from bench.peers.programs import Program
from bench.peers.roster import ADAPTERS
from bench.peers.workloads import Bench
from late.schema.engine import make_engine, reading
from late.schema.tables import settlement
from late.testing.servers import spanner

HERE = Path(__file__).resolve().parent
_BYTES = """
coalesce((select sum(pg_total_relation_size(relid))::bigint
            from pg_partition_tree(to_regclass('{table}'))),
         pg_total_relation_size(to_regclass('{table}')))"""
"""Bytes of a table with its partitions and indexes; null where it is not."""
_SIZES = f"""
select pg_database_size(current_database()), pg_total_relation_size('business'),
  (select count(*) from pg_stat_activity where datname = current_database()) - 1,
  {_BYTES.format(table="late_task")}, {_BYTES.format(table="late_settlement")}"""


@dataclass(frozen=True, slots=True)
class Look:
    """Counters and sizes at one moment; bytes and rows."""

    at_s: float
    wal_bytes: int | None = None
    inserted: int | None = None
    dead_rows: int | None = None
    database_bytes: int | None = None
    business_bytes: int | None = None
    connections: int | None = None
    log_bytes: int | None = None
    log_rows: int | None = None
    journal_bytes: int | None = None
    journal_rows: int | None = None
    """Rows that were ever written, by the numbers of the last ones."""
    server_cpu_s: float | None = None

    def since(self, before: Look) -> Look:
        return Look(*(_less(getattr(self, f.name), getattr(before, f.name)) for f in fields(self)))

    @property
    def kept_bytes(self) -> int | None:
        """The database without the service's own table and without late's log, whose ranges leave
        whole: a short run ends in the middle of one."""
        queue_bytes = _less(self.database_bytes, self.business_bytes)
        return _less(queue_bytes, self.log_bytes or 0)


def _less(after: Any, before: Any) -> Any:
    return None if after is None or before is None else after - before


class Place(Protocol):
    """One queue on one store."""

    name: str
    title: str
    store: str
    ours: bool
    """It is late, whose tables can be looked into."""

    def fresh(self, **variables: str) -> Any:
        """A context with a `Program` on an empty database; `variables` are for its processes."""

    def left(self, url: str, count: int) -> int:
        """Return how many of `count` tasks the storage does not know as finished."""

    def look(self, url: str) -> Look: ...

    def versions(self) -> str: ...


def ours(variables: Mapping[str, str]) -> Environment:
    """The environment of late's own program on any store."""
    path = os.pathsep.join(map(str, (ADAPTERS, HERE, ROOT)))
    command = (sys.executable, str(HERE / "on_store.py"))
    return Environment(command, ROOT, {"PYTHONPATH": path} | dict(variables))


def _ours_left(url: str, count: int) -> int:
    return count - fleet.outcomes(url)["done"]


def journal_rows(url: str) -> int:
    """Rows of the journal that were ever written: each series is numbered without a gap."""
    engine = make_engine(url)
    key = settlement.c.consumer_group, settlement.c.shard_id
    last = select(func.max(settlement.c.seq)).group_by(*key)
    with reading(engine) as connection:
        found = sum(connection.execute(last).scalars())
    engine.dispose()
    return int(found)


class OnPostgres:
    """late or another queue on PostgreSQL."""

    store = "PostgreSQL"

    def __init__(self, bench: Bench) -> None:
        self.name = bench.peer.name
        self.title = bench.peer.title
        self.ours = bench.peer.kind == "self"
        self._bench = bench

    @contextmanager
    def fresh(self, **variables: str) -> Iterator[Program]:
        bench = self._bench
        if self.ours:
            bench = replace(bench, environment=ours(variables))
        with bench.fresh() as (program, _):
            yield program

    def left(self, url: str, count: int) -> int:
        if self.ours:
            return _ours_left(url, count)
        with self._bench.watch(url, count) as left:
            return left()

    def look(self, url: str) -> Look:
        counted = cost.counters(url)
        statement: Any = _SIZES
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            row: Any = connection.cursor().execute(statement).fetchone()
            log_rows: Any = (None,)
            if self.ours:
                log_rows = connection.execute("select count(*) from late_task").fetchone()
        database, business, connections, log, journal = row
        return Look(
            at_s=time.monotonic(),
            wal_bytes=counted.wal_bytes,
            inserted=counted.inserted,
            dead_rows=counted.updated + counted.deleted,
            database_bytes=database,
            business_bytes=business,
            connections=connections,
            log_bytes=log,
            log_rows=log_rows[0],
            journal_bytes=journal,
            journal_rows=journal_rows(url) if self.ours else None,
            server_cpu_s=cost.cpu_s(cost.postmaster(url)),
        )

    def versions(self) -> str:
        return self._bench.server.versions()


class OnSqlite:
    """late on SQLite. There is no server, and its log is a ring whose size says nothing."""

    name = title = "late"
    store = "SQLite"
    ours = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def fresh(self, **variables: str) -> Iterator[Program]:
        path = self._folder / f"{secrets.token_hex(4)}.db"
        program = Program(ours(variables), f"sqlite:///{path}", "", self._folder)
        program.run("prepare")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("create table business (id integer primary key, note text)")
        os.sync()
        try:
            yield program
        finally:
            for file in self._folder.glob(f"{path.name}*"):
                file.unlink()

    def left(self, url: str, count: int) -> int:
        return _ours_left(url, count)

    def look(self, url: str) -> Look:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection:
            (pages, size, free), log_rows = (
                [connection.execute(f"pragma {name}").fetchone()[0] for name in
                 ("page_count", "page_size", "freelist_count")],
                connection.execute("select count(*) from late_task").fetchone()[0],
            )  # fmt: skip
            business, log, journal = (
                _sqlite_bytes(connection, name)
                for name in ("business", "late_task", "late_settlement")
            )
        return Look(
            at_s=time.monotonic(),
            database_bytes=(pages - free) * size,
            business_bytes=business,
            log_bytes=log,
            log_rows=log_rows,
            journal_bytes=journal,
            journal_rows=journal_rows(url),
        )

    def versions(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"


def _sqlite_bytes(connection: sqlite3.Connection, table: str) -> int | None:
    """Bytes of the pages of a table and its indexes, where the library can tell."""
    statement = """select sum(pgsize) from dbstat
                    where name in (select name from sqlite_master where tbl_name = ?)"""
    try:
        found = connection.execute(statement, (table,)).fetchone()[0]
    except sqlite3.OperationalError:
        return None  # built without this table
    return int(found or 0)


class OnSpanner:
    """late on Spanner's emulator: operations are counted; its times and bytes say nothing."""

    name = title = "late"
    store = "Spanner's emulator"
    ours = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts = folder / "spanner-counts.json"

    @contextmanager
    def fresh(self, **variables: str) -> Iterator[Program]:
        from late.store.spanner.client import close_database, open_database

        for file in self._files():
            file.unlink()
        given = variables | {"BENCH_COUNTED": str(self._counts)}
        with ExitStack() as stack:
            url = spanner.create_database(migrated=True)
            stack.callback(spanner.drop_database, url)
            database: Any = open_database(url, priority="foreground")
            made = "create table business (id int64, note string(max)) primary key (id)"
            database.update_ddl([made]).result(60)
            close_database(database)
            yield Program(ours(given), url, "", self._folder)

    def left(self, url: str, count: int) -> int:
        return _ours_left(url, count)

    def look(self, url: str) -> Look:
        return Look(at_s=time.monotonic(), journal_rows=journal_rows(url))

    def operations(self) -> Counter[str]:
        """Calls of all workers to Spanner's API so far, and values that their commits wrote."""
        found: Counter[str] = Counter()
        for file in self._files():
            found.update(json.loads(file.read_text()))
        return found

    def _files(self) -> list[Path]:
        files = self._folder.glob(f"{self._counts.name}.*")
        return [file for file in files if file.suffix != ".draft"]

    def versions(self) -> str:
        return "Spanner's emulator"
