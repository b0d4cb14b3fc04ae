"""A process that holds the write lock of a SQLite file: workers live and cannot say so."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from late.control import Control
from late.control.findings.findings import findings
from late.control.status import write_lock
from late.schema.engine import make_engine, writing
from tests.support import sqlite

WHAT = "A process holds the write lock of the database's file"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    sqlite.database(tmp_path / "late.db")
    return tmp_path / "late.db"


@pytest.fixture
def holder(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as tx:
        tx.execute("begin immediate")
        yield tx


def test_a_lock_that_is_held_is_seen_and_given_back(path: Path, holder: sqlite3.Connection) -> None:
    engine = make_engine(f"sqlite:///{path}")
    assert write_lock.is_held(engine)
    holder.execute("commit")
    assert not write_lock.is_held(engine)
    holder.execute("pragma busy_timeout = 0")
    holder.execute("begin immediate")  # the look has let it go
    holder.execute("rollback")
    with writing(engine) as connection:
        [wait_ms] = connection.exec_driver_sql("pragma busy_timeout").scalars()
    assert wait_ms == 30_000, "the connection waits again as before"


def test_a_lock_that_goes_from_hand_to_hand_is_not_held(
    path: Path, holder: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_lock, "TRIES_S", 0.5)
    holder.execute("create table busy (n int)")

    def next_hand() -> None:
        holder.execute("commit")
        holder.execute("begin immediate")

    # Often enough that the look finds it taken each time, or gets it: it is not held either way.
    timer = threading.Timer(0.1, next_hand)
    timer.start()
    assert not write_lock.is_held(make_engine(f"sqlite:///{path}"))
    timer.join()


def test_the_look_and_the_doctor_say_it_and_name_no_missing_worker(
    path: Path, holder: sqlite3.Connection
) -> None:
    with Control(f"sqlite:///{path}") as control:
        assert WHAT in {each.what for each in findings(control.look())}
        checks = control.doctor()
        holder.execute("rollback")
        free = {each.what for each in findings(control.look())}
    text = "\n".join(each.detail for each in checks)
    assert WHAT in text
    assert str(path) in text
    assert "no live worker" not in text
    assert "No worker is alive" not in text
    assert WHAT not in free
    assert "No worker is alive" in free


def test_it_is_not_tried_while_workers_live(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(write_lock, "_is_held", lambda connection: tried.append(connection))
    with closing(sqlite3.connect(path)) as tx, tx:
        tx.execute(
            "insert into late_worker (worker_id, expires_at_us, started_at_us, address,"
            " consumer_groups, capacity, version) values (?, ?, ?, ?, ?, ?, ?)",
            ("w", 9 * 10**15, 1, "h:1", '["default"]', 1.0, "1"),
        )
    with Control(f"sqlite:///{path}") as control:
        assert control.look().status.workers
        assert not tried
