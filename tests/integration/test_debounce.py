"""A debounce with a longest wait, with a real worker, on every store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import late
from late.control import Control
from late.model.task import Options
from late.outbox import connect
from late.testing import drain
from tests.conformance.backends import Backend
from tests.integration.effects_kit import select
from tests.support import sqlite

DELAY_S, MOST_S = 5, 60
SOON_S = 3
"""A delay of a task that is not due before the next call, on a slow machine either."""
SECOND_US = 1_000_000
CHAIN = "select task_id, created_at_us, expires_at_us from late_unique"
DIES = """
import sys
from late.outbox import connect
import late
app = late.App(sys.argv[1], strict=False)
with connect(sys.argv[1]) as tx:
    app.send(tx, "index", {"text": "lost"}, unique_key="k", on_conflict="replace", delay=5,
             max_wait=60)
    print("written", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def index(url: str, ran: list[str]) -> late.Task[Any, Any]:
    app = late.App(url)

    @app.task
    async def index(text: str) -> None:
        ran.append(text)

    return index


def call(url: str, index: late.Task[Any, Any], text: str, **more: Any) -> str:
    asked: dict[str, Any] = {"delay": DELAY_S, "max_wait": MOST_S, **more}
    debounced = index.options(unique_key="k", on_conflict="replace", **asked)
    with connect(url) as tx:
        return str(debounced.enqueue(tx, text))


def later(backend: Backend, url: str, seconds: int) -> None:
    """Let so much time pass for the key: its times are moved back."""
    passed_us = seconds * SECOND_US
    select(backend, url, f"update late_unique set created_at_us = created_at_us - {passed_us},"
           f" expires_at_us = expires_at_us + {passed_us} where true")  # fmt: skip


def chain(backend: Backend, url: str) -> tuple[str, int, int]:
    """Return the task that has the key, the first call of its chain, and its due time."""
    ((task_id, first_us, expires_at_us),) = select(backend, url, CHAIN)
    return str(task_id), first_us, -expires_at_us


def due_times(backend: Backend, url: str) -> dict[str, int | None]:
    rows = select(backend, url, "select task_id, options from late_task where name = 'index'")
    return {
        str(task_id): msgspec.json.decode(options, type=Options).at_us for task_id, options in rows
    }


def cancels(backend: Backend, url: str) -> int:
    return len(select(backend, url, "select task_id from late_task where name = 'late.cancel'"))


def test_calls_put_the_task_off_until_its_longest_wait(
    backend: Backend, url: str, index: late.Task[Any, Any], ran: list[str]
) -> None:
    first = call(url, index, "0")
    _, first_us, _ = chain(backend, url)
    assert due_times(backend, url) == {first: first_us + DELAY_S * SECOND_US}
    passed_s = 0
    for n in range(1, 15):
        passed_s += 4
        later(backend, url, 4)
        task_id = call(url, index, str(n))
        holder, since_us, due_us = chain(backend, url)
        assert holder == task_id
        assert since_us == first_us - passed_s * SECOND_US
        assert due_us <= since_us + MOST_S * SECOND_US
        assert due_times(backend, url)[task_id] == due_us
    assert due_us == since_us + MOST_S * SECOND_US, "60 s have come before 56 + 5 s"
    assert cancels(backend, url) == 14
    # The key says that it is due: it keeps its run, and the next call begins a new chain.
    later(backend, url, 4)
    last = call(url, index, "15")
    assert cancels(backend, url) == 14
    holder, since_us, due_us = chain(backend, url)
    assert (holder, due_us) == (last, since_us + DELAY_S * SECOND_US)
    assert due_times(backend, url)[last] == due_us
    assert drain(index.app, wait_s=10.0)["done"] == 2
    assert ran == ["14", "15"]
    with Control(url) as control:
        assert control.verify().problems == ()


def test_the_end_of_the_task_ends_its_chain(
    backend: Backend, url: str, index: late.Task[Any, Any], ran: list[str]
) -> None:
    call(url, index, "a", delay=0.1)
    assert drain(index.app, wait_s=5.0) == {"done": 1}
    _, first_us, _ = chain(backend, url)
    second = call(url, index, "b", delay=0.1)
    holder, since_us, due_us = chain(backend, url)
    assert holder == second
    assert since_us > first_us
    assert due_us == since_us + 100_000
    assert cancels(backend, url) == 0
    assert drain(index.app, wait_s=5.0) == {"done": 1}
    assert ran == ["a", "b"]
    # What is over is free for every other call, too.
    with connect(url) as tx:
        index.options(unique_key="k", on_conflict="reject").enqueue(tx, "c")
    assert drain(index.app) == {"done": 1}


def test_a_rollback_leaves_the_task_before_it(
    backend: Backend, url: str, index: late.Task[Any, Any]
) -> None:
    call(url, index, "stays")
    before = chain(backend, url)
    later(backend, url, 3)
    moved = chain(backend, url)
    assert moved[0] == before[0]
    debounced = index.options(unique_key="k", on_conflict="replace", delay=DELAY_S, max_wait=MOST_S)

    def fails() -> None:
        with connect(url) as tx:
            debounced.enqueue(tx, "lost")
            debounced.enqueue(tx, "lost too")
            raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert chain(backend, url) == moved
    assert cancels(backend, url) == 0


def test_two_calls_of_one_transaction(
    backend: Backend, url: str, index: late.Task[Any, Any], ran: list[str]
) -> None:
    debounced = index.options(unique_key="k", on_conflict="replace", delay=SOON_S, max_wait=MOST_S)
    with connect(url) as tx:
        debounced.enqueue(tx, "a")
        last = debounced.enqueue(tx, "b")
    assert chain(backend, url)[0] == last
    assert drain(index.app, wait_s=10.0)["done"] == 1
    assert ran == ["b"]


def test_a_task_without_a_longest_wait_is_replaced(
    backend: Backend, url: str, index: late.Task[Any, Any], ran: list[str]
) -> None:
    with connect(url) as tx:
        index.options(unique_key="k", delay=SOON_S).enqueue(tx, "first")
    call(url, index, "second", delay=SOON_S)
    assert drain(index.app, wait_s=10.0)["done"] == 1
    assert ran == ["second"]


def test_an_ordering_key_and_a_debounce(
    backend: Backend, url: str, index: late.Task[Any, Any], ran: list[str]
) -> None:
    call(url, index, "a", delay=SOON_S, ordering_key="o")
    call(url, index, "b", delay=SOON_S, ordering_key="o")
    assert len(due_times(backend, url)) == 2
    assert drain(index.app, wait_s=10.0)["done"] == 1
    assert ran == ["b"]


def test_a_producer_that_is_killed_leaves_the_task_before_it(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "late.db")
    app = late.App(url)
    ran: list[str] = []

    @app.task
    async def index(text: str) -> None:
        ran.append(text)

    call(url, index, "stays", delay=1)
    with subprocess.Popen(
        [sys.executable, "-c", DIES, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        child.kill()
    assert drain(app, wait_s=5.0) == {"done": 1}
    assert ran == ["stays"]
