"""A list of workflows, and one as a whole: its state, a wait for its end, its dead letters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import late
from late.control import Control, Filter, workflows
from late.control.dead_letters import dry_run
from late.errors import ConfigError, InvalidName
from late.model.ids import new_id
from late.model.task import TaskId
from late.outbox import connect
from late.testing import drain
from tests.integration.control_kit import rows
from tests.unit.workflow_kit import next_ms


@pytest.fixture
def app(url: str) -> late.App:
    app = late.App(url, shards=4)
    app.broken = True  # type: ignore[attr-defined]

    @app.task(retry=late.Retry(max_attempts=1))
    def fail(number: int) -> None:
        if app.broken:  # type: ignore[attr-defined]
            raise ValueError("unlucky")

    @app.task
    def work(number: int) -> None: ...

    @app.task
    def drop(number: int) -> None:
        raise late.Discard("not wanted")

    return app


@pytest.fixture
def control(url: str) -> Iterator[Control]:
    with Control(url) as control:
        yield control


def put(app: late.App, first: str, *, delay: float = 0, on_failure: bool = False) -> list[TaskId]:
    """Enqueue two tasks of this name side by side, and one behind them."""
    next_ms()
    task, work = app.tasks[first].options(delay=delay), app.tasks["work"]
    with connect(app.url) as tx:
        ids: list[TaskId] = app.enqueue_workflow(
            tx,
            late.chord([task.call(1), task.call(2)], work.call(3)),
            on_failure=work.call(4) if on_failure else None,
        )
    return ids


def counts(view: workflows.WorkflowView) -> tuple[object, ...]:
    sums = view.done + view.running + view.waiting + view.failed + view.cancelled
    assert sums == view.tasks
    return (view.state, view.tasks, view.done, view.running, view.waiting, view.failed, view.dead)


def test_the_newest_come_first_with_their_states(app: late.App, control: Control) -> None:
    assert control.workflows.find().workflows == ()
    made = [
        put(app, "work", on_failure=True),
        put(app, "fail", on_failure=True),
        put(app, "drop"),
        put(app, "work", delay=3_000),
        put(app, "work", delay=3_000),
    ]
    control.tasks.cancel(made[4][2])
    drain(app)
    made.append(put(app, "work"))
    page = control.workflows.find()
    assert [each.workflow_id for each in page.workflows] == [ids[0] for ids in reversed(made)]
    assert (page.after, page.looked) == (None, 20)
    assert [counts(each) for each in reversed(page.workflows)] == [
        ("done", 3, 3, 0, 0, 0, 0),  # The task for failures never ran.
        ("failed", 4, 1, 0, 1, 2, 2),
        ("failed", 3, 0, 0, 1, 2, 0),
        ("running", 3, 0, 2, 1, 0, 0),
        ("cancelled", 3, 0, 0, 0, 0, 0),
        ("running", 3, 0, 2, 1, 0, 0),
    ]
    assert {each.name for each in page.workflows} == {"work", "fail", "drop"}
    assert all(page.now_us - each.made_at_us < 3_600e6 for each in page.workflows)
    for state in workflows.STATES:
        some = control.workflows.find(state).workflows
        assert some == tuple(each for each in page.workflows if each.state == state)
    assert [each.name for each in control.workflows.find(name="drop").workflows] == ["drop"]
    assert control.workflows.find("done", name="drop").workflows == ()
    # By any of its tasks, one by one as in the list
    for ids, each in zip(reversed(made), page.workflows, strict=True):
        found = control.workflows.show(ids[-1])
        assert found is not None
        assert counts(found) == counts(each)
        assert (found.workflow_id, len(found.stages)) == (each.workflow_id, len(ids))


def test_pages_have_each_workflow_once(
    app: late.App, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement reads four stages: one workflow, and a part of the next."""
    monkeypatch.setattr(workflows, "ROWS", 4)
    made = [put(app, "work")[0] for _ in range(5)]
    seen: list[str] = []
    after = None
    while True:
        page = control.workflows.find(limit=2, after=after)
        seen += [each.workflow_id for each in page.workflows]
        after = page.after
        if after is None:
            break
        assert len(page.workflows) == 2
        assert after == seen[-1]
    assert seen == made[::-1]
    # A page that finds nothing ends at its bound, and says where.
    monkeypatch.setattr(workflows, "LOOKED", 8)
    page = control.workflows.find("failed")
    assert (page.workflows, page.looked, page.after) == ((), 8, made[3])
    page = control.workflows.find("failed", after=made[1])
    assert (page.workflows, page.after) == ((), None)


