"""The control plane beside a running worker: what it changes from outside is found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import late
from late import events
from late.control import Control, Filter
from late.errors import StoreRefused
from late.model.ids import shard_of
from late.schema.engine import make_engine, writing
from late.store.base import Settlement, SettleResult
from late.worker.worker import Worker


def enqueue(url: str, app: late.App, name: str) -> str:
    engine = make_engine(url)
    try:
        with writing(engine) as connection:
            return app.send(connection, name)
    finally:
        engine.dispose()


async def dead_letter(control: Control, task_id: str) -> None:
    """Until the task is a dead letter: the database is the only one that can say so."""
    async with asyncio.timeout(120):
        while not control.dead_letters.find(Filter(task_id=task_id)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_redriven_task_runs_although_its_owner_never_stopped(url: str) -> None:
    app = late.App(url)
    mended = asyncio.Event()
    done = asyncio.Event()
    attempts: list[int] = []

    @app.task(retry=late.Retry(max_attempts=2, base=0.001))
    async def fragile(ctx: late.AsyncContext) -> None:
        attempts.append(ctx.attempt)
        if not mended.is_set():
            raise ValueError("not yet")
        done.set()

    worker = Worker(app)
    await worker.start()
    try:
        task_id = enqueue(url, app, "fragile")
        with Control(url) as control:
            await dead_letter(control, task_id)
            (letter,) = control.dead_letters.find()
            assert (letter.reason, letter.attempts) == ("attempts_exhausted", 2)
            assert len(letter.errors) == 2
            assert "not yet" in letter.errors[-1].error
            mended.set()
            assert control.dead_letters.redrive(Filter(name="fragile")).task_ids == (task_id,)
            async with asyncio.timeout(120):
                await done.wait()
            assert attempts == [1, 2, 1]
            assert control.dead_letters.find() == []
    finally:
        await worker.stop()


async def test_a_worker_whose_settlements_are_refused_says_so_and_goes_on_when_they_are_not(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = late.App(url)
    attempts: list[int] = []

    @app.task
    async def quick(ctx: late.AsyncContext) -> None:
        attempts.append(ctx.attempt)

    async def refuse(settlements: Sequence[Settlement]) -> list[SettleResult]:
        raise StoreRefused("permission denied for table late_timer")

    worker, told = Worker(app), list[object]()
    end = events.default.subscribe(
        lambda _, values: told.append(values["shard"]), [events.SETTLEMENT_REFUSED]
    )
    await worker.start()
    try:
        async with asyncio.timeout(120):
            with monkeypatch.context() as patch:
                patch.setattr(worker._store, "settle", refuse)
                task_id = enqueue(url, app, "quick")
                while shard_of(task_id) not in told:  # noqa: ASYNC110  only the worker's log tells
                    await asyncio.sleep(0.02)
            recorded = {"settled", "unknown"}  # Its row may have left the log by then.
            while app.handle(task_id).state() not in recorded:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert attempts == [1], "the settlement was kept, so nothing runs again"
    finally:
        end()
        await worker.stop()


async def test_a_schedule_run_by_hand_and_the_workers_in_status(url: str) -> None:
    app = late.App(url)
    ran = asyncio.Event()

    @app.schedule("0 3 1 1 *", tz="Asia/Tokyo", args={"year": 7})
    @app.task
    async def yearly(year: int) -> None:
        assert year == 7
        ran.set()

    worker = Worker(app)
    await worker.start()
    try:
        with Control(url) as control:
            (schedule,) = control.schedules.all()
            assert (schedule.name, schedule.zone) == ("yearly", "Asia/Tokyo")
            [told] = control.audit.entries(subject="schedule:yearly")
            assert (told.action, told.actor) == ("schedule.declare", worker.address)
            control.schedules.run("yearly")
            async with asyncio.timeout(120):
                await ran.wait()
            (live,) = control.status.read().workers
            assert live.worker_id == worker.id
            failed = [c for c in control.doctor() if c.result == "failed"]
            assert failed == []
    finally:
        await worker.stop()
    with Control(url) as control:
        assert control.status.read().workers == ()
        assert {shard.owner for shard in control.status.read().shards} == {None}
