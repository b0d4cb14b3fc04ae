"""The drill of `docs/backup.md`: a backup while everything runs, and a restore of it.

Each way is what the page says: SQLite's own backup, and `pg_dump` into a cluster that is younger,
so that its transaction ids count from lower on.
"""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from bench.fleet import Fleet, Load, outcomes, wait_settled
from bench.witness import witness
from late.app.app import App
from late.cli.main import app as command_line
from late.schema import migrate
from late.schema.engine import make_engine, write
from late.testing.servers.postgres import PostgresServer, find_binaries

PATIENCE_S = 120
HELD = 0
"""The number of the task that runs until it is let go."""
LATER = 1_000_000
"""The number of the task that is not due when the backup is made."""
SECOND_LOAD = 10_000


class Site(ABC):
    """A database, a backup of it, and where it is restored."""

    url: str

    @abstractmethod
    def backup(self) -> None: ...

    @abstractmethod
    def restore(self) -> str: ...


class SQLite(Site):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'shop.db'}"
        migrate.upgrade(self.url)

    def backup(self) -> None:
        source, target = (sqlite3.connect(self.folder / n) for n in ("shop.db", "backup.db"))
        source.backup(target)  # `.backup` of the shell is the same call
        source.close()
        target.close()

    def restore(self) -> str:
        (self.folder / "backup.db").rename(self.folder / "restored.db")
        return f"sqlite:///{self.folder / 'restored.db'}"


class Dump(Site):
    def __init__(self, server: PostgresServer, younger: PostgresServer) -> None:
        self.server, self.younger = server, younger
        self.url = made(server)
        with psycopg.connect(self.url, autocommit=True) as connection:
            for _ in range(300):
                connection.execute("select pg_current_xact_id()")

    def backup(self) -> None:
        file = self.server.folder / "shop.dump"
        self.server.run("pg_dump", "--format=custom", "--dbname", self.url, "--file", str(file))

    def restore(self) -> str:
        file = self.younger.folder / "shop.dump"
        file.write_bytes((self.server.folder / "shop.dump").read_bytes())
        file.chmod(0o644)
        with psycopg.connect(self.younger.url, autocommit=True) as connection:
            connection.execute("create database shop")
        url = self.younger.url_of("shop")
        self.younger.run("pg_restore", "--exit-on-error", "--dbname", url, str(file))
        return url


def made(server: PostgresServer) -> str:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("create database shop")
    url = server.url_of("shop")
    migrate.upgrade(url)
    return url


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


@contextmanager
def site(way: str, folder: Path) -> Iterator[Site]:
    if way == "sqlite":
        yield SQLite(folder)
        return
    if find_binaries() is None:
        pytest.skip("no PostgreSQL: binaries are needed to start a server of one's own")
    with PostgresServer() as server, PostgresServer() as younger:
        yield Dump(server, younger)


def late(*words: str) -> int:
    """Run a command of `late` here, and return its exit code."""
    code = CliRunner().invoke(command_line, words).exit_code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize("way", ["sqlite", "dump"])
def test_a_restore_loses_no_task_and_repeats_only_what_was_not_recorded(
    way: str, tmp_path: Path
) -> None:
    """Given a worker whose only slot is held, and a producer that goes on during the backup, when
    it is restored elsewhere and the original is gone, then every task that was committed before the
    backup has started before it or starts after the restore, what had only started starts again,
    and what was recorded before does not."""
    folders = tmp_path / "before", tmp_path / "after"
    for folder in folders:
        folder.mkdir()
    let_go = tmp_path / "let-go"
    with site(way, tmp_path) as here:
        slow = {"LATE_CONCURRENCY": "1", "BENCH_HOLD": str(let_go)}
        fleet = Fleet(here.url, folders[0], slow)
        try:
            first = fleet.start()
            committed(here.url, 1)
            until(lambda: numbers(fleet))
            with Load(here.url, 60, 8, first=2) as load:
                until(lambda: len(load.committed) >= 20)
            wait_settled(here.url)
            recorded = {1, *load.committed}
            later_id = committed(here.url, LATER, timedelta(hours=1))
            committed(here.url, HELD)
            until(lambda: HELD in numbers(fleet))
            started = numbers(fleet)
            with Load(here.url, 60, 8, first=SECOND_LOAD) as load:
                until(lambda: len(load.committed) >= 40)
                waiting = {*list(load.committed)}
                here.backup()
            let_go.touch()
            until(lambda: numbers(fleet) > started)
            fleet.stop(first)
        finally:
            fleet.close()
        url = here.restore()
        assert late("doctor", url) == 1, "a copy is refused until somebody adopts it"
        assert late("rebase", url, "--yes") == 0
        assert late("doctor", url) == 0
        assert late("reschedule", later_id, "--in", "0s", "--url", url) == 0
        # On a busy machine it must not lose its shards, and run what it had started a second time.
        fleet = Fleet(url, folders[1], {"LATE_LEASE_TTL_S": "60"})
        try:
            second = fleet.start()
            until(lambda: LATER in numbers(fleet))
            wait_settled(url)
            fleet.stop(second)
        finally:
            fleet.close()
        again = Counter(start.number for start in fleet.starts())
        assert {*waiting, HELD, LATER} <= again.keys(), "a task is lost"
        assert not recorded & again.keys(), "what was recorded runs again"
        assert set(again.values()) == {1}
        commands = 1  # `reschedule` is a record too
        assert outcomes(url)["done"] == len(recorded) + len(again) + commands
        assert late("verify", url) == 0


def numbers(fleet: Fleet) -> set[int]:
    return {start.number for start in fleet.starts()}


def committed(url: str, number: int, delay: timedelta = timedelta()) -> str:
    """Commit a task, due after the delay, and return its id."""
    app, engine = App(url, shards=8, strict=False), make_engine(url)
    call = app.call(witness.name, {"n": number}, queue=witness.queue, delay=delay)
    (task_id,) = write(engine, lambda tx: app.enqueue_many(tx, [call]))
    engine.dispose()
    return task_id
