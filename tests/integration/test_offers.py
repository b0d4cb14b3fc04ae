"""A worker that cannot run a task hands it to one that can, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import late
from late.config import load
from late.control import Control, Filter
from late.outbox import connect
from late.worker.worker import Worker

TASKS = 40


@asynccontextmanager
async def working(*apps: late.App) -> AsyncIterator[list[Worker]]:
    """Two workers or more, each with shards of its own."""
    workers = [Worker(app, settings=load(concurrency=8, lease_ttl_s=3.0)) for app in apps]
    for worker in workers:
        await worker.start()
    try:
        async with asyncio.timeout(60):
            while not all(worker.scheduler.cores for worker in workers):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield workers
    finally:
        for worker in workers:
            worker.ask_to_stop()
        await asyncio.gather(*(worker.wait() for worker in workers))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def rest(url: str) -> tuple[int, list[str]]:
    """The number of offers, and why tasks are dead."""
    with Control(url) as control:
        dead = [letter.reason for letter in control.dead_letters.find(Filter())]
        with control._database.engine.connect() as connection:
            offers = connection.exec_driver_sql("select count(*) from late_offer").scalar_one()
    return offers, dead


def an_app(url: str, ran: list[tuple[str, int, int]], who: str, *, nacks: bool = False) -> late.App:
    app = late.App(url)

    @app.task
    def print_label(ctx: late.Context, order: int) -> None:
        if nacks:
            raise late.Nack("no printer")
        ran.append((who, order, ctx.attempt))

    return app


async def test_what_one_worker_refuses_another_runs_as_the_same_attempt(url: str) -> None:
    ran: list[tuple[str, int, int]] = []
    without, with_ = an_app(url, ran, "without", nacks=True), an_app(url, ran, "with")
    async with working(without, with_) as workers:
        with connect(url) as tx:
            for order in range(TASKS):
                with_.tasks["print_label"].enqueue(tx, order)
        await until(lambda: len(ran) >= TASKS)
        await until(lambda: not workers[0].scheduler.unrecorded and not workers[0].offers.pool.out)
    assert sorted(ran) == [("with", order, 1) for order in range(TASKS)]
    assert await asyncio.to_thread(rest, url) == (0, [])


async def test_a_task_that_only_the_new_version_knows_runs_beside_the_old_one(url: str) -> None:
    ran: list[tuple[str, int, int]] = []
    old, new = late.App(url), an_app(url, ran, "new")
    async with working(old, new) as workers:
        with connect(url) as tx:
            for order in range(TASKS):
                new.tasks["print_label"].enqueue(tx, order)
        await until(lambda: len(ran) >= TASKS)
        await until(lambda: not workers[0].scheduler.unrecorded and not workers[0].offers.pool.out)
    assert sorted(ran) == [("new", order, 1) for order in range(TASKS)]
    assert await asyncio.to_thread(rest, url) == (0, [])


async def test_its_rules_are_those_of_the_worker_that_runs_it(url: str) -> None:
    starts: list[int] = []
    old, new = late.App(url), late.App(url)

    @new.task(retry=late.Retry(max_attempts=1))
    def never_again(ctx: late.Context, order: int) -> None:
        starts.append(order)
        raise ValueError("no")

    async with working(old, new):
        with connect(url) as tx:
            for order in range(TASKS):
                never_again.enqueue(tx, order)
        await until(lambda: len(starts) >= TASKS)
        await until(lambda: len(rest(url)[1]) == TASKS)
    assert sorted(starts) == list(range(TASKS))
    assert await asyncio.to_thread(rest, url) == (0, ["attempts_exhausted"] * TASKS)


@pytest.mark.parametrize("newer_first", [True, False], ids=["the new one's", "the old one's"])
async def test_a_parameter_that_only_one_version_takes(url: str, newer_first: bool) -> None:
    ran: list[int] = []
    old, new = late.App(url), late.App(url)

    @old.task(name="charge")
    def old_charge(order: int) -> None:
        ran.append(order)

    @new.task(name="charge")
    def charge(order: int, currency: str) -> None:
        ran.append(order)

    async with working(old, new):
        with connect(url) as tx:
            for order in range(TASKS):
                if newer_first:
                    charge.enqueue(tx, order, "EUR")
                else:
                    old_charge.enqueue(tx, order)
        await until(lambda: len(ran) >= TASKS)
    assert sorted(ran) == list(range(TASKS))
    assert (await asyncio.to_thread(rest, url))[1] == []


async def test_what_nobody_can_run_waits_where_it_can_be_seen(url: str) -> None:
    maker = late.App(url)

    @maker.task
    def forgotten() -> None: ...

    async with working(late.App(url), late.App(url)):
        with connect(url) as tx:
            task_id = forgotten.enqueue(tx)

        def state() -> str:
            with Control(url) as control:
                [group] = control.tasks.show(task_id).groups
            return f"{group.state} {group.reason} {group.attempts}"

        await until(lambda: state() == "parked unknown 0")
    assert (await asyncio.to_thread(rest, url)) == (0, [])
