"""`late.testing`: inline mode and the pytest plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

import late
from late.errors import TransactionAborted
from late.outbox import connect
from late.schema.engine import make_engine
from late.testing import assert_enqueued, drain_worker, inline

app = late.App("sqlite:///unused.db", strict=False)
ran: list[Any] = []


@app.task
def count(n: int) -> None:
    ran.append(n)
    if n > 0:
        count.enqueue(None, n - 1)  # type: ignore[call-overload]


@app.task
async def report(ctx: late.AsyncContext, name: str = "x") -> None:
    ran.append((ctx.name, ctx.attempt, ctx.headers, name))


@app.task
def plain(ctx: late.Context) -> int:
    ran.append(ctx.task_id)
    return 3


@app.task
def ends(how: str) -> Any:
    outcomes = {"retry": late.Retry(), "snooze": late.Snooze(1), "discard": late.Discard()}
    if how == "fail":
        raise ValueError(how)
    if how.startswith("raise "):
        raise outcomes[how.removeprefix("raise ")]
    return outcomes[how]


@pytest.fixture(autouse=True)
def _empty() -> None:
    ran.clear()


def test_tasks_are_captured_and_run_here() -> None:
    with inline(app) as box:
        task_id = report.options(headers={"a": "b"}, delay=3600).enqueue(None, name="n")  # type: ignore[call-overload]
        count.enqueue(None, 2)  # type: ignore[call-overload]
        assert ran == []
        (captured,) = box.of(report)
        assert (captured.task_id, captured.args) == (task_id, {"name": "n"})
        assert captured.options.delay_us == 3_600_000_000
        assert box.run() == 4
    assert ran == [("report", 1, {"a": "b"}, "n"), 2, 1, 0]
    assert [one.name for one in box.done] == ["report", "count", "count", "count"]
    assert box.pending == []


async def test_in_an_async_test() -> None:
    with inline(app) as box:
        report.enqueue(None)  # type: ignore[call-overload]
        task_id = plain.enqueue(None)  # type: ignore[call-overload]
        with pytest.raises(RuntimeError, match="run_async"):
            box.run()
        assert await box.run_async() == 2
    assert ran[-1] == task_id


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("fail", ValueError),
        ("retry", late.Retry),
        ("raise retry", late.Retry),
        ("snooze", late.Snooze),
        ("raise snooze", late.Snooze),
    ],
)
def test_what_would_run_later_is_raised(how: str, error: type[Exception]) -> None:
    with inline(app) as box:
        ends.enqueue(None, how)  # type: ignore[call-overload]
        with pytest.raises(error):
            box.run()
        assert [one.args for one in box.pending] == [{"how": how}]


@pytest.mark.parametrize("how", ["discard", "raise discard"])
def test_a_discarded_task_has_ended(how: str) -> None:
    with inline(app) as box:
        ends.enqueue(None, how)  # type: ignore[call-overload]
        assert box.run() == 1
    assert len(box.done) == 1


def test_a_task_that_repeats_itself_for_ever_is_stopped() -> None:
    with inline(app) as box:
        count.enqueue(None, 10**6)  # type: ignore[call-overload]
        with pytest.raises(AssertionError, match="more than 50 tasks: does 'count' repeat"):
            box.run(limit=50)


async def test_tasks_of_targets_and_of_consumers_stay_and_the_others_run() -> None:
    hooks = late.HttpTarget("hooks", "http://127.0.0.1:1/")
    shop = late.App("sqlite:///unused.db", strict=False, targets=[hooks])
    placed = shop.remote("order.placed", target="hooks")
    shop.route("exports", target="pull")

    @shop.task
    def local(n: int) -> None:
        ran.append(n)

    def enqueue() -> None:
        placed.enqueue(None, n=1)  # type: ignore[call-overload]
        shop.send(None, "export", {"n": 2}, queue="exports")  # type: ignore[call-overload]
        local.enqueue(None, 3)  # type: ignore[call-overload]

    with inline(shop) as box:
        enqueue()
        assert box.run() == 1
        enqueue()
        assert await box.run_async() == 1
        assert [call.args for call in box.of("order.placed")] == [{"n": 1}] * 2
        assert [call.args for call in box.of("export")] == [{"n": 2}] * 2
        assert len(box.pending) == 4
    assert ran == [3, 3]


def test_a_task_that_nobody_executes_is_an_error() -> None:
    with inline(app) as box:
        app.send(None, "nobody", {}, queue="default")  # type: ignore[call-overload]
        with pytest.raises(late.errors.UnknownTask):
            box.run()
        assert len(box.pending) == 1


def test_unique_keys_and_bad_input_behave_as_on_a_database() -> None:
    with inline(app) as box:
        once = count.options(unique_key="k")
        assert once.enqueue(None, 1) == once.enqueue(None, 1)  # type: ignore[call-overload]
        with pytest.raises(late.KeyConflict):
            once.enqueue(None, 2)  # type: ignore[call-overload]
        with pytest.raises(late.InvalidPayload):
            count.enqueue(None, "1")  # type: ignore[call-overload]
        assert len(box.pending) == 1


def test_a_task_without_a_handler_is_named() -> None:
    with inline(app) as box:
        app.send(None, "nobody", {"a": 1})  # type: ignore[call-overload]
        assert box.of("nobody")[0].args == {"a": 1}
        with pytest.raises(late.UnknownTask, match="'nobody'"):
            box.run()


def test_the_app_is_as_before_after_the_block(late_app: Callable[..., late.App]) -> None:
    made = late_app(shards=1)
    with inline(made):
        assert made.capture is not None
    assert made.capture is None


def test_the_fixtures_give_a_migrated_database(
    late_app: Callable[..., late.App], late_db: str
) -> None:
    made = late_app(shards=1)
    assert (made.url, made.shards) == (late_db, 1)

    @made.task
    def greet(name: str) -> None: ...

    with connect(late_db) as tx:
        greet.enqueue(tx, "Ada")
        greet.enqueue(tx, "Bob")
        (found,) = assert_enqueued(tx, greet, args={"name": "Bob"})
        assert found.args == {"name": "Bob"}
        assert_enqueued(late_db, greet, count=0)
    assert_enqueued(late_db, greet, count=2, queue="default")
    with pytest.raises(AssertionError, match=r"expected 1 'greet' .*found 2.*\n.*'Ada'"):
        assert_enqueued(late_db, greet, count=1)
    with pytest.raises(AssertionError, match="in queue 'other'"):
        assert_enqueued(late_db, greet, queue="other")


def test_a_snapshot_that_the_database_refuses_counts_as_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = TransactionAborted("could not serialize access")
    monkeypatch.setattr(drain_worker.status, "seen", Mock(side_effect=refused))
    engine = make_engine("sqlite://")

    assert drain_worker.busy(engine, "default")
    engine.dispose()


def test_a_task_whose_result_is_kept_ends_as_done() -> None:
    other = late.App("sqlite:///unused.db")

    @other.task(result_ttl=60)
    def answer() -> int:
        return 42

    with inline(other) as box:
        answer.enqueue(None)  # type: ignore[call-overload]
        assert box.run() == 1
        assert [each.name for each in box.done] == ["answer"]
