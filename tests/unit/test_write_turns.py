"""Connections of one process that write to a SQLite file one after the other."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from late.outbox import write_turns
from late.outbox.connections import begin, begin_async, open_sqlite
from late.outbox.write_turns import TurnConnection
from late.schema import migrate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "late.db"
    migrate.upgrade(f"sqlite:///{found}")
    return found


def opened(path: Path) -> TurnConnection:
    made: TurnConnection = open_sqlite(f"sqlite:///{path}", TurnConnection, check_same_thread=False)
    return made


def in_thread(call: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def held(path: Path) -> bool:
    """Return whether a connection of this process has the turn."""
    mutex = write_turns._mutexes.get(path)
    return mutex is not None and mutex._lock.locked()


def test_one_that_waits_is_woken_by_the_end_and_does_not_ask_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_turns, "ASK_S", 60.0)
    first, second = opened(path), opened(path)
    first.begin(path, 5.0)
    thread = in_thread(lambda: second.begin(path, 5.0))
    thread.join(0.05)
    assert thread.is_alive()
    first.commit()
    thread.join(30)
    assert not thread.is_alive()
    assert second.in_transaction
    second.close()
    first.close()
    assert not held(path)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_one_that_ended_its_transaction_by_a_statement_holds_nobody_up(
    path: Path, end: str
) -> None:
    first, second = opened(path), opened(path)
    first.begin(path, 5.0)
    first.execute(end)
    second.begin(path, 5.0)
    assert second.in_transaction
    second.close()
    assert held(path)  # It was not the second one's.
    first.close()
    assert not held(path)


def test_a_second_transaction_inside_the_first_fails_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.outbox.connections.BUSY_TIMEOUT_S", 3_600.0)
    url = f"sqlite:///{path}"
    with (
        begin(url),
        pytest.raises(sqlite3.OperationalError, match="locked") as raised,
        begin(url),
    ):
        pass
    assert "second connection" in raised.value.__notes__[0]
    with begin(url) as tx:
        assert tx.in_transaction
    assert not held(path)


def test_another_thread_waits_for_the_usual_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_turns, "ASK_S", 0.05)
    first, second = opened(path), opened(path)
    first.begin(path, 5.0)
    waits: list[float] = []

    def wait() -> None:
        began_s = time.monotonic()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            second.begin(path, 0.3)
        waits.append(time.monotonic() - began_s)

    in_thread(wait).join(30)
    first.close()
    assert waits[0] >= 0.3


def test_a_transaction_that_cannot_begin_gives_its_turn_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.outbox.connections.BUSY_TIMEOUT_S", 0.0)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    with (
        pytest.raises(sqlite3.OperationalError, match="locked"),
        begin(f"sqlite:///{path}"),
    ):
        pass
    assert not held(path)
    other.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_waits_longer_for_the_lock_of_others(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    monkeypatch.setattr("late.outbox.connections.BUSY_TIMEOUT_S", 0.0)
    url = f"sqlite:///{path}"

    async def opened_async(tag: str) -> None:
        async with begin_async(url, tag=tag):
            pass

    def write(tag: str) -> None:
        if is_async:
            return asyncio.run(opened_async(tag))
        with begin(url, tag=tag):
            return None

    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        write("")
    threading.Timer(0.3, other.rollback).start()
    write("foreground job")
    other.close()


def test_a_block_that_raises_gives_its_turn_up(path: Path) -> None:
    url = f"sqlite:///{path}"
    with pytest.raises(ZeroDivisionError), begin(url):
        raise ZeroDivisionError
    assert not held(path)
    with begin(url) as tx:
        assert tx.in_transaction


async def test_a_coroutine_that_is_cancelled_while_it_waits_leaves_no_turn(path: Path) -> None:
    url = f"sqlite:///{path}"
    entered: list[str] = []

    async def second() -> None:
        async with begin_async(url):
            entered.append("second")

    async with begin_async(url):
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.sleep(0.05)
        waiting.cancel()
    await asyncio.wait([waiting])
    async with begin_async(url) as tx:
        await tx.execute("select 1")
    assert waiting.cancelled()
    assert not entered
    assert not held(path)


def test_many_threads_write_each_once(path: Path) -> None:
    url = f"sqlite:///{path}"
    with begin(url) as tx:
        tx.execute("create table seen (n integer primary key)")

    def write(number: int) -> None:
        for n in range(20):
            with begin(url) as tx:
                tx.execute("insert into seen values (?)", (number * 20 + n,))

    threads = [in_thread(lambda number=n: write(number)) for n in range(8)]  # type: ignore[misc]
    for thread in threads:
        thread.join(60)
    with begin(url) as tx:
        assert tx.execute("select count(*) from seen").fetchone() == (160,)
    assert not held(path)


def test_a_long_run_of_turns_leaves_the_file_to_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    now = 100.0

    def sleep(for_s: float) -> None:
        nonlocal now
        slept.append(for_s)
        now += for_s

    monkeypatch.setattr(write_turns, "monotonic", lambda: now)
    monkeypatch.setattr(write_turns, "sleep", sleep)
    connection = opened(path)
    for _ in range(50):
        connection.begin(path, 5.0)
        now += 0.001
        connection.commit()
    assert slept == [write_turns.PAUSE_S] * 2
    now += 1.0
    for _ in range(15):
        connection.begin(path, 5.0)
        now += 0.001
        connection.commit()
    assert len(slept) == 2
    connection.close()
