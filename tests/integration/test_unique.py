"""Unique keys over the life of their tasks, with a real worker, on every store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import late
from late.control import Control
from late.outbox import connect
from late.testing import drain, inline
from tests.conformance.backends import Backend
from tests.integration.effects_kit import select

REPLACES = {"unique_key": "k", "on_conflict": "replace"}
SOME_TIME = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def greet(url: str, ran: list[str]) -> late.Task[Any, Any]:
    app = late.App(url)

    @app.task
    async def greet(name: str) -> None:
        ran.append(name)

    return greet


def enqueue(url: str, prepared: Any, name: str) -> str:
    with connect(url) as tx:
        return str(prepared.enqueue(tx, name))


def test_a_key_is_free_again_when_its_task_has_ended(
    url: str, greet: late.Task[Any, Any], ran: list[str]
) -> None:
    once = greet.options(unique_key="k", on_conflict="reject")
    first = enqueue(url, once, "a")
    with pytest.raises(late.KeyConflict, match=first):
        enqueue(url, once, "a")
    assert drain(greet.app) == {"done": 1}
    assert enqueue(url, once, "a") != first
    assert drain(greet.app) == {"done": 1}
    assert ran == ["a", "a"]


def test_a_key_with_a_period_outlives_its_task(
    backend: Backend, url: str, greet: late.Task[Any, Any], ran: list[str]
) -> None:
    daily = greet.options(unique_key="k", unique_for=86_400)
    first = enqueue(url, daily, "a")
    assert drain(greet.app) == {"done": 1}
    # Its task has ended, its day has not
    assert enqueue(url, daily, "a") == first
    with pytest.raises(late.KeyConflict, match=first):
        enqueue(url, greet.options(unique_key="k"), "b")
    assert drain(greet.app) == {}
    with Control(url) as control:
        assert control.verify().problems == ()
    # A day later
    select(backend, url, "update late_unique set expires_at_us = expires_at_us - 86400000000"
           " where true")  # fmt: skip
    second = enqueue(url, greet.options(unique_key="k"), "b")
    assert second != first
    assert drain(greet.app) == {"done": 1}
    assert ran == ["a", "b"]
    # Without a period of its own the second key went with its task
    assert select(backend, url, "select unique_key from late_unique") == []


def test_a_later_task_takes_the_place_of_one_that_waits(
    backend: Backend, url: str, greet: late.Task[Any, Any], ran: list[str]
) -> None:
    soon = greet.options(unique_key="k", on_conflict="replace", delay=0.2)
    enqueue(url, greet.options(unique_key="k", delay=0.2), "first")
    ids = [enqueue(url, soon, name) for name in ("second", "third")]
    assert len(set(ids)) == 2
    held = select(backend, url, "select task_id from late_unique")
    assert [str(task_id) for (task_id,) in held] == ids[1:]
    counts = drain(greet.app, wait_s=5.0)
    assert ran == ["third"]
    assert counts["done"] == 1
    # Its key went with it; replacing a task that has ended is a plain enqueue.
    assert select(backend, url, "select task_id from late_unique") == []
    enqueue(url, greet.options(unique_key="k", unique_for=3600), "fourth")
    drain(greet.app)
    enqueue(url, greet.options(unique_key="k", on_conflict="replace"), "fifth")
    drain(greet.app)
    assert ran == ["third", "fourth", "fifth"]
    with Control(url) as control:
        assert control.verify().problems == ()


@pytest.mark.parametrize("max_wait", [{}, {"max_wait": 60}])
def test_of_calls_that_replace_each_other_at_once_the_last_is_written(
    backend: Backend, url: str, greet: late.Task[Any, Any], ran: list[str], max_wait: Any
) -> None:
    soon = greet.options(**REPLACES, delay=0.2, **max_wait)
    before = enqueue(url, soon, "before")
    with connect(url) as tx:
        calls = [soon.call("first"), greet.call("another"), soon.call("last")]
        first, _, last = greet.app.enqueue_many(tx, calls)
    assert first == last != before
    held = select(backend, url, "select task_id from late_unique")
    assert [str(task_id) for (task_id,) in held] == [last]
    assert drain(greet.app, wait_s=5.0)["done"] == 2
    assert sorted(ran) == ["another", "last"]
    with Control(url) as control:
        assert control.verify().problems == ()


def test_the_box_of_a_test_keeps_the_last_of_calls_that_replace_each_other(
    greet: late.Task[Any, Any], ran: list[str]
) -> None:
    soon = greet.options(**REPLACES, delay=1)
    with inline(greet.app) as box:
        first, last = greet.app.enqueue_many(None, [soon.call("first"), soon.call("last")])
        assert first == last
        box.run()
    assert ran == ["last"]


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"unique_key": "k", "unique_for": 0}, late.InvalidSchedule, "above 0"),
        ({"unique_key": "k", "unique_for": float("nan")}, late.InvalidSchedule, "unique_for"),
        ({"unique_key": "k", "unique_for": 367 * 86_400}, late.InvalidSchedule, "unique_for"),
        ({"unique_for": 60}, late.InvalidPolicy, "there is none"),
        ({"on_conflict": "reject"}, late.InvalidPolicy, "there is none"),
        ({"unique_key": "k", "on_conflict": "ignore"}, late.InvalidPolicy, "'ignore'"),
        ({"unique_key": "k" * 129}, late.InvalidName, "unique_key"),
        ({"max_wait": 60}, late.InvalidPolicy, "there is none"),
        ({"unique_key": "k", "delay": 5, "max_wait": 60}, late.InvalidPolicy, "takes on_conflict"),
        ({**REPLACES, "max_wait": 60}, late.InvalidPolicy, "and a delay"),
        ({**REPLACES, "delay": 0, "max_wait": 60}, late.InvalidPolicy, "and a delay"),
        ({**REPLACES, "at": SOME_TIME, "max_wait": 60}, late.InvalidPolicy, "and a delay"),
        ({**REPLACES, "delay": 9, "max_wait": 8}, late.InvalidSchedule, "shorter than delay"),
        ({**REPLACES, "delay": 9, "max_wait": -1}, late.InvalidSchedule, "shorter than delay"),
        ({**REPLACES, "delay": 9, "max_wait": "1m"}, late.InvalidSchedule, "max_wait"),
        ({**REPLACES, "delay": 9, "max_wait": 9, "unique_for": 9}, late.InvalidPolicy, "not both"),
    ],
)
def test_what_cannot_be_asked_for(asked: Any, error: type[Exception], says: str) -> None:
    app = late.App("sqlite:///unused.db")

    @app.task
    def note() -> None: ...

    with pytest.raises(error, match=says):
        note.options(**asked)
