"""Batch handlers in a real worker, on every store."""

from __future__ import annotations

import late
from late.control import Control, Filter
from late.outbox import connect
from late.testing import drain


def test_tasks_of_a_page_are_one_call_and_end_each_for_itself(url: str) -> None:
    app, calls, plain = late.App(url), [], []
    retry = late.Retry(max_attempts=3, base=0.02, cap=0.02)

    @app.task(batch=25, queue="index", retry=retry)
    async def index(batch: late.Batch[int]) -> None:
        calls.append(batch.values)
        for item in batch:
            if item.value == 7:
                item.fail(ValueError("bad document"))
            if item.value == 8 and item.attempt == 1:
                item.fail(late.Retry())

    @app.task
    async def note(n: int) -> None:
        plain.append(n)

    with connect(url) as tx:
        app.enqueue_many(tx, [index.call(n) for n in range(100)])
        app.enqueue_many(tx, [note.call(n) for n in range(5)])
    assert drain(app, wait_s=5.0) == {"done": 104, "dead": 1}
    tried = sorted(n for call in calls for n in call)
    assert tried == sorted([*range(100), 7, 7, 8])
    assert max(len(call) for call in calls) > 1
    assert max(len(call) for call in calls) <= 25
    assert len(calls) < 60
    assert sorted(plain) == [0, 1, 2, 3, 4]
    with Control(url) as control:
        [letter] = control.dead_letters.find(Filter())
        assert control.verify().problems == ()
    assert (letter.name, letter.attempts, letter.reason) == ("index", 3, "attempts_exhausted")
