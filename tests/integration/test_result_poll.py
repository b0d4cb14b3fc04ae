"""Many that wait for results at once: one connection for all of them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import late
from late.app import result_poll
from late.control import Control
from late.control.status import results
from late.control.task_commands import TaskControl
from late.errors import InvalidName, SchemaMismatch, StoreUnavailable
from late.model.ids import new_id
from late.outbox import connect
from late.testing import drain
from tests.integration.shared_kit import until
from tests.support import sqlite

MANY = 60


@pytest.fixture
def app(url: str) -> late.App:
    app = late.App(url)

    @app.task(result_ttl=60)
    def double(n: int) -> int:
        return 2 * n

    return app


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of ids of each read."""
    seen: list[int] = []
    read = TaskControl.results

    def counted(self: Any, ids: set[str], group: str) -> dict[str, bytes]:
        seen.append(len(ids))
        return read(self, ids, group=group)

    monkeypatch.setattr(TaskControl, "results", counted)
    return seen


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was opened and closed for those that wait."""
    seen: list[str] = []
    begin, end = Control.__init__, Control.close

    def begun(self: Control, url: str, **options: Any) -> None:
        begin(self, url, **options)
        seen.append("open")

    def ended(self: Control) -> None:
        seen.append("close")
        end(self)

    monkeypatch.setattr(Control, "__init__", begun)
    monkeypatch.setattr(Control, "close", ended)
    return seen


def enqueue(app: late.App, count: int) -> list[str]:
    with connect(app.url) as tx:
        double = app.tasks["double"]
        return [str(each) for each in app.enqueue_many(tx, [double.call(n) for n in range(count)])]


async def test_all_that_wait_share_a_connection_and_its_reads(
    app: late.App, reads: list[int], opened: list[str]
) -> None:
    ids = enqueue(app, MANY)
    waiting = asyncio.gather(*[app.handle(each).result(timeout_s=60) for each in ids])
    await until(lambda: MANY in reads)
    assert opened == ["open"]
    await asyncio.to_thread(drain, app)
    assert await waiting == [2 * n for n in range(MANY)]
    assert opened[0] == "open"
    assert opened[-1] == "close"


async def test_nothing_is_open_when_the_last_one_has_its_answer(
    app: late.App, opened: list[str]
) -> None:
    [known] = enqueue(app, 1)
    await asyncio.to_thread(drain, app)
    del opened[:]
    assert await app.handle(known).result(timeout_s=5) == 0
    assert opened == ["open", "close"]
    with pytest.raises(TimeoutError, match="no result"):
        app.handle(new_id(0)).wait(timeout_s=0.05)
    assert opened == ["open", "close"] * 2


async def test_who_is_cancelled_waits_no_more(app: late.App, opened: list[str]) -> None:
    waiting = asyncio.ensure_future(app.handle(new_id(0)).result(timeout_s=None))
    await until(lambda: opened == ["open"])
    waiting.cancel()
    await asyncio.wait([waiting])
    await until(lambda: opened == ["open", "close"])
    assert waiting.cancelled()


def test_a_database_that_is_away_is_asked_again(
    app: late.App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    [known] = enqueue(app, 1)
    drain(app)
    tries: list[int] = []
    read = results.results

    def refused(self: Any, ids: set[str], group: str) -> dict[str, bytes]:
        tries.append(len(ids))
        if len(tries) < 4:
            raise StoreUnavailable("sorry, too many clients already")
        return read(self._database.engine, ids, group)

    monkeypatch.setattr(TaskControl, "results", refused)
    assert app.handle(known).wait(timeout_s=60) == 0
    assert len(tries) == 4
    assert caplog.text.count("results cannot be read at present") == 1
    del tries[:]
    with pytest.raises(StoreUnavailable, match="too many clients"):
        app.handle(new_id(0)).wait(timeout_s=0)
    assert len(tries) == 1


def test_an_error_that_stays_is_raised_at_once(
    app: late.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(self: Any, ids: set[str], group: str) -> dict[str, bytes]:
        raise SchemaMismatch("run `late migrate URL`")

    monkeypatch.setattr(TaskControl, "results", damaged)
    with pytest.raises(SchemaMismatch, match="migrate"):
        app.handle(new_id(0)).wait(timeout_s=None)
    # Refused before it joins a read, which it would end for others.
    with pytest.raises(InvalidName, match="not a task id"):
        result_poll.ask(app.url, "x", "default", None)


def test_the_read_at_the_end_of_a_wait_has_somebody_to_read_for() -> None:
    """A poll that is due for nobody would end, and leave the last one without an answer."""
    for left_s in (0.001, 0.005, 0.015, 0.5, 30.0):
        waiter = result_poll._Waiter(new_id(0), "default", left_s)
        for _ in range(20):
            waiter.put_off(waiter.due)
            assert waiter.early <= waiter.due


def test_results_of_more_tasks_than_a_statement_takes(
    app: late.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = enqueue(app, 5)
    drain(app)
    monkeypatch.setattr(results, "_AT_ONCE", 2)
    with Control(app.url) as control:
        assert set(control.tasks.results([*ids, new_id(0)], group="default")) == set(ids)
        assert control.tasks.results(ids, group="other") == {}


def test_a_forked_child_waits_with_a_poll_of_its_own(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "x.db")
    # All is imported by then, and the parent's thread sleeps: it holds no lock but the poll's.
    assert result_poll.ask(url, new_id(0), "default", 0).result() is None
    waiting = result_poll.ask(url, new_id(0), "default", None)
    time.sleep(0.5)
    with result_poll._lock:  # As another thread of the parent may have it.
        pid = os.fork()
        if pid == 0:
            threading.Timer(20, os._exit, [3]).start()
            answer = result_poll.ask(url, new_id(0), "default", 0.05)
            os._exit(0 if answer.exception() is None else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    waiting.cancel()
    until_s = time.monotonic() + 30
    while result_poll._polls and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not result_poll._polls
