"""Workers of several consumer groups: the same tasks, on every store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import late
from late.config import WorkerConfig
from late.control import Control
from late.errors import ConfigError
from late.model.task import CONTROL_QUEUE
from late.outbox import connect
from late.testing import drain
from late.worker.worker import Worker
from tests.support.leases import LONG_LEASES

QUICK = WorkerConfig(poll_max_s=0.05, grace_s=60.0, **LONG_LEASES)


@pytest.fixture
def control(url: str) -> Any:
    with Control(url) as made:
        yield made


async def until(condition: Callable[[], Any], limit_s: float = 120.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 (what is awaited is in another process's database)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def working(app: late.App, *groups: str) -> AsyncIterator[Worker]:
    worker = Worker(app, groups=groups, settings=QUICK)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


def of(url: str, group: str, ran: list[tuple[str, int, bool]]) -> late.App:
    """The service as one team deploys it."""
    app = late.App(url, group=group)

    @app.task(queue="orders")
    async def ship(ctx: late.AsyncContext, n: int) -> None:
        ran.append((ctx.group, n, ctx.is_replay))

    @app.task(queue="mail")
    def greet(ctx: late.Context, n: int) -> None:
        ran.append((ctx.group, n, ctx.is_replay))

    return app


def enqueue(app: late.App, numbers: range, *, task: str = "ship") -> list[str]:
    with connect(app.url) as tx:
        return list(app.enqueue_many(tx, [app.tasks[task].call(n) for n in numbers]))


def test_every_group_runs_every_task_once(url: str, control: Control) -> None:
    ran: list[tuple[str, int, bool]] = []
    control.groups.create("audit", start="beginning")
    control.groups.create("post", queues=["mail"], start="beginning")
    apps = {name: of(url, name, ran) for name in ("default", "audit", "post")}
    enqueue(apps["default"], range(50))
    enqueue(apps["default"], range(50, 60), task="greet")
    assert drain(apps["default"]) == {"done": 60}
    assert drain(apps["audit"]) == {"done": 60}
    assert drain(apps["post"]) == {"done": 10}
    assert Counter(ran) == Counter(
        [(g, n, False) for g in ("default", "audit") for n in range(60)]
        + [("post", n, False) for n in range(50, 60)]
    )
    found = control.verify()
    assert (found.problems, found.totals.waiting) == ((), 0)


def test_a_command_reaches_a_group_of_some_queues(url: str, control: Control) -> None:
    ran: list[tuple[str, int, bool]] = []
    control.groups.create("post", queues=["mail"], start="beginning")
    post = of(url, "post", ran)
    with connect(url) as tx:
        mail, order = (
            post.enqueue(tx, post.tasks[name].options(delay=600).call(n))
            for n, name in enumerate(("greet", "ship"))
        )
    drain(post)
    with connect(url) as tx:
        post.cancel(tx, mail)
        post.cancel(tx, order)
    assert drain(post) == {"cancelled": 1}
    states = {g.group: g.state for g in control.tasks.show(order).groups}
    assert states["post"] == "passed"
    assert control.verify(group="post").totals.parked == 0


def test_failures_of_one_group_are_its_own(url: str, control: Control) -> None:
    control.groups.create("audit", start="beginning")
    apps = {}
    for name in ("default", "audit"):
        apps[name] = app = late.App(url, group=name)

        @app.task(retry=late.Retry(max_attempts=1))
        def check(ctx: late.Context) -> None:
            if ctx.group == "audit":
                raise ValueError("not in this group")

    with connect(url) as tx:
        task_id = apps["default"].tasks["check"].enqueue(tx)
    assert drain(apps["default"]) == {"done": 1}
    assert drain(apps["audit"]) == {"dead": 1}
    states = {g.group: g.state for g in control.tasks.show(task_id).groups}
    assert states["audit"] == "dead"
    assert states["default"] != "dead"


def test_a_replay_says_so_and_a_new_task_does_not(url: str, control: Control) -> None:
    ran: list[tuple[str, int, bool]] = []
    app = of(url, "default", ran)
    control.groups.set_retention(3_600)
    enqueue(app, range(3))
    drain(app)
    control.groups.reset("default", "beginning")
    enqueue(app, range(3, 5))
    assert drain(app) == {"done": 5}
    assert Counter(ran) == Counter(
        [("default", n, False) for n in range(5)] + [("default", n, True) for n in range(3)]
    )
    found = control.verify()
    assert found.problems == ()
    assert sum(each.ended.get("done", 0) for each in found.ledgers) == 5, "since the reset"


async def test_an_unknown_group_is_no_worker(url: str) -> None:
    with pytest.raises(ConfigError, match=r"no consumer group 'audti'; known: default"):
        await Worker(late.App(url), groups=("audti",)).start()


async def test_a_paused_group_rests_and_the_others_go_on(url: str, control: Control) -> None:
    ran: list[tuple[str, int, bool]] = []
    app = of(url, "default", ran)
    await asyncio.to_thread(control.groups.create, "audit", start="beginning")
    async with working(app, "default", "audit") as worker:
        await until(lambda: len(worker.keeper.leases) == 16)
        await asyncio.to_thread(control.groups.pause, "audit")
        await until(lambda: {group for group, _ in worker.keeper.leases} == {"default"})
        await asyncio.to_thread(enqueue, app, range(5))
        await until(lambda: len(ran) == 5)
        assert {group for group, *_ in ran} == {"default"}
        view = await asyncio.to_thread(control.groups.get, "audit")
        assert (view.state, view.owned, view.lag.n) == ("paused", 0, 5)
        await asyncio.to_thread(control.groups.resume, "audit")
        await until(lambda: len(ran) == 10)
    assert Counter(ran) == Counter((g, n, False) for g in ("default", "audit") for n in range(5))


async def test_a_reset_reaches_a_worker_that_runs(url: str, control: Control) -> None:
    ran: list[tuple[str, int, bool]] = []
    app = of(url, "default", ran)
    await asyncio.to_thread(control.groups.set_retention, 3_600)
    async with working(app, "default"):
        token = (await asyncio.to_thread(enqueue, app, range(20)))[-1]
        await until(lambda: len(ran) == 20)
        await asyncio.to_thread(control.groups.wait, "default", token, timeout_s=30)
        await asyncio.to_thread(control.groups.reset, "default", "beginning")
        await asyncio.to_thread(enqueue, app, range(20, 30))
        again = {("default", n, n < 20) for n in range(30)}
        await until(lambda: again <= set(ran))
        waited = await asyncio.to_thread(control.groups.wait, "default", token, timeout_s=30)
        assert waited.state == "settled"
    # What it ran before it heard of the reset was not recorded, and ran again.
    assert set(ran) == again | {("default", n, False) for n in range(20)}
    assert control.verify().problems == ()


async def test_a_reset_of_a_paused_group_runs_nothing_twice(url: str, control: Control) -> None:
    ran: list[tuple[str, int, bool]] = []
    app = of(url, "default", ran)
    await asyncio.to_thread(control.groups.set_retention, 3_600)
    async with working(app, "default") as worker:
        await asyncio.to_thread(enqueue, app, range(20))
        await until(lambda: len(ran) == 20)
        await asyncio.to_thread(control.groups.pause, "default")
        await until(lambda: not worker.keeper.leases)
        await asyncio.to_thread(control.groups.reset, "default", "beginning")
        await asyncio.to_thread(enqueue, app, range(20, 30))
        await asyncio.to_thread(control.groups.resume, "default")
        await until(lambda: len(ran) >= 50)
    assert Counter(ran) == Counter(
        [("default", n, False) for n in range(30)] + [("default", n, True) for n in range(20)]
    )


async def test_waiting_returns_when_the_last_task_is_settled(url: str, control: Control) -> None:
    app, gate, ran = late.App(url), asyncio.Event(), []

    @app.task
    async def slow() -> None:
        await gate.wait()
        ran.append(1)

    async with working(app, "default"):
        with connect(url) as tx:
            token = slow.enqueue(tx)
        early = await asyncio.to_thread(control.groups.wait, "default", token, timeout_s=0.5)
        assert early.state == "waiting"
        waiting = asyncio.create_task(
            asyncio.to_thread(control.groups.wait, "default", token, timeout_s=30)
        )
        await asyncio.sleep(0)
        assert not ran
        gate.set()
        assert (await waiting).state == "settled"
        assert ran == [1]


def test_a_replay_with_a_rate_runs_all_and_what_waits_too(url: str, control: Control) -> None:
    """What the group had run, and what it had not come to: each runs once more, or once."""
    ran: list[tuple[str, int, bool]] = []
    control.groups.create("audit", start="beginning")
    app = of(url, "audit", ran)
    enqueue(app, range(20))
    assert drain(app) == {"done": 20}
    enqueue(app, range(20, 25))
    ran.clear()
    control.groups.reset("audit", "beginning", rate=1_000)
    enqueue(app, range(25, 30))
    assert drain(app) == {"done": 30}
    assert Counter(ran) == Counter(("audit", n, n < 25) for n in range(30))
    found = control.verify(group="audit")
    assert (found.problems, found.totals.waiting) == ((), 0)


async def test_a_group_takes_no_part_of_the_limits_of_queues_that_it_does_not_read(
    url: str, control: Control
) -> None:
    """Four at once beside a worker of a group of another queue; two of each that read it."""
    release, running = asyncio.Event(), Counter[str]()
    app = late.App(url)

    @app.task(queue="orders")
    async def wait(ctx: late.AsyncContext, n: int) -> None:
        running[ctx.group] += 1
        await release.wait()

    control.queues.change("queue", "orders", {"concurrency": 4})
    control.groups.create("post", queues=["mail"], start="now")
    control.groups.create("audit", queues=["orders"], start="now")
    assert control.queues.live().reads["post"] == {"mail", CONTROL_QUEUE}
    async with working(app, "post"), working(app, "default"):
        await asyncio.to_thread(enqueue, app, range(40), task="wait")
        try:
            await until(lambda: running["default"] == 4, 30)
            async with working(app, "audit"):
                await until(lambda: running["audit"] == 2, 30)
                await asyncio.sleep(0.5)
                assert running == {"default": 4, "audit": 2}
                release.set()
        finally:
            release.set()
