"""Workflows through `late.App` and a worker: `late.chain`, `late.group`, `late.chord`."""

from __future__ import annotations

from typing import Any

import pytest

import late
from late.control import Control, Filter
from late.errors import BatchTooLarge, InvalidPayload, InvalidTask, TaskEnded
from late.model.ids import new_id, shard_of
from late.outbox import connect, connect_async
from late.testing import drain
from tests.integration.control_kit import execute, rows

KEEP_S = 3_600


@pytest.fixture
def app(url: str) -> late.App:
    app = late.App(url, shards=4)
    app.seen = []  # type: ignore[attr-defined]

    @app.task(result_ttl=KEEP_S, retry=late.Retry(max_attempts=1))
    def add(one: int, two: int) -> int:
        if two == 13:
            raise ValueError("unlucky")
        return one + two

    @app.task(result_ttl=KEEP_S)
    async def total(numbers: list[int], name: str = "") -> int:
        return sum(numbers)

    @app.task
    def told(task_id: str) -> None:
        app.seen.append(task_id)  # type: ignore[attr-defined]

    return app


def results(app: late.App, ids: list[late.TaskId]) -> list[object]:
    return [app.handle(each).wait(timeout_s=0) for each in ids]


def test_results_flow_along_a_chain_and_into_a_join(app: late.App) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    with connect(app.url) as tx:
        ids = app.enqueue_workflow(tx, late.chain(
            add.call(1, 2),
            late.group(add.then(10, late.RESULT), late.chain(
                add.then(one=late.RESULT, two=20), add.then(late.RESULT, 1)
            )),
            total.then(late.RESULT, name="sum"),
            add.then(late.RESULT, 0),
        ))  # fmt: skip
    assert drain(app) == {"done": 6}
    assert results(app, ids) == [3, 13, 23, 24, 37, 37]


def test_nothing_runs_if_the_transaction_is_rolled_back(app: late.App) -> None:
    add = app.tasks["add"]
    with connect(app.url) as tx:
        app.enqueue_workflow(tx, late.chain(add.call(1, 2), add.then(late.RESULT, 1)))
        tx.rollback()
    assert drain(app) == {}
    assert rows(app.url, "select count(*) from late_stage") == [(0,)]


def test_a_failure_ends_it_is_told_once_and_a_redrive_goes_on(app: late.App) -> None:
    add, total, told = app.tasks["add"], app.tasks["total"], app.tasks["told"]
    with connect(app.url) as tx:
        ids = app.enqueue_workflow(
            tx,
            late.chord([add.call(1, 13), add.call(2, 2)], total.then(late.RESULT)),
            on_failure=told.then(late.RESULT),
        )
    assert drain(app) == {"dead": 1, "done": 2}
    assert app.seen == [ids[0]]  # type: ignore[attr-defined]
    with connect(app.url) as tx:
        app.redrive(tx, ids[0], call=add.call(1, 1))
    assert drain(app)["done"] >= 2
    assert results(app, ids[:3]) == [2, 4, 6]


def test_the_task_of_on_failure_reads_what_went_wrong(app: late.App) -> None:
    add = app.tasks["add"]
    seen: list[Any] = []

    @app.task
    def why(task_id: str) -> None:
        seen.append(app.handle(task_id).failure())

    with connect(app.url) as tx:
        ids = app.enqueue_workflow(
            tx, late.chain(add.call(1, 1), add.call(1, 13)), on_failure=why.then(late.RESULT)
        )
    assert drain(app) == {"dead": 1, "done": 2}
    [failure] = seen
    known = (failure.task_id, failure.queue, failure.name, failure.reason, failure.attempts)
    assert known == (ids[1], "default", add.name, "attempts_exhausted", 1)
    assert "unlucky" in failure.error
    assert app.handle(ids[0]).failure() is None, "it is done"
    with connect(app.url) as tx:
        app.redrive(tx, ids[1], call=add.call(1, 1))
    assert drain(app)["done"] >= 1
    assert app.handle(ids[1]).failure() is None, "it has been redriven"


def test_a_cancel_takes_the_whole_workflow(app: late.App) -> None:
    add = app.tasks["add"]
    slow = add.options(delay=3_000)
    with connect(app.url) as tx:
        ids = app.enqueue_workflow(
            tx, late.chain(late.group(slow.call(1, 1), slow.call(2, 2)), add.call(3, 3))
        )
    with connect(app.url) as tx:
        app.cancel(tx, ids[2])  # It waits for the others.
    counted = drain(app)
    assert counted["cancelled"] == 2
    states = rows(app.url, "select state from late_stage order by stage")
    assert [state for (state,) in states] == ["cancelled"] * 3