def test_the_dead_letters_of_one_workflow_go_back(
    app: late.App, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = put(app, "fail"), put(app, "fail")
    drain(app)
    assert control.workflows.find("running").workflows == ()
    which = Filter(workflow=mine[2], group="default")
    letters = {each.task_id for each in control.dead_letters.find(which)}
    assert letters == set(mine[:2])
    assert {each.task_id for each in control.dead_letters.page(which).letters} == letters
    monkeypatch.setattr(dry_run, "LOOKED", 3)  # Those of others are not looked at.
    told = control.dead_letters.redrive(which, dry_run=True)
    assert (told.count, set(told.task_ids), told.capped) == (2, letters, False)
    assert control.dead_letters.redrive(which).count == 2
    assert control.dead_letters.purge(Filter(workflow=other[0], queue="default")).count == 2
    # No worker has read either: the rows of the stages still say that the tasks are dead.
    assert rows(app.url, "select count(*) from late_stage where state = 'dead'") == [(4,)]
    found = {each.workflow_id: counts(each) for each in control.workflows.find().workflows}
    assert found[mine[0]] == ("running", 3, 0, 2, 1, 0, 0)
    assert found[other[0]] == ("failed", 3, 0, 0, 1, 2, 0)
    assert [each.workflow_id for each in control.workflows.find("running").workflows] == [mine[0]]
    assert [each.workflow_id for each in control.workflows.find("failed").workflows] == [other[0]]
    app.broken = False  # type: ignore[attr-defined]
    drain(app)
    done = control.workflows.wait(mine[1], timeout_s=0)
    assert done is not None
    assert counts(done) == ("done", 3, 3, 0, 0, 0, 0)


def test_a_wait_ends_when_nothing_of_it_can_run(app: late.App, control: Control) -> None:
    ids = put(app, "fail")
    found = control.workflows.wait(ids[2], timeout_s=0)
    assert found is not None
    assert counts(found) == ("running", 3, 0, 2, 1, 0, 0)
    drain(app)
    found = control.workflows.wait(ids[2], timeout_s=60)  # It waits behind dead letters for ever.
    assert found is not None
    assert counts(found) == ("failed", 3, 0, 0, 1, 2, 2)


def test_what_means_nothing_is_refused(app: late.App, control: Control) -> None:
    alone = new_id(0)
    assert control.workflows.show(alone) is None
    assert control.workflows.wait(alone) is None
    for wrong in ("x", "0190"):
        with pytest.raises(InvalidName):
            control.workflows.show(wrong)
        with pytest.raises(InvalidName):
            control.workflows.find(after=wrong)
        with pytest.raises(InvalidName):
            control.dead_letters.find(Filter(workflow=wrong))
    with pytest.raises(ConfigError, match="no state 'lost': running"):
        control.workflows.find("lost")  # type: ignore[arg-type]
    for limit in (0, workflows.LIMIT_MAX + 1):
        with pytest.raises(ConfigError, match="limit"):
            control.workflows.find(limit=limit)


def test_what_other_queues_have_is_left_out(app: late.App, control: Control) -> None:
    @app.task(queue="mail", retry=late.Retry(max_attempts=1))
    def send(number: int) -> None:
        raise ValueError("no such address")

    with connect(app.url) as tx:
        first = app.tasks["fail"].call(1)
        ids = app.enqueue_workflow(tx, late.chord([first, send.call(2)], send.call(3)))
    drain(app)

    def counted(queue: str) -> tuple[object, ...]:
        [listed] = control.workflows.find(sees=queue.__eq__).workflows
        whole = control.workflows.show(ids[1])
        assert whole is not None
        found = workflows.narrowed(whole, queue.__eq__)
        assert found is not None
        assert {each.queue for each in found.stages} == {queue}
        assert (counts(found), found.name) == (counts(listed), listed.name)
        assert found.workflow_id == listed.workflow_id == ids[0]
        return (listed.name, *counts(listed))

    assert counted("default") == ("fail", "failed", 1, 0, 0, 0, 1, 1)
    assert counted("mail") == ("", "failed", 2, 0, 0, 1, 1, 1)
    assert control.workflows.find(sees="news".__eq__).workflows == ()
    assert control.workflows.find(name="fail", sees="mail".__eq__).workflows == ()
    # A redrive of one queue changes nothing of what another has, before a worker reads it.
    which = Filter(workflow=ids[0], group="default", queue="default")
    assert control.dead_letters.redrive(which).count == 1
    assert counted("default") == ("fail", "running", 1, 0, 1, 0, 0, 0)
    assert counted("mail") == ("", "failed", 2, 0, 0, 1, 1, 1)
    assert control.workflows.find("running", sees="mail".__eq__).workflows == ()
