"""Cancel, reschedule and redrive, by records of the caller's transaction and a real worker."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

import late
from late.control import Control
from late.errors import InvalidName, InvalidSchedule, InvalidTask
from late.model.ids import new_id
from late.outbox import connect, connect_async
from late.testing import drain, inline
from late.worker.worker import Worker


def states(url: str, task_id: str) -> list[str]:
    with Control(url) as control:
        return [group.state for group in control.tasks.show(task_id).groups]


@pytest.fixture
def app(url: str) -> late.App:
    app = late.App(url)

    @app.task(retry=late.Retry(max_attempts=1))
    def charge(amount: int) -> None:
        if amount < 0:
            raise ValueError(amount)

    return app


def test_a_cancelled_task_never_runs_wherever_it_was(app: late.App, url: str) -> None:
    charge = app.tasks["charge"]
    with connect(url) as tx:
        early = [charge.enqueue(tx, -1), charge.options(delay=3600).enqueue(tx, -1)]
        key = [charge.options(delay=3600, ordering_key="k").enqueue(tx, -1) for _ in range(2)]
        app.cancel(tx, early[0])  # in the transaction of its task
    assert drain(app) == {"cancelled": 1}
    with connect(url) as tx:
        for task_id in [early[1], *key]:
            app.cancel(tx, task_id)
    assert drain(app) == {"cancelled": 3}
    with Control(url) as control:
        assert control.dead_letters.find() == []
        assert control.status.read().queues == () or all(
            q.parked.n == q.depth.n == 0 for q in control.status.read().queues
        )


def test_a_cancel_that_is_rolled_back_asks_nothing(app: late.App, url: str) -> None:
    charge = app.tasks["charge"]
    with connect(url) as tx:
        task_id = charge.enqueue(tx, 1)
    with pytest.raises(KeyError), connect(url) as tx:  # noqa: PT012
        app.cancel(tx, task_id)
        raise KeyError
    assert drain(app) == {"done": 1}


def test_a_cancel_of_what_nobody_knows_ends(app: late.App, url: str) -> None:
    with connect(url) as tx:
        command = app.cancel(tx, new_id(3))
        app.cancel(tx, command)
    assert drain(app) == {}
    assert states(url, command) in (["settled"], ["unknown"])


def test_a_reschedule_moves_a_far_task_here_and_a_near_one_away(app: late.App, url: str) -> None:
    charge = app.tasks["charge"]
    with connect(url) as tx:
        far = charge.options(delay=3600).enqueue(tx, 1)
    assert drain(app) == {}
    assert states(url, far) == ["parked"]
    with connect(url) as tx:
        near = charge.enqueue(tx, 2)
        app.reschedule(tx, near, at=datetime.now(UTC) + timedelta(hours=1))
        app.reschedule(tx, far, delay=0)
    assert drain(app, wait_s=1.0) == {"done": 1}
    assert states(url, near) == ["parked"]
    assert states(url, far) in (["settled"], ["unknown"])


def test_a_dead_letter_is_sent_back_with_other_arguments(app: late.App, url: str) -> None:
    charge = app.tasks["charge"]
    with connect(url) as tx:
        first, second = charge.enqueue(tx, -1), charge.enqueue(tx, -2)
    assert drain(app) == {"dead": 2}
    with connect(url) as tx:
        app.redrive(tx, first, call=charge.call(7))
        app.redrive(tx, second)
    assert drain(app, wait_s=1.0) == {"done": 1, "dead": 1}


def test_bad_input_is_refused_before_any_sql(app: late.App, url: str) -> None:
    task_id = new_id(0)
    with connect(url) as tx:
        for bad in ("", "x" * 36, task_id.upper() + "\n", 7, None):
            with pytest.raises(InvalidName):
                app.cancel(tx, bad)
        with pytest.raises(InvalidName):
            app.cancel(tx, task_id, group="no spaces")
        for asked in ({}, {"at": datetime.now(UTC), "delay": 1}, {"at": datetime(2030, 1, 1)}):
            with pytest.raises(InvalidSchedule):
                app.reschedule(tx, task_id, **asked)
        for delay in (float("nan"), 367 * 86_400):
            with pytest.raises(InvalidSchedule):
                app.reschedule(tx, task_id, delay=delay)
        with pytest.raises(InvalidTask):
            app.redrive(tx, task_id, call="charge")
        with pytest.raises(InvalidName, match="reserved"):
            late.App(url, strict=False).send(tx, "late.cancel", {"task_id": task_id})
    assert drain(app) == {}


async def test_a_running_attempt_is_the_last_one(url: str) -> None:
    app = late.App(url)
    started, go_on = asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    @app.task(retry=late.Retry(max_attempts=5, base=0.001))
    async def slow(ctx: late.AsyncContext) -> None:
        attempts.append(ctx.attempt)
        started.set()
        await go_on.wait()
        raise ValueError("cut short")

    async def ended() -> None:
        while sum(core.state.unsettled for core in worker.scheduler.cores.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    worker = Worker(app)
    await worker.start()
    try:
        async with asyncio.timeout(120), connect_async(url) as tx:
            task_id = await slow.enqueue(tx)
        async with asyncio.timeout(120):
            await started.wait()
            async with connect_async(url) as tx:
                await app.cancel(tx, task_id)
            # Read, and waiting for the attempt: a command is unsettled as long as its task is.
            while sum(core.state.unsettled for core in worker.scheduler.cores.values()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            go_on.set()
            with Control(url) as control:
                await ended()
                assert control.dead_letters.find() == []
    finally:
        await worker.stop()
    assert attempts == [1]


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_handler_that_looks_sees_a_cancel_and_ends(url: str, kind: str) -> None:
    app = late.App(url)
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    seen: list[bool] = []

    @app.task(retry=late.Retry(max_attempts=5, base=0.001))
    async def waits(ctx: late.AsyncContext) -> None:
        seen.append(ctx.cancel_requested)
        started.set()
        while not ctx.cancel_requested:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        seen.append(True)

    @app.task(retry=late.Retry(max_attempts=5, base=0.001))
    def works(ctx: late.Context) -> None:
        seen.append(ctx.cancel_requested)
        loop.call_soon_threadsafe(started.set)
        while not ctx.cancel_requested:
            time.sleep(0.01)
        seen.append(True)

    worker = Worker(app)
    await worker.start()
    try:
        async with asyncio.timeout(120):
            async with connect_async(url) as tx:
                task_id = await (waits if kind == "async" else works).enqueue(tx)
            await started.wait()
            async with connect_async(url) as tx:
                await app.cancel(tx, task_id)
            while len(seen) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await worker.stop()
    assert seen == [False, True]


def test_inline_mode_takes_a_cancelled_task_out(app: late.App) -> None:
    charge = app.tasks["charge"]
    with inline(app) as box:
        task_id = charge.enqueue(None, 1)
        charge.enqueue(None, 2)
        app.cancel(None, task_id)
        assert [each.args["amount"] for each in box.pending] == [2]