@pytest.mark.parametrize("by", ["app", "control"])
def test_a_cancel_by_a_stage_that_waits_reaches_the_others_at_once(app: late.App, by: str) -> None:
    """Its record is in another shard than they are, whose owners begin with a backlog."""
    told = app.tasks["told"]
    with connect(app.url) as tx:
        ids = app.enqueue_workflow(
            tx, late.chain(late.group(told.call("a"), told.call("b")), told.call("c"))
        )
        alone = told.enqueue(tx, "d")
        if by == "app":
            assert app.cancel(tx, ids[2]) not in ids
    if by == "control":
        with Control(app.url) as control:
            control.tasks.cancel(ids[2])
    commands = "select shard_id from late_task where name = 'late.cancel'"
    shards = sorted(shard for (shard,) in rows(app.url, commands))
    assert shards == sorted(shard_of(each) for each in ids)
    assert drain(app)["cancelled"] == 2
    assert app.seen == ["d"]  # type: ignore[attr-defined]
    # What is no stage, or has ended, takes no other with it; nor does a cancel in another group
    execute(app.url, "delete from late_task where name = 'late.cancel'")
    with connect(app.url) as tx:
        more = app.enqueue_workflow(tx, late.chain(told.call("e"), told.call("f")))
        for task_id, group in ((alone, None), (ids[0], None), (more[1], "audit")):
            app.cancel(tx, task_id, group=group)
    assert len(rows(app.url, commands)) == 3


async def test_a_cancel_through_an_async_transaction(app: late.App) -> None:
    told = app.tasks["told"]
    async with connect_async(app.url) as tx:
        ids = await app.enqueue_workflow(tx, late.chain(told.call("a"), told.call("b")))
        await app.cancel(tx, ids[1])
    assert drain(app)["cancelled"] == 1
    assert app.seen == []  # type: ignore[attr-defined]


def test_the_handle_of_a_stage_says_how_it_ended_before_it_was_in_the_log(app: late.App) -> None:
    add, told = app.tasks["add"], app.tasks["told"]
    with connect(app.url) as tx:
        ids = app.enqueue_workflow(
            tx, late.chain(add.call(1, 2), add.then(late.RESULT, 1), told.call("x"))
        )
    handles = [app.handle(each) for each in ids]
    assert [each.state() for each in handles] == ["logged", "waiting", "waiting"]
    with pytest.raises(TimeoutError):
        handles[1].wait(timeout_s=0)
    with connect(app.url) as tx:
        app.cancel(tx, ids[0])
    assert drain(app)["cancelled"] == 1
    for each in handles:
        assert each.state() == "cancelled"
        with pytest.raises(TaskEnded, match="ended as cancelled") as told_of:
            each.wait(timeout_s=0)
        assert told_of.value.outcome == "cancelled"
    with pytest.raises(TimeoutError):
        late.App(app.url, group="audit").handle(ids[1]).wait(timeout_s=0)


