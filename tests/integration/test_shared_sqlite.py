"""Tasks with `transaction=True` on SQLite: the file's write lock is theirs until the commit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import late
from late.control import Control
from late.dispatcher.transactions import run, turn_queue
from late.model.ids import shard_of
from late.store.base import Fate
from late.testing import drain, inline
from tests.integration.shared_kit import (
    SOON,
    business_file,
    check,
    effect,
    effect_async,
    effects,
    ended,
    enqueue,
    raw,
    replace_commit,
    until,
    working,
)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with business_file(tmp_path) as made:
        yield made


def test_many_tasks_of_both_kinds_share_few_commits(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = late.App(url)
    sizes: list[int] = []

    @app.task(transaction=True)
    async def charge(ctx: late.AsyncContext, n: int) -> None:
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
    seen: Counter[tuple[str, int]] = Counter()

    @app.task(transaction=True, retry=SOON)
    def mixed(ctx: late.Context, n: int) -> None:
        seen["mixed", n] += 1
        effect(ctx, n)
        if n % 7 == 1 and ctx.attempt == 1:
            raise ValueError("once")
        if n % 7 == 2:
            raise late.Discard("not wanted")
        if n % 7 == 3 and seen["mixed", n] == 1:
            raise late.Snooze(0.05)
        if n % 7 == 4:
            ctx.enqueue((after, later)[n % 2].call(n))

    @app.task(transaction=True, retry=SOON)
    def after(ctx: late.Context, n: int) -> None:
        with ctx.once() as tx:
            tx.execute("insert into effect values ('after', ?)", (n + 1000,))
        with suppress(ZeroDivisionError), ctx.begin() as tx:
            tx.execute("insert into effect values ('taken back', ?)", (n + 2000,))
            raise ZeroDivisionError
        assert ctx.claim(ctx.tx)

    @app.task(transaction=True, retry=SOON)
    async def later(ctx: late.AsyncContext, n: int) -> None:
        async with ctx.once() as tx:
            await tx.execute("insert into effect values ('after', ?)", (n + 1000,))
        with suppress(ZeroDivisionError):
            async with ctx.begin() as tx:
                await tx.execute("insert into effect values ('taken back', ?)", (n + 2000,))
                raise ZeroDivisionError
        assert await ctx.claim(ctx.tx)

    @app.task(transaction=True, retry=late.Retry(max_attempts=2, base=0.05))
    def poison(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
        raise RuntimeError("always")

    enqueue(app, [mixed.call(n) for n in range(70)])
    enqueue(app, [poison.call(n) for n in range(5000, 5003)])
    afters = [n + 1000 for n in range(70) if n % 7 == 4]
    assert drain(app, wait_s=5) == {"done": 60 + len(afters), "discarded": 10, "dead": 3}
    assert effects(url) == Counter([n for n in range(70) if n % 7 != 2]) + Counter(afters)
    with raw(url) as tx:
        tx.execute("delete from effect where task = 'after'")  # They changed no account.
    check(url)


def test_what_a_handler_leaves_reaches_no_other(url: str) -> None:
    app = late.App(url)

    @app.task(transaction=True, retry=SOON)
    def leave(ctx: late.Context, n: int) -> None:
        assert ctx.tx.execute("select 1").fetchone() == (1,)
        effect(ctx, n)
        ctx.tx.execute("create temporary table mine (id int)")  # In the next one it fails: alone.
        ctx.tx.row_factory = sqlite3.Row

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def end(ctx: late.Context, how: str) -> None:
        effect(ctx, 200)
        if how == "isolation_level":
            ctx.tx.isolation_level = "DEFERRED"
        elif how == "executescript":
            ctx.tx.cursor().executescript("select 1")
        else:
            getattr(ctx.tx, how)()

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    async def end_async(ctx: late.AsyncContext, how: str) -> None:
        await effect_async(ctx, 300)
        await getattr(ctx.tx, how)()

    enqueue(app, [leave.call(n) for n in range(30)])
    wrong = ["commit", "rollback", "executescript", "isolation_level"]
    enqueue(app, [end.call(how) for how in wrong])
    enqueue(app, [end_async.call(how) for how in ("commit", "rollback", "close")])
    assert drain(app) == {"done": 30, "dead": 7}
    assert effects(url) == Counter(range(30))
    check(url)
    with Control(url) as control:
        letters = control.dead_letters.page().letters
    assert all("shared with other tasks" in each.errors[-1].error for each in letters)


async def test_an_async_connection_ends_with_its_handler(url: str) -> None:
    app = late.App(url)
    kept: list[Any] = []

    @app.task(transaction=True)
    async def keep(ctx: late.AsyncContext) -> None:
        kept.append(ctx.tx)

    async with working(app):
        enqueue(app, [keep.call() for _ in range(5)])
        await until(ended(url))
        for tx in kept:
            with pytest.raises(sqlite3.ProgrammingError, match="its handler has ended"):
                await tx.execute("select 1")


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_one_that_hangs_loses_the_lock_and_can_write_no_more(url: str, kind: str) -> None:
    app = late.App(url)
    begun, go, over = threading.Event(), threading.Event(), threading.Event()
    errors: list[BaseException] = []

    @app.task(transaction=True)
    def quick(ctx: late.Context, n: int) -> None:
        effect(ctx, n)

    def hang(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
        begun.set()
        if ctx.attempt == 1:
            assert go.wait(60)
            try:
                effect(ctx, n)
            except sqlite3.Error as error:
                errors.append(error)
            over.set()

    async def hang_async(ctx: late.AsyncContext, n: int) -> None:
        await effect_async(ctx, n)
        begun.set()
        if ctx.attempt == 1:
            with suppress(asyncio.CancelledError):  # It does not listen.
                await asyncio.sleep(60)
            await asyncio.to_thread(go.wait, 60)
            try:
                await effect_async(ctx, n)
            except sqlite3.Error as error:
                errors.append(error)
            over.set()

    settings: Any = {"name": "hang", "timeout_s": 1.5, "retry": SOON, "overlap_on_timeout": True}
    task: Any = app.task(transaction=True, **settings)(hang if kind == "def" else hang_async)
    async with working(app):
        enqueue(app, [task.call(600)])
        await until(begun.is_set)  # Else the quick ones could be over before it has the lock.
        # Not in the loop: while the one that hangs has the lock, this waits for its time-out.
        await asyncio.to_thread(enqueue, app, [quick.call(n) for n in range(20)])
        await until(lambda: effects(url) >= Counter(range(20)))
        go.set()
        await until(over.is_set)
        await until(ended(url))
    assert len(errors) == 1
    assert effects(url) == Counter([*range(20), 600])
    check(url)


def test_a_long_statement_is_ended(url: str) -> None:
    app = late.App(url)
    endless = "with recursive n(i) as (select 0 union all select i + 1 from n) select max(i) from n"

    @app.task(transaction=True, timeout_s=1.5, retry=SOON)
    def count(ctx: late.Context) -> None:
        effect(ctx, 1)
        if ctx.attempt == 1:
            ctx.tx.execute(endless)

    enqueue(app, [count.call()])
    assert drain(app, wait_s=5) == {"done": 1}
    assert effects(url) == {1: 1}
    check(url)


async def test_a_former_owner_commits_nothing(url: str) -> None:
    app = late.App(url)
    taken: list[str] = []

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def charge(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
        if n == 7 and not taken:
            taken.append(ctx.task_id)
            # Through the same connection, as another one would have to wait; it is taken back
            # with the effects, so the real owner goes on.
            ctx.tx.execute(
                "insert into late_settlement (consumer_group, shard_id, seq, settlement_id,"
                " epoch, owner, cursor, open, settled_at_us)"
                " select consumer_group, shard_id, seq + 1, 'stranger', epoch, 'stranger',"
                " cursor, open, settled_at_us from late_settlement where shard_id = ?"
                " order by seq desc limit 1",
                (shard_of(late.model.task.TaskId(ctx.task_id)),),
            )

    async with working(app):
        enqueue(app, [charge.call(n) for n in range(20)])
        await until(ended(url))
    assert effects(url) == Counter(range(20))
    assert taken
    check(url)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_without_an_answer_is_found_out(
    url: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = late.App(url)
    runs: Counter[int] = Counter()
    cuts: list[int] = []

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def charge(ctx: late.Context, n: int) -> None:
        runs[n] += 1
        effect(ctx, n)

    def cut(commit: Any, tx: Any, settlements: Any) -> Any:
        if len(cuts) >= 3:
            return commit(tx, settlements)
        cuts.append(1)
        if when == "before":
            tx.execute("rollback")
        else:
            assert commit(tx, settlements) == (Fate.COMMITTED, None)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR, "SQLITE_IOERR"
        return Fate.UNKNOWN, error

    replace_commit(monkeypatch, cut)
    enqueue(app, [charge.call(n) for n in range(60)])
    assert drain(app) == {"done": 60}
    assert effects(url) == Counter(range(60))
    assert (max(runs.values()) > 1) == (when == "before")
    check(url)


async def test_a_lock_that_others_hold_costs_no_attempt(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from late.store.sqlite import write_lock

    monkeypatch.setattr(write_lock, "BUSY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(turn_queue, "AWAY_S", 0.01)
    app = late.App(url)

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def charge(ctx: late.Context, n: int) -> None:
        effect(ctx, n)

    async with working(app):
        enqueue(app, [charge.call(n) for n in range(40)])
        with raw(url) as other:
            other.execute("begin immediate")
            await asyncio.sleep(0.5)
        await until(ended(url))
    assert effects(url) == Counter(range(40))
    check(url)


async def test_other_settlements_of_the_worker_come_between(url: str) -> None:
    """A transaction that had the lock while the settler waits for it would wait for the settler,
    until it is rolled back."""
    app = late.App(url)
    runs: Counter[int] = Counter()

    @app.task(transaction=True)
    def charge(ctx: late.Context, n: int) -> None:
        runs[n] += 1
        effect(ctx, n)
        time.sleep(0.002)

    @app.task
    async def plain(n: int) -> None:
        pass

    async with working(app, settle_delay_s=0.001):
        for n in range(0, 200, 20):
            calls = [charge.call(n + i) for i in range(20)]
            enqueue(app, [*calls, *[plain.call(n) for n in range(50)]])
        await until(ended(url))
    assert runs == Counter(range(200)) == effects(url)
    check(url)


async def test_others_have_their_turn_while_a_backlog_drains(url: str) -> None:
    """A worker whose heartbeat does not come through loses its shards; a producer waits 5 s."""
    app = late.App(url)

    @app.task(transaction=True)
    def charge(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
        time.sleep(0.001)

    enqueue(app, [charge.call(n) for n in range(1_000)])
    async with working(app) as worker:
        for n in range(1_000, 1_100):
            await asyncio.to_thread(enqueue, app, [charge.call(n)])
        await until(ended(url))
        assert not worker.scheduler.fenced
    assert effects(url) == Counter(range(1_100))
    check(url)


async def test_inline_mode_runs_in_a_transaction_of_the_file(url: str) -> None:
    app = late.App(url)

    @app.task(transaction=True)
    async def charge(ctx: late.AsyncContext, n: int) -> None:
        await effect_async(ctx, n)
        if n == 3:
            raise ValueError("three")

    @app.task(transaction=True)
    def plain(ctx: late.Context, n: int) -> None:
        effect(ctx, n)

    with inline(app) as box:
        for n in (1, 2, 3):
            plain.enqueue(None, n + 10)  # type: ignore[call-overload]
            charge.enqueue(None, n)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="three"):
            await box.run_async()
    assert effects(url) == Counter([1, 2, 11, 12, 13])
