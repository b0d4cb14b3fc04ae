"""Histories of tasks: each step with the settlement that it is part of, on every store."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import msgspec

import late
from late.control import Control, Filter, audit
from late.control.task_list.model import TaskFilter
from late.control.views import TaskInGroup
from late.model.ids import new_id
from late.outbox import connect
from late.store.base import SettleResult, Step, Store
from late.testing import drain
from tests.conformance.kit import own
from tests.integration.control_kit import execute, rows

NUMBERS = "select number, event, worker from late_history order by task_id, number"


def in_group(url: str, task_id: str, group: str = "default") -> TaskInGroup:
    with Control(url) as control:
        return next(g for g in control.tasks.show(task_id).groups if g.group == group)


def test_every_step_of_a_task_is_shown(url: str) -> None:
    app = late.App(url)
    quick = late.Retry(max_attempts=3, base=0.001, jitter="none")

    @app.task(history=True, retry=quick)
    def charge(ctx: late.Context, how: str) -> None:
        if how == "dies" or (how == "twice" and ctx.attempt == 1):
            raise ConnectionError("x" * 2_000)

    @app.task
    def plain() -> None: ...

    with connect(url) as tx:
        twice, dies = (charge.enqueue(tx, how) for how in ("twice", "dies"))
        unkept = plain.enqueue(tx)
        cancelled = charge.options(delay=timedelta(days=1)).enqueue(tx, "never")
        app.cancel(tx, cancelled)
    assert drain(app, wait_s=2.0) == {"done": 2, "dead": 1, "cancelled": 1}
    steps = in_group(url, twice).history
    assert [(s.number, s.event, s.detail.attempt) for s in steps] == [
        (1, "retried", 1),
        (2, "done", 2),
    ]
    first, second = (step.detail for step in steps)
    assert steps[0].worker == steps[1].worker != ""
    assert first.target == "local"
    assert first.until_us is not None
    assert second.started_at_us is not None
    assert steps[0].at_us <= first.until_us <= second.started_at_us
    assert len(first.error or "") == 500
    assert (second.until_us, second.error) == (None, None)
    found = in_group(url, dies)
    assert [s.event for s in found.history] == ["retried", "retried", "dead"]
    assert found.history[-1].detail.reason == "attempts_exhausted"
    assert [s.event for s in in_group(url, cancelled).history] == ["delayed", "cancelled"]
    assert in_group(url, unkept).history == ()
    # A task that is gone from the log is known by its history, until that is old as well.
    execute(url, "delete from late_task where task_id = :id", id=twice)
    assert in_group(url, twice).state == "settled"
    with Control(url) as control:
        of_queue = control.tasks.find("done", TaskFilter(queue="default", name=charge.name)).tasks
        ends = {each.task_id: (each.reason, each.queue, each.name) for each in of_queue}
        assert ends == {
            task_id: (state, "default", charge.name)
            for task_id, state in ((twice, "done"), (dies, "dead"), (cancelled, "cancelled"))
        }
        for other in (TaskFilter(queue="mail"), TaskFilter(name=plain.name)):
            assert control.tasks.find("done", other).tasks == ()
        assert control.sweep().steps == 0
        assert control.sweep(history_keep_s=0).steps == 7
    assert rows(url, NUMBERS) == []
    assert in_group(url, twice).state == "unknown"


def test_delays_and_the_ways_back_from_the_dead_letters_are_steps(url: str) -> None:
    app, broken = late.App(url), [True]

    @app.task(history=True, retry=late.Retry(max_attempts=1))
    def charge(n: int) -> None:
        if broken[0] or n < 0:
            raise ConnectionError

    @app.task(retry=late.Retry(max_attempts=1))
    def plain() -> None:
        if broken[0]:
            raise ConnectionError

    with connect(url) as tx:
        dies, theirs = charge.enqueue(tx, 1), charge.enqueue(tx, 3)
        unkept = plain.enqueue(tx)
        later = charge.options(delay=timedelta(days=1)).enqueue(tx, 2)
    assert drain(app) == {"dead": 3}
    broken[0] = False
    with Control(url) as control:
        assert control.dead_letters.redrive(Filter(task_id=theirs)).count == 1
        with connect(url) as tx:
            app.redrive(tx, dies, call=charge.call(-1))
            app.redrive(tx, unkept)
            app.redrive(tx, later)  # it is no dead letter: nothing happens, and no step says so
        assert drain(app) == {"done": 2, "dead": 1}
        assert control.dead_letters.purge(Filter(task_id=dies)).count == 1
    by_command, by_operator = in_group(url, dies).history, in_group(url, theirs).history
    assert [s.event for s in by_command] == ["dead", "redriven", "dead", "purged"]
    assert [s.number for s in by_command] == [1, 2, 3, 4]
    assert [s.event for s in by_operator] == ["dead", "redriven", "done"]
    # An operator's step has his name, the other one that of the worker which found the command.
    assert by_operator[1].worker == by_command[3].worker == audit.actor()
    assert by_command[1].worker not in (audit.actor(), "")
    # By the worker's idea of the database's clock, which is corrected now and then.
    times = [s.at_us for s in by_command]
    assert all(later - earlier > -100_000 for earlier, later in pairwise(times)), times
    assert [s.event for s in in_group(url, later).history] == ["delayed"]
    assert in_group(url, later).history[0].detail.until_us is not None
    assert in_group(url, unkept).history == ()
    execute(url, "delete from late_task where task_id = :id", id=dies)
    assert in_group(url, dies).state == "settled"


async def test_steps_are_numbered_and_come_with_their_settlement(store: Store, url: str) -> None:
    owner = await own(store)
    one, two = sorted(new_id(0) for _ in range(2))
    steps = (Step(two, 5, "retried"), Step(one, 6, "retried", '{"attempt":1}'), Step(one, 7, "x"))
    first = owner.next(history=steps)
    assert await store.settle([first]) == [SettleResult.SETTLED]
    assert await store.settle([first]) == [SettleResult.SETTLED]  # again: nothing is added
    owner.accept(first)
    fenced = msgspec.structs.replace(owner.next(history=steps), seq=first.seq)
    assert await store.settle([fenced]) == [SettleResult.FENCED]
    await owner.settle(history=(Step(one, 8, "done"),))
    other = await own(store, name="w2", group="audit")
    await other.settle(history=(Step(one, 9, "done"),))
    found = sorted((number, event, worker) for number, event, worker in rows(url, NUMBERS))
    assert found == [
        (1, "done", "w2"), (1, "retried", "w1"), (1, "retried", "w1"), (2, "x", "w1"),
        (3, "done", "w1"),
    ]  # fmt: skip


def test_an_app_keeps_the_history_of_all_its_tasks() -> None:
    app = late.App("sqlite:///nowhere.db", history=True)
    task = app.task(lambda: None, name="one")
    app.remote("two", target="billing")
    app.route("mail", target="pull")
    assert task.policy.history
    assert app.tasks["two"].policy.history
    assert app.routes["mail"].history
    other = late.App("sqlite:///nowhere.db")
    assert not other.task(lambda: None, name="one").policy.history
