"""`ctx.enqueue()` inside of a block of `ctx.once()` or `ctx.begin()`: it would commit by itself."""

from __future__ import annotations

import asyncio

import pytest

import late
from late.errors import InvalidTask
from late.outbox import connect
from late.testing import drain


def outcomes(app: late.App, task: late.Task) -> dict[str, int]:
    with connect(app.url) as tx:
        task.enqueue(tx)
    return drain(app)


def test_it_is_refused_in_the_block_and_works_after_it(url: str) -> None:
    app = late.App(url)
    ran: list[str] = []

    @app.task
    def note(of: str) -> None:
        ran.append(of)

    @app.task(retry=late.Retry(max_attempts=1))
    def plain(ctx: late.Context) -> None:
        with pytest.raises(InvalidTask, match=r"pass on the transaction"), ctx.once():
            ctx.enqueue(note.call("inside"))
        with ctx.begin() as tx:
            note.enqueue(tx, "passed on")
        ctx.enqueue(note.call("after"))

    assert outcomes(app, plain) == {"done": 3}
    assert sorted(ran) == ["after", "passed on"]


def test_an_awaited_one_is_refused_also_in_what_the_block_has_started(url: str) -> None:
    app = late.App(url)
    ran: list[str] = []

    @app.task
    async def note(of: str) -> None:
        ran.append(of)

    @app.task(retry=late.Retry(max_attempts=1))
    async def awaited(ctx: late.AsyncContext) -> None:
        ended = asyncio.Event()

        async def beside() -> None:
            with pytest.raises(InvalidTask):
                await ctx.enqueue(note.call("inside"))
            await ended.wait()
            await ctx.enqueue(note.call("later"))

        async with ctx.begin():
            task = asyncio.ensure_future(beside())
            await asyncio.sleep(0)
        ended.set()
        await task
        await ctx.enqueue(note.call("after"))

    assert outcomes(app, awaited) == {"done": 3}
    assert sorted(ran) == ["after", "later"]
