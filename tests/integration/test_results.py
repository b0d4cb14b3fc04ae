"""Results with a time to live: written with the end of the task, read by its key."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

import late
from late.control import Control
from late.errors import ConfigError, InvalidName, TaskEnded
from late.model.ids import new_id
from late.outbox import connect
from late.testing import drain
from tests.integration.control_kit import execute, rows


@pytest.fixture
def app(url: str) -> late.App:
    app = late.App(url)

    @app.task(result_ttl=timedelta(hours=1), retry=late.Retry(max_attempts=1))
    async def total(prices: list[Decimal]) -> dict[str, Any]:
        if not prices:
            raise ValueError("nothing to add up")
        return {"total": sum(prices), "count": len(prices)}

    @app.task(result_ttl=60, retry=late.Retry(max_attempts=3))
    def answer(kind: str) -> object:
        if kind == "discard":
            return late.Discard("not wanted")
        return {"none": None, "large": "x" * 300_000, "odd": object()}[kind]

    @app.task
    def plain() -> int:
        return 7

    return app


def enqueue(app: late.App, name: str, **args: object) -> str:
    with connect(app.url) as tx:
        return app.send(tx, name, args)


async def test_a_result_comes_back_as_the_type_that_is_asked_for(app: late.App) -> None:
    task_id = enqueue(app, "total", prices=[Decimal("1.10"), Decimal("2.20")])
    handle = app.handle(task_id)
    assert handle.state() == "logged"
    with pytest.raises(TimeoutError):
        await handle.result(timeout_s=0)
    assert drain(app) == {"done": 1}
    assert await handle.result() == {"total": "3.30", "count": 2}
    found = await handle.result(type=dict[str, Decimal | int])
    assert found["total"] == Decimal("3.30")
    assert handle.wait(timeout_s=0)["count"] == 2
    assert handle.state() == await handle.astate() == "done"
    with pytest.raises(TimeoutError):
        app.handle(task_id, group="audit").wait(timeout_s=0)


class Receipt(BaseModel):
    total: Decimal
    items: list[str]


async def test_a_result_comes_back_as_a_model_of_pydantic(url: str) -> None:
    app = late.App(url)

    @app.task(result_ttl=60)
    def receipt(item: str) -> Receipt:
        return Receipt(total=Decimal("1.10"), items=[item])

    with connect(url) as tx:
        task_id = app.enqueue(tx, receipt.call("tea"))
    drain(app)
    handle = app.handle(task_id)
    expected = Receipt(total=Decimal("1.10"), items=["tea"])
    assert await handle.result(type=Receipt) == expected
    assert handle.wait(type=Receipt) == expected
    assert handle.wait(type=Receipt | None) == expected


def test_every_end_is_told_to_who_waits(app: late.App) -> None:
    failed = enqueue(app, "total", prices=[])
    none, discarded = enqueue(app, "answer", kind="none"), enqueue(app, "answer", kind="discard")
    large, odd = enqueue(app, "answer", kind="large"), enqueue(app, "answer", kind="odd")
    with connect(app.url) as tx:
        cancelled = app.tasks["total"].options(delay=60).enqueue(tx, [])
        app.cancel(tx, cancelled)
        expired = app.tasks["total"].options(expires=0.000001).enqueue(tx, [])
    assert drain(app) == {"dead": 3, "done": 1, "discarded": 1, "cancelled": 1, "expired": 1}
    assert app.handle(none).wait(timeout_s=0) is None
    for task_id, outcome in (
        (failed, "dead"), (discarded, "discarded"), (cancelled, "cancelled"),
        (expired, "expired"), (large, "dead"), (odd, "dead"),
    ):  # fmt: skip
        with pytest.raises(TaskEnded, match=outcome) as told:
            app.handle(task_id).wait(timeout_s=0)
        assert told.value.outcome == app.handle(task_id).state() == outcome
    with Control(app.url) as control:
        reasons = {letter.task_id: (letter.reason, letter.attempts) for letter in
                   control.dead_letters.find()}  # fmt: skip
        assert reasons[large] == reasons[odd] == ("invalid_result", 0)
        texts = {letter.task_id: letter.errors[-1].error for letter in control.dead_letters.find()}
        # The way to the handler's mistake, without the machinery that keeps results.
        assert texts[failed].startswith("ValueError: nothing to add up [test_results.py:")
        assert "results.py:" not in texts[failed].replace("test_results.py:", "")
    # A dead letter that is sent back and succeeds has its result after all.
    with connect(app.url) as tx:
        app.redrive(tx, failed, call=app.tasks["total"].call([Decimal(4)]))
    assert drain(app, wait_s=1.0) == {"done": 1}
    assert app.handle(failed).wait(timeout_s=0) == {"total": "4", "count": 1}


def test_nothing_is_kept_unasked_nor_for_longer(app: late.App, url: str) -> None:
    enqueue(app, "plain")
    task_id = enqueue(app, "answer", kind="none")
    assert drain(app) == {"done": 2}
    assert [str(row[0]) for row in rows(url, "select task_id from late_result")] == [task_id]
    with Control(url) as control:
        execute(url, "delete from late_task where 1 = 1")  # as its pruning does
        (group,) = control.tasks.show(task_id).groups
        assert (group.state, group.outcome) == ("settled", "done")
        assert control.sweep().results == 0
        execute(url, "update late_result set expires_at_us = 1 where consumer_group = 'default'")
        assert control.tasks.result(task_id, group="default") is None
        assert control.sweep().results == 1
    assert rows(url, "select task_id from late_result") == []
    assert app.handle(task_id).state() == "unknown"
    with pytest.raises(TimeoutError, match="none is kept"):
        app.handle(task_id).wait(timeout_s=0)


def test_wrong_settings_are_refused(app: late.App) -> None:
    for ttl in (0, -1, float("nan"), 367 * 86_400):
        with pytest.raises(ConfigError, match="result_ttl"):
            app.task(name="odd", result_ttl=ttl)(lambda: None)
    with pytest.raises(InvalidName):
        app.handle("7")
    with pytest.raises(InvalidName):
        app.handle(new_id(0), group="no spaces")


def test_a_task_that_keeps_its_result_is_still_called_like_a_function(app: late.App) -> None:
    assert app.tasks["answer"]("none") is None
