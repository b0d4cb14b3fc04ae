"""A row of the log that somebody has copied, seal and all, does not run its task again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from late import events
from late.control import Control, Filter
from late.model.task import ENQUEUED, Options, Record, TaskId
from late.outbox import connect
from late.scheduler.core import replays
from late.scheduler.core.replays import Replays
from late.testing import drain
from tests.integration.fleet_kit import until, working
from tests.security.sealed_kit import changed, copied, put, sealed_app, written


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    stop = events.default.subscribe(lambda _, values: found.append(values), [events.REPLAYED])
    yield found
    stop()


@pytest.mark.parametrize("bind", ["read", "require"])
def test_copies_that_wait_beside_their_row_do_not_run(
    url: str, told: list[dict[str, Any]], bind: str
) -> None:
    app, ran = sealed_app(url, bind)
    row = written(app, 100)
    put(url, row, row, changed(row, priority=7), row, written(app, 1))
    # A worker may read all in one page, or as they come
    assert drain(app).pop("done") == 2
    assert sorted(ran) == [1, 100]
    assert sum(each["count"] for each in told) == 3
    assert {each["task"] for each in told} == {row.task_id}
    with Control(url) as control:
        assert control.dead_letters.find(Filter()) == []
        # The books add up, and name the task as long as its rows are in the log
        assert {p.kind for p in control.verify().problems} <= {"logged_twice"}


async def test_copies_of_a_task_that_has_ended_do_not_run(
    url: str, told: list[dict[str, Any]]
) -> None:
    app, ran = sealed_app(url)
    async with working(app):
        row = written(app, 100, unique_key="k")
        await asyncio.to_thread(put, url, row)
        await until(lambda: ran == [100])
        # Given a row whose task is settled, and whose unique key the next task has
        await until(lambda: _ended(url) == 1)
        # When it is copied, twice
        await asyncio.to_thread(put, url, copied(row))
        await until(lambda: len(told) == 1)
        await asyncio.to_thread(put, url, copied(row), written(app, 2))
        await until(lambda: len(told) == 2)
        await until(lambda: _ended(url) == 4)
    assert ran == [100, 2]

    # Then the books have each row, with its end
    def found() -> tuple[Any, ...]:
        with Control(url) as control:
            kinds = {problem.kind for problem in control.verify().problems}
            return kinds, control.dead_letters.find(Filter())

    kinds, letters = await asyncio.to_thread(found)
    assert kinds <= {"logged_twice"}  # as long as its rows are in the log
    assert letters == []


async def test_copies_of_a_running_task_do_not_run(url: str, told: list[dict[str, Any]]) -> None:
    app, ran = sealed_app(url)
    go_on = asyncio.Event()

    @app.task
    async def slow() -> None:
        ran.append(1)
        await go_on.wait()

    row = app.row(slow.call())
    async with working(app):
        await asyncio.to_thread(put, url, row)
        await until(lambda: ran == [1])
        await asyncio.to_thread(put, url, row)
        await until(lambda: len(told) == 1)
        go_on.set()
        await until(lambda: _ended(url) == 2)
    with Control(url) as control:
        assert {problem.kind for problem in control.verify().problems} <= {"logged_twice"}
        usage = control.status.usage_since(1, {}).usage
    assert sum(row.count for _, row in usage if row.outcome == ENQUEUED) == 2
    assert ran == [1]


async def test_copies_of_a_parked_task_leave_it_as_it_is(
    url: str, told: list[dict[str, Any]]
) -> None:
    """Its row of the timer table, its unique key and its result are those of the first row."""
    app, ran = sealed_app(url)
    task = app.tasks["refund"]
    ask = task.options(delay=3600, unique_key="k")

    def enqueue() -> str:
        with connect(url) as tx:
            return ask.enqueue(tx, 100)

    row = app.row(ask.call(100))
    async with working(app):
        await asyncio.to_thread(put, url, row)
        await until(lambda: _parked(url) == 1)
        await asyncio.to_thread(put, url, copied(row))
        await until(lambda: len(told) == 1)
        await until(lambda: _ended(url) == 1)
        assert await asyncio.to_thread(enqueue) == row.task_id
        assert _parked(url) == 1
    assert ran == []


def _ended(url: str) -> int:
    with Control(url) as control:
        return sum(sum(ledger.ended.values()) for ledger in control.verify().ledgers)


def _parked(url: str) -> int:
    with Control(url) as control:
        return sum(queue.parked.n for queue in control.status.read().queues)


def record(number: int, position: int) -> Record:
    task_id = TaskId(f"01920000-0000-7001-8000-{number:012x}")
    return Record(1, position, task_id, "q", "n", b"", None, None, 1, 1)


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "SEALED_MAX", 3)
    memory, sealed = Replays(), Options(codec="encrypted+json")
    for number in range(4):
        assert not memory.is_second(record(number, number), sealed)
    assert memory.is_second(record(3, 9), sealed)
    assert not memory.is_second(record(3, 3), sealed)  # the store shows it again
    assert not memory.is_second(record(0, 9), sealed)  # forgotten
    assert memory.take() == [record(3, 3).task_id]
    assert memory.take() == []


@pytest.mark.parametrize("codec", [None, "json", "msgpack"])
def test_tasks_without_a_seal_are_not_remembered(codec: str | None) -> None:
    memory = Replays()
    options = msgspec.structs.replace(Options(), codec=codec)
    assert not memory.is_second(record(1, 1), options)
    assert not memory.is_second(record(1, 2), options)