def test_a_wait_for_a_stage_lasts_until_it_has_ended(
    app: late.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.control.groups.wait.GRACE_S", 0.0)
    add = app.tasks["add"]
    slow = add.options(delay=3_000)
    with Control(app.url) as control:

        def state(task_id: str) -> str:
            return control.groups.wait("default", task_id, timeout_s=0).state

        with connect(app.url) as tx:
            ids = app.enqueue_workflow(tx, late.chain(add.call(1, 2), add.then(late.RESULT, 1)))
        assert state(ids[1]) == "waiting"
        assert drain(app) == {"done": 2}
        assert state(ids[1]) == "settled"
        with connect(app.url) as tx:
            ids = app.enqueue_workflow(tx, late.chain(slow.call(1, 2), add.call(3, 4)))
        drain(app)
        assert [state(each) for each in ids] == ["waiting", "waiting"]
        control.tasks.cancel(ids[0])
        drain(app)
        assert state(ids[1]) == "settled", "it was cancelled before it was in the log"
        assert state(new_id(0)) == "gone"


def test_a_view_says_which_stages_never_start(app: late.App) -> None:
    add, told = app.tasks["add"], app.tasks["told"]

    @app.task(result_ttl=KEEP_S)
    def odd(number: int) -> object:
        return late.Discard("not wanted")

    def enqueue(*parts: Any) -> list[late.TaskId]:
        with connect(app.url) as tx:
            return app.enqueue_workflow(tx, late.chain(*parts), on_failure=told.call("x"))

    failed = enqueue(late.group(add.call(1, 13), told.call("y")), told.call("z"), told.call("z"))
    fails = enqueue(add.call(1, 13), told.call("z"))
    dropped = enqueue(odd.call(1), told.call("z"), told.call("z"))
    well = enqueue(add.call(1, 2))
    later = enqueue(add.options(delay=3_000).call(1, 2), told.call("z"))
    drain(app)

    with Control(app.url) as control:

        def states(ids: list[late.TaskId]) -> list[str]:
            return [stage.state for stage in control.tasks.show(ids[-1]).workflow]

        assert states(failed) == ["dead", "done", "waiting", "waiting", "done"]
        assert states(fails) == ["dead", "waiting", "done"]
        assert states(dropped) == ["discarded", "skipped", "skipped", "done"]
        assert states(well) == ["done", "skipped"]
        assert states(later) == ["parked", "waiting", "waiting"]
        control.dead_letters.redrive(Filter(task_id=fails[0]))
        assert states(fails) == ["parked", "waiting", "done"]
        control.dead_letters.purge(Filter())
        assert states(failed) == ["purged", "done", "skipped", "skipped", "done"]
        for task_id in (failed[2], dropped[2], well[1]):
            [group] = control.tasks.show(task_id).groups
            assert (group.state, group.outcome) == ("settled", "skipped")
            assert app.handle(task_id).state() == "settled"
        control.tasks.cancel(later[0])
        drain(app)
        assert states(fails) == ["dead", "waiting", "done"]
        assert control.groups.wait("default", failed[2], timeout_s=0).state == "settled"
        assert control.groups.wait("default", fails[1], timeout_s=0).state == "waiting"


def test_workflows_of_many_tasks(app: late.App) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    with connect(app.url) as tx:
        ids = app.enqueue_workflow(
            tx, late.chord([add.call(n, 1) for n in range(200)], total.then(late.RESULT))
        )
    assert drain(app) == {"done": 201}
    assert results(app, ids[-1:]) == [sum(range(1, 201))]
    execute(app.url, "delete from late_stage")


async def test_a_workflow_through_an_async_transaction(app: late.App) -> None:
    add = app.tasks["add"]
    async with connect_async(app.url) as tx:
        ids = await app.enqueue_workflow(tx, late.chain(add.call(1, 2), add.then(late.RESULT, 4)))
        alone = await app.enqueue(tx, add.call(1, 2), then=add.then(late.RESULT, 4))
    assert drain(app) == {"done": 4}
    assert app.handle(ids[1]).wait(timeout_s=0) == 7
    assert app.handle(alone).wait(timeout_s=0) == 3


def test_what_is_no_workflow_is_refused(app: late.App) -> None:
    add, total, told = app.tasks["add"], app.tasks["total"], app.tasks["told"]
    with connect(app.url) as tx:
        for wrong, why in (
            (add.call(1, 2), "late.chain"),
            (late.chain(told.call("x"), add.then(late.RESULT, 1)), "told result_ttl="),
            (late.chain(add.then(late.RESULT, 1)), "no task runs before it"),
            (late.chain(add.options(ordering_key="k").call(1, 2)), "ordering_key="),
            (late.chain(add.options(unique_key="k").call(1, 2)), "unique_key="),
            (late.chain(late.App(app.url).task(_other).call()), "another app"),
        ):
            with pytest.raises(InvalidTask, match=why):
                app.enqueue_workflow(tx, wrong)
        deep = late.chain(*[add.call(1, 2) for _ in range(101)])
        wide = late.group(*[add.call(1, 2) for _ in range(1_001)])
        linked = late.chain(*[late.group(*[add.call(1, 2) for _ in range(101)]) for _ in range(2)])
        for large in (deep, wide, linked):
            with pytest.raises(BatchTooLarge):
                app.enqueue_workflow(tx, large)
    with pytest.raises(InvalidTask, match="at least one"):
        late.chain()
    with pytest.raises(InvalidTask, match=r"takes task\.call"):
        late.group(add)  # type: ignore[arg-type]
    with pytest.raises(InvalidTask, match="takes a list of tasks"):
        late.chord(add.call(1, 2), add.call(1, 2))  # type: ignore[arg-type]
    with pytest.raises(InvalidTask, match=r"has no late\.RESULT"):
        add.then(1, 2)
    with pytest.raises(InvalidPayload, match="two"):
        add.then(late.RESULT, "text")
    with pytest.raises(InvalidPayload, match="add"):
        add.then(late.RESULT, 1, three=1)
    assert drain(app) == {}
    assert total.name == "total"


def _other() -> None: ...


def test_late_show_has_the_workflow(app: late.App) -> None:
    add = app.tasks["add"]
    with connect(app.url) as tx:
        ids = app.enqueue_workflow(tx, late.chain(add.call(1, 2), add.then(late.RESULT, 4)))
    with Control(app.url) as control:
        for task_id in ids:
            shown = control.tasks.show(task_id)
            assert shown.workflow is not None
            assert [stage.state for stage in shown.workflow] == ["started", "waiting"]
