"""The drawing of a task's attempts, and the links of its page."""

from __future__ import annotations

import msgspec

from late.control.views import Reported, StepView, TaskInGroup, TaskView
from late.model.task import AttemptError, StepDetail
from late.model.worker_report import Run, WorkerReport
from late.web.models import task, task_axis
from tests.unit.test_web_views import NOW_US


def kinds(group: TaskInGroup, now_us: int) -> list[tuple[str, int, int]]:
    made = TaskView("id", 3, 0, (group,), created_at_us=0)
    drawn = task_axis.axis(made, group, now_us)
    return [] if drawn is None else [(bar.kind, bar.x, bar.width) for bar in drawn.bars]


def test_attempts_are_drawn_on_one_axis() -> None:
    steps = (
        StepView(1, 300, "retried", "w1", StepDetail(1, "local", 200, 100, error="no")),
        StepView(2, 1_000, "done", "w2", StepDetail(2, "local", 800, 200)),
    )
    ended = TaskInGroup("default", "settled", history=steps)
    assert kinds(ended, 9_000) == [
        ("waits", 0, 200), ("waits", 300, 500), ("failed", 200, 100), ("done", 800, 200),
    ]  # fmt: skip
    [life] = task.lives(TaskView("id", 3, 0, (ended,), created_at_us=0), 9_000)
    assert life.axis is not None
    assert life.axis.now is None
    assert life.axis.says.startswith("2 attempts in 1 ms")
    assert life.axis.bars[-1].says == "attempt 2 done, ran 0 ms, on w2"


def test_what_is_due_and_what_has_no_history_is_drawn_as_far_as_it_is_known() -> None:
    errors = (AttemptError(1, 500, "w1", "boom"),)
    due = TaskInGroup("default", "parked", reason="retry", due_at_us=1_000, errors=errors)
    assert kinds(due, 750) == [
        ("waits", 0, 500), ("waits", 500, 250), ("due", 750, 250), ("failed", 500, 6),
    ]  # fmt: skip
    overdue = kinds(due, 5_000)
    assert overdue[-1] == ("failed", 500, 6)
    assert "due" not in [kind for kind, _, _ in overdue]
    gone = TaskInGroup("default", "dead", reason="failed", dead_at_us=600, errors=errors)
    assert kinds(gone, 9_000) == [("waits", 0, 1_000), ("dead", 994, 6)]
    before = (AttemptError(1, -500, "w1", "boom"), AttemptError(2, 500, "w1", "boom"))
    early = msgspec.structs.replace(gone, errors=before, dead_at_us=500)
    assert kinds(early, 9_000) == [("waits", 0, 1_000), ("failed", 0, 6), ("dead", 994, 6)]
    assert kinds(TaskInGroup("default", "logged"), 400) == [("waits", 0, 1_000)]
    assert kinds(TaskInGroup("default", "settled"), 400) == []


def test_a_task_links_to_its_trace_its_key_and_its_cost() -> None:
    trace_id, span_id = "4b" * 16, "f0" * 8
    parent = f"00-{trace_id}-{span_id}-01"
    made = TaskView("id", 3, 5, (), queue="mail", headers={"traceparent": parent},
                    options={"ordering_key": "user 7"})  # fmt: skip
    found = {link.label: link.href for link in task.links(made, "https://traces/{trace}?x")}
    assert found == {
        "Trace": f"https://traces/{trace_id}?x",
        "Key": "/ui/tasks?state=parked&queue=mail&key=user%207",
        "Cost": "/ui/cost",
    }
    [trace, *_] = task.links(made)
    assert (trace.href, trace.text) == ("", trace_id)


def test_a_task_that_runs_is_told_with_its_worker() -> None:
    open_ = TaskInGroup("default", "open")
    made = TaskView("id", 3, 5, (open_, TaskInGroup("other", "open")), created_at_us=10)
    run = Run("default", "mail", "send", "id", NOW_US - 90_000_000, 2)
    elsewhere = msgspec.structs.replace(run, task_id="another")
    report = WorkerReport(worker_id="w1", address="host:7", runs=(elsewhere, run))
    found = task.lives(made, NOW_US, [Reported(report, NOW_US, 1.0, True)])
    assert [each.now for each in found] == [
        "runs in worker host:7 for 1.5 min, attempt 2", "runs, or is due within seconds",
    ]  # fmt: skip
    [old, _] = task.lives(made, NOW_US, [Reported(report, NOW_US, 500.0, True)])
    assert old.now == "runs, or is due within seconds"


def test_a_task_that_runs_is_drawn_and_an_attempt_that_cannot_be_ended_is_told_too() -> None:
    open_ = TaskInGroup("default", "open")
    made = TaskView("id", 3, 0, (open_,), created_at_us=NOW_US - 100_000_000)
    run = Run("default", "mail", "send", "id", NOW_US - 90_000_000, 1)
    again = msgspec.structs.replace(run, since_us=NOW_US - 25_000_000)
    reports = [
        Reported(WorkerReport(worker_id=name, address=f"host:{name}", **told), NOW_US, 1.0, True)
        for name, told in (
            ("w1", {"runs": (run,), "stuck": (run,)}), ("w2", {"runs": (again,)}),
        )
    ]  # fmt: skip
    [life] = task.lives(made, NOW_US, reports)
    assert life.now == (
        "runs in worker host:w2 for 25 s; still in worker host:w1 for 1.5 min, from before its"
        " shard moved"
    )
    assert life.axis is not None
    found = [(bar.kind, bar.x, bar.width, bar.says) for bar in life.axis.bars]
    assert found == [("waits", 0, 100, "waited 10 s"), ("runs", 100, 900, "runs for 1.5 min")]
