"""Workflows in inline mode."""

from __future__ import annotations

import late
from late.testing import inline


def test_a_workflow_runs_in_order_with_its_results() -> None:
    app = late.App("sqlite:///x.db")
    seen: list[object] = []

    @app.task(result_ttl=60)
    def add(one: int, two: int) -> int:
        return one + two

    @app.task(result_ttl=60)
    def stop() -> object:
        return late.Discard("not wanted")

    @app.task
    def note(value: str | list[int]) -> None:
        seen.append(value)

    with inline(app) as box:
        ids = app.enqueue_workflow(
            None, late.chord([add.call(1, 2), add.call(3, 4)], note.then(late.RESULT))
        )
        assert [each.task_id for each in box.pending] == ids[:2]
        assert box.run() == 3
        failed = app.enqueue_workflow(
            None, late.chain(stop.call(), note.then(late.RESULT)), on_failure=note.then(late.RESULT)
        )
        assert box.run() == 2
    assert seen == [[3, 7], failed[0]]


def test_a_cancel_takes_all_of_it() -> None:
    app = late.App("sqlite:///x.db")

    @app.task
    def nothing() -> None: ...

    with inline(app) as box:
        ids = app.enqueue_workflow(
            None, late.chain(late.group(nothing.call(), nothing.call()), nothing.call())
        )
        app.cancel(None, ids[2])
        assert box.run() == 0
