"""`late.contrib.embedded`: a worker in a thread of a program."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

import late
from late.contrib.embedded import worker_thread
from late.control import Control
from late.errors import SchemaMismatch, StoreUnavailable
from tests.support.sqlite import database

WAIT_S = 120


def shop(tmp_path: Path) -> late.App:
    url = database(tmp_path / "shop.db")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("create table paid (order_id integer)")
    return late.App(url)


def enqueue(queue: late.App, task: late.Task, *args: object) -> None:
    path = queue.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("begin immediate")
        task.enqueue(connection, *args)


def worker_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("late-worker")]


def test_plain_handlers_run_beside_the_program_and_end_before_the_block_does(
    tmp_path: Path,
) -> None:
    queue = shop(tmp_path)
    began, go_on = threading.Event(), threading.Event()

    @queue.task
    def pay(order_id: int) -> None:
        began.set()
        assert go_on.wait(WAIT_S)
        with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
            connection.execute("insert into paid values (?)", (order_id,))

    with worker_thread(queue):
        enqueue(queue, pay, 7)
        assert began.wait(WAIT_S)
        go_on.set()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        assert connection.execute("select order_id from paid").fetchall() == [(7,)]
    assert worker_threads() == []
    with Control(queue.url) as control:
        status = control.status.read()
        assert status.workers == ()


def test_what_the_program_raises_stops_the_worker_and_is_raised(tmp_path: Path) -> None:
    queue = shop(tmp_path)
    with pytest.raises(ZeroDivisionError), worker_thread(queue):
        raise ZeroDivisionError
    assert worker_threads() == []


def test_a_worker_that_cannot_start_is_raised_where_it_is_started(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    for name, error in (("missing.db", StoreUnavailable), ("empty.db", SchemaMismatch)):
        with pytest.raises(error), worker_thread(late.App(f"sqlite:///{tmp_path / name}")):
            pytest.fail("it started")
    assert worker_threads() == []


WAITING_PROGRAM = """
import logging
import signal
import late
from late.contrib.embedded import worker_thread

signal.signal(signal.SIGINT, signal.default_int_handler)  # A job in the background ignores it.
logging.basicConfig(level=logging.WARNING)
with worker_thread(late.App("postgresql://nobody@127.0.0.1:1/shop")):
    print("it started")
"""


def test_ctrl_c_ends_a_program_whose_worker_waits_for_the_database() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING_PROGRAM], stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stderr is not None
        assert "could not be checked" in program.stderr.readline()
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=WAIT_S)
    assert "KeyboardInterrupt" in errors
    assert program.returncode == -signal.SIGINT
