"""`late verify` beside a busy worker: one moment of the database, so no false alarm."""

from __future__ import annotations

import asyncio

import msgspec

import late
from late.control import Control, Filter
from late.schema.engine import make_engine, write
from late.worker.worker import Worker
from tests.conformance.backends import Backend

LOOKS = 50


def service(url: str) -> late.App:
    """Tasks that go everywhere: done, retried, dead, delayed, behind a key."""
    app = late.App(url)

    @app.task
    async def quick(ctx: late.AsyncContext) -> None:
        pass

    @app.task(retry=late.Retry(max_attempts=3, base=0.01))
    async def twice(ctx: late.AsyncContext) -> None:
        if ctx.attempt == 1:
            raise ValueError("once more")

    @app.task(retry=late.Retry(max_attempts=1))
    async def hopeless(ctx: late.AsyncContext) -> None:
        raise ValueError("never")

    return app


def enqueue(url: str, app: late.App, turn: int) -> None:
    engine = make_engine(url)
    tasks = app.tasks
    calls = [
        *(tasks["quick"].call() for _ in range(10)),
        tasks["quick"].options(unique_key=f"k{turn % 7}").call(),
        *(tasks["quick"].options(ordering_key="o").call() for _ in range(4)),
        *(tasks["quick"].options(delay=d).call() for d in (0.05, 3.0)),
        *(tasks["twice"].call() for _ in range(3)),
        tasks["twice"].options(ordering_key="o").call(),
        tasks["hopeless"].call(),
    ]
    try:
        write(engine, lambda tx: app.enqueue_many(tx, calls))
    finally:
        engine.dispose()


async def test_a_running_fleet_raises_no_false_alarm(url: str, backend: Backend) -> None:
    app = service(url)
    worker = Worker(app)
    looks = LOOKS // 5 if backend.emulated else LOOKS
    seen: set[tuple[object, ...]] = set()
    await worker.start()
    try:
        with Control(url) as control:
            for look in range(looks):
                # Both at once, and the worker beside them.
                looking = asyncio.create_task(asyncio.to_thread(control.verify))
                await asyncio.to_thread(enqueue, url, app, look)
                if look % 5 == 4:
                    await asyncio.to_thread(
                        control.dead_letters.redrive, Filter(name="hopeless"), limit=5
                    )
                found = await looking
                assert found.problems == (), f"look {look}"
                seen.add(msgspec.structs.astuple(found.totals))
    finally:
        await worker.stop()
    assert len(seen) > looks // 2, "it was not busy"
