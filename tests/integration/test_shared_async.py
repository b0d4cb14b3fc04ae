"""Tasks with `transaction=True` whose handlers are `async def`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import psycopg.rows
import pytest

import late
from late.dispatcher.transactions import run, turn_queue
from late.store.base import Fate
from late.testing import drain, inline
from tests.integration.shared_kit import (
    SOON,
    business,
    check,
    effect,
    effect_async,
    effects,
    ended,
    enqueue,
    replace_commit,
    until,
    working,
)


@pytest.fixture
def url() -> Iterator[str]:
    with business() as made:
        yield made


def test_many_share_few_commits_and_def_handlers_are_among_themselves(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = late.App(url)
    sizes: list[int] = []
    order: list[str] = []

    @app.task(transaction=True)
    async def charge(ctx: late.AsyncContext, n: int) -> None:
        order.append("async")
        await effect_async(ctx, n)

    @app.task(transaction=True)
    def plain(ctx: late.Context, n: int) -> None:
        effect(ctx, n)

    def counted(commit: Any, tx: Any, settlements: Any) -> Any:
        sizes.append(sum(usage.count for each in settlements for usage in each.usage
                         if usage.outcome == "done"))  # fmt: skip
        return commit(tx, settlements)

    replace_commit(monkeypatch, counted)
    for module in (run, turn_queue):  # However slow the machine is.
        monkeypatch.setattr(module, "HOLD_S", 30.0)
    enqueue(app, [(charge, plain)[n % 2].call(n) for n in range(400)])
    assert drain(app) == {"done": 400}
    assert effects(url) == Counter(range(400))
    assert sum(sizes) == 400
    assert max(sizes) > 5
    check(url)


def test_outcomes_are_those_of_other_tasks(url: str) -> None:
    app = late.App(url)
    seen: Counter[int] = Counter()

    @app.task(transaction=True, retry=SOON)
    async def mixed(ctx: late.AsyncContext, n: int) -> None:
        seen[n] += 1
        await effect_async(ctx, n)
        if n % 7 == 1 and ctx.attempt == 1:
            raise ValueError("once")
        if n % 7 == 2:
            raise late.Discard("not wanted")
        if n % 7 == 3 and seen[n] == 1:
            raise late.Snooze(0.05)
        if n % 7 == 4:
            await ctx.enqueue(after.call(n))
        if n % 7 == 5 and ctx.attempt == 1:
            raise asyncio.CancelledError

    @app.task(transaction=True, retry=SOON)
    async def after(ctx: late.AsyncContext, n: int) -> None:
        async with ctx.once() as tx:
            await tx.execute("insert into effect values ('after', %s)", (n + 1000,))
        with suppress(ZeroDivisionError):
            async with ctx.begin() as tx:
                await tx.execute("insert into effect values ('taken back', %s)", (n + 2000,))
                raise ZeroDivisionError
        async with await psycopg.AsyncConnection.connect(url) as own:
            assert await ctx.claim(own)  # Another transaction is claimed as ever.
        assert await ctx.claim(ctx.tx)

    enqueue(app, [mixed.call(n) for n in range(70)])
    afters = [n + 1000 for n in range(70) if n % 7 == 4]
    assert drain(app, wait_s=5) == {"done": 60 + len(afters), "discarded": 10}
    assert effects(url) == Counter([n for n in range(70) if n % 7 != 2]) + Counter(afters)
    with psycopg.connect(url) as tx:
        tx.execute("delete from effect where task = 'after'")  # They changed no account.
    check(url)


def test_what_a_handler_leaves_reaches_no_other(url: str) -> None:
    app = late.App(url)
    left: list[Any] = []

    @app.task(transaction=True, retry=SOON)
    async def leave(ctx: late.AsyncContext, n: int) -> None:
        [(path,)] = await (await ctx.tx.execute("show search_path")).fetchall()
        assert path == '"$user", public'
        await effect_async(ctx, n)
        await ctx.tx.execute("set local search_path to nowhere")
        ctx.tx.row_factory = psycopg.rows.dict_row
        left.append(ctx.tx)

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    async def swallow(ctx: late.AsyncContext, n: int) -> None:
        await effect_async(ctx, n)
        with pytest.raises(psycopg.Error):
            await ctx.tx.execute("select 1 from nowhere")

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    async def end(ctx: late.AsyncContext, n: int) -> None:
        await effect_async(ctx, n)
        await ctx.tx.commit()

    enqueue(app, [leave.call(n) for n in range(30)])
    enqueue(app, [swallow.call(100), end.call(200)])
    assert drain(app) == {"done": 30, "dead": 2}
    assert effects(url) == Counter(range(30))
    assert all(tx.closed for tx in left)
    check(url)


async def test_a_slow_one_holds_nobody_up_and_one_over_its_time_is_cancelled(url: str) -> None:
    app = late.App(url)
    go = asyncio.Event()
    cancelled: list[int] = []
    slows: list[int] = []

    @app.task(transaction=True)
    async def quick(ctx: late.AsyncContext, n: int) -> None:
        await effect_async(ctx, n)

    @app.task(transaction=True)
    async def slow(ctx: late.AsyncContext, n: int) -> None:
        await effect_async(ctx, n)
        slows.append(n)
        await go.wait()

    @app.task(transaction=True, timeout_s=1.5, retry=SOON)
    async def hang(ctx: late.AsyncContext, n: int) -> None:
        await effect_async(ctx, n)
        if ctx.attempt == 1:
            try:
                if n == 600:
                    await ctx.tx.execute("select pg_sleep(60)")
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(n)
                raise

    async with working(app):
        for n in (500, 501, 502):
            enqueue(app, [slow.call(n)])
            await until(lambda n=n: n in slows)  # type: ignore[misc]
        enqueue(app, [quick.call(n) for n in range(50)])
        enqueue(app, [hang.call(600), hang.call(601)])
        enqueue(app, [quick.call(n) for n in range(50, 100)])
        await until(lambda: effects(url) >= Counter([*range(100), 600, 601]))
        assert not {500, 501, 502} & effects(url).keys()
        go.set()
        await until(ended(url))
    assert 601 in cancelled
    assert effects(url) == Counter([*range(100), 500, 501, 502, 600, 601])
    check(url)


def test_a_lost_connection_costs_no_attempt(url: str) -> None:
    app = late.App(url)
    cut: set[int] = set()

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    async def charge(ctx: late.AsyncContext, n: int) -> None:
        await effect_async(ctx, n)
        if n in (5, 17) and n not in cut:
            cut.add(n)
            pid = ctx.tx.info.backend_pid
            with psycopg.connect(url, autocommit=True) as other:
                other.execute("select pg_terminate_backend(%s, 10000)", (pid,))

    enqueue(app, [charge.call(n) for n in range(40)])
    assert drain(app) == {"done": 40}
    assert cut == {5, 17}
    assert effects(url) == Counter(range(40))
    check(url)


def test_a_statement_that_is_left_running_is_its_own_handlers_failure(url: str) -> None:
    app = late.App(url)
    left: list[asyncio.Task[Any]] = []

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    async def leave(ctx: late.AsyncContext, n: int) -> None:
        await effect_async(ctx, n)
        if n == 7:
            left.append(asyncio.ensure_future(ctx.tx.execute("select pg_sleep(0.2)")))
            await asyncio.sleep(0.05)

    enqueue(app, [leave.call(n) for n in range(20)])
    assert drain(app) == {"done": 19, "dead": 1}
    assert effects(url) == Counter([n for n in range(20) if n != 7])
    check(url)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_without_an_answer_is_found_out(
    url: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = late.App(url)
    runs: Counter[int] = Counter()
    cuts: list[int] = []

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    async def charge(ctx: late.AsyncContext, n: int) -> None:
        runs[n] += 1
        await effect_async(ctx, n)

    def cut(commit: Any, tx: Any, settlements: Any) -> Any:
        if len(cuts) >= 3:
            return commit(tx, settlements)
        cuts.append(tx.info.backend_pid)
        if when == "before":
            tx.close()
        else:
            assert commit(tx, settlements) == (Fate.COMMITTED, None)
        return Fate.UNKNOWN, psycopg.OperationalError("cut")

    replace_commit(monkeypatch, cut)
    enqueue(app, [charge.call(n) for n in range(60)])
    assert drain(app) == {"done": 60}
    assert effects(url) == Counter(range(60))
    assert (max(runs.values()) > 1) == (when == "before")
    check(url)


async def test_inline_mode_runs_in_a_transaction_of_the_database(url: str) -> None:
    app = late.App(url)

    @app.task(transaction=True)
    async def charge(ctx: late.AsyncContext, n: int) -> None:
        await effect_async(ctx, n)
        if n == 3:
            raise ValueError("three")

    with inline(app) as box:
        for n in (1, 2, 3):
            charge.enqueue(None, n)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="three"):
            await box.run_async()
    assert effects(url) == {1: 1, 2: 1}
