"""A worker that cannot run a task hands it to one that can, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from unittest import mock

import pytest
from sqlalchemy import func, select

import late
from late.control import Control, Filter
from late.control.offers import OfferControl
from late.model.offers import Offer
from late.model.task import Policy
from late.outbox import connect
from late.schema.engine import reading
from late.schema.tables import offer
from late.worker import assembly
from tests.integration.fleet_kit import until, working
from tests.integration.kill_kit import commit

TASKS = 16


def rest(url: str) -> tuple[int, list[str]]:
    """The number of offers, and why tasks are dead."""
    with Control(url) as control:
        dead = [letter.reason for letter in control.dead_letters.find(Filter())]
        with reading(control._database.engine) as connection:
            offers = connection.execute(select(func.count()).select_from(offer)).scalar_one()
    return offers, dead


def an_app(url: str, ran: list[tuple[str, int, int]], who: str, *, nacks: bool = False) -> late.App:
    app = late.App(url)

    @app.task
    def print_label(ctx: late.Context, order: int) -> None:
        if nacks:
            raise late.Nack("no printer")
        ran.append((who, order, ctx.attempt))

    return app


@pytest.mark.parametrize("knows_it", [True, False], ids=["a nack", "an old version"])
async def test_what_one_worker_cannot_run_another_runs_as_the_same_attempt(
    url: str, knows_it: bool
) -> None:
    ran: list[tuple[str, int, int]] = []
    cannot = an_app(url, ran, "one", nacks=True) if knows_it else late.App(url)
    can = an_app(url, ran, "another")
    async with working(cannot, can) as workers:
        commit(url, can, [can.tasks["print_label"].call(order) for order in range(TASKS)])
        await until(lambda: len(ran) >= TASKS)
        await until(lambda: not workers[0].scheduler.unrecorded and not workers[0].offers.pool.out)
    assert sorted(ran) == [("another", order, 1) for order in range(TASKS)]
    assert await asyncio.to_thread(rest, url) == (0, [])


@pytest.mark.parametrize("old_can", [True, False], ids=["an old one can", "an old one cannot"])
async def test_an_older_worker_that_declares_nothing_beside_a_newer_one(
    url: str, old_can: bool
) -> None:
    ran: list[tuple[str, int, int]] = []
    can, cannot = an_app(url, ran, "can"), late.App(url)
    old = can if old_can else cannot
    declares = assembly.declared_handlers

    def declared(app: late.App, policies: Mapping[str, Policy]) -> str | None:
        return None if app is old else declares(app, policies)

    with mock.patch.object(assembly, "declared_handlers", declared):
        async with working(cannot, can):
            commit(url, can, [can.tasks["print_label"].call(order) for order in range(TASKS)])
            await until(lambda: len(ran) >= TASKS)
    assert sorted(ran) == [("can", order, 1) for order in range(TASKS)]


async def test_what_nobody_handles_waits_at_once_and_is_not_offered(url: str) -> None:
    ran: list[tuple[str, int, int]] = []
    can = an_app(url, ran, "another")
    app = late.App(url)

    @app.task
    def forgotten() -> None: ...

    put, names = OfferControl.put, []

    def putting(self: OfferControl, offers: Sequence[Offer]) -> None:
        names.extend(offer.attempt.name for offer in offers)
        put(self, offers)

    with mock.patch.object(OfferControl, "put", putting):
        async with working(late.App(url), can):
            commit(url, can, [can.tasks["print_label"].call(order) for order in range(TASKS)])
            commit(url, app, [forgotten.call() for _ in range(TASKS)])
            await until(lambda: len(ran) >= TASKS)
            await until(lambda: unhandled(url) == {"forgotten": (TASKS, 0)})
    assert set(names) == {"print_label"}


def unhandled(url: str) -> dict[str, tuple[int, int | None]]:
    """The tasks that nobody can run, with their number and that of the workers that handle them."""
    with Control(url) as control:
        found = control.status.read().unhandled
    return {each.task: (each.waiting.n, each.handlers) for each in found}


async def test_a_worker_whose_loop_of_offers_fails_stops(url: str) -> None:
    async with working(late.App(url)) as [worker]:
        fails = asyncio.get_running_loop().create_future()
        worker.offers.runner._others = lambda: fails.result()  # type: ignore[method-assign]
        fails.set_exception(RuntimeError("a defect"))
        worker.offers.told = lambda offers: None  # type: ignore[method-assign]
        worker.offers.runner.told(True)
        async with asyncio.timeout(120):
            assert await worker.wait() == 1


async def test_its_rules_are_those_of_the_worker_that_runs_it(url: str) -> None:
    starts: list[int] = []
    old, new = late.App(url), late.App(url)

    @new.task(retry=late.Retry(max_attempts=1))
    def never_again(ctx: late.Context, order: int) -> None:
        starts.append(order)
        raise ValueError("no")

    async with working(old, new):
        commit(url, new, [never_again.call(order) for order in range(TASKS)])
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
        if newer_first:
            commit(url, new, [charge.call(order, "EUR") for order in range(TASKS)])
        else:
            commit(url, old, [old_charge.call(order) for order in range(TASKS)])
        await until(lambda: len(ran) >= TASKS)
    assert sorted(ran) == list(range(TASKS))
    assert (await asyncio.to_thread(rest, url))[1] == []


async def test_what_nobody_can_run_waits_where_it_can_be_seen(url: str) -> None:
    maker = late.App(url)

    @maker.task
    def forgotten() -> None: ...

    with connect(url) as tx:
        task_id = forgotten.enqueue(tx)
    async with working(late.App(url), late.App(url)):

        def state() -> str:
            with Control(url) as control:
                [group] = control.tasks.show(task_id).groups
            return f"{group.state} {group.reason} {group.attempts}"

        await until(lambda: state() == "parked unknown 0")
    assert (await asyncio.to_thread(rest, url)) == (0, [])
