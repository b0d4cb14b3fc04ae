"""Tasks with `transaction=True`: effects exactly once, with one commit for several of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import late
from late.control import Control
from late.dispatcher.transactions import pool, run, turn_queue
from late.errors import ConfigError
from late.scheduler.settings import CoreSettings
from late.store.base import Fate
from late.testing import drain, inline
from tests.integration.shared_kit import (
    SOON,
    business,
    check,
    effect,
    effects,
    ended,
    enqueue,
    replace_commit,
    until,
    working,
)

PARKED = """
create table parked (task_id text);
create function note_parked() returns trigger language plpgsql as
    $$ begin insert into parked values (new.task_id); return new; end $$;
create trigger note_parked after insert on late_timer for each row execute function note_parked();
"""


@pytest.fixture
def url() -> Iterator[str]:
    with business() as made:
        yield made


def test_many_tasks_share_few_commits(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = late.App(url)
    sizes: list[int] = []

    @app.task(transaction=True)
    def charge(ctx: late.Context, n: int) -> None:
        effect(ctx, n)

    def counted(commit: Any, tx: Any, settlements: Any) -> Any:
        sizes.append(sum(usage.count for each in settlements for usage in each.usage
                         if usage.outcome == "done"))  # fmt: skip
        return commit(tx, settlements)

    replace_commit(monkeypatch, counted)
    for module in (run, turn_queue):  # However slow the machine is.
        monkeypatch.setattr(module, "HOLD_S", 30.0)
    enqueue(app, [charge.call(n) for n in range(400)])
    assert drain(app) == {"done": 400}
    assert effects(url) == Counter(range(400))
    assert sum(sizes) == 400
    assert max(sizes) > 5
    check(url)


def test_a_backlog_stays_in_the_window_and_fills_its_transactions(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = late.App(url)
    sizes: list[int] = []

    @app.task(transaction=True)
    def charge(ctx: late.Context, n: int) -> None:
        effect(ctx, n)

    def counted(commit: Any, tx: Any, settlements: Any) -> Any:
        sizes.append(sum(usage.count for each in settlements for usage in each.usage
                         if usage.outcome == "done"))  # fmt: skip
        return commit(tx, settlements)

    replace_commit(monkeypatch, counted)
    for module in (run, turn_queue):
        monkeypatch.setattr(module, "HOLD_S", 30.0)
    monkeypatch.setattr(pool, "AHEAD_S", 30.0)
    monkeypatch.setattr(CoreSettings, "limited_max", 20)
    with psycopg.connect(url) as tx:
        tx.execute(PARKED)
    for first in (0, 750):
        enqueue(app, [charge.call(n) for n in range(first, first + 750)])
    assert drain(app) == {"done": 1_500}
    with psycopg.connect(url) as tx:
        assert tx.execute("select count(*) from parked").fetchall() == [(0,)]
    assert len(sizes) < 1_500 / 20
    assert effects(url) == Counter(range(1_500))
    check(url)


def test_outcomes_are_those_of_other_tasks(url: str) -> None:
    app = late.App(url)
    seen: Counter[tuple[str, int]] = Counter()

    @app.task(transaction=True, retry=SOON, result_ttl=timedelta(hours=1), history=True)
    def mixed(ctx: late.Context, n: int) -> int:
        seen["mixed", n] += 1
        effect(ctx, n)
        if n % 7 == 1 and ctx.attempt == 1:
            raise ValueError("once")
        if n % 7 == 2:
            raise late.Discard("not wanted")
        if n % 7 == 3 and seen["mixed", n] == 1:
            raise late.Snooze(0.05)
        if n % 7 == 4:
            ctx.enqueue(after.call(n))
        return n * n

    @app.task(transaction=True, retry=late.Retry(max_attempts=2, base=0.05))
    def poison(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
        raise RuntimeError("always")

    @app.task(transaction=True, retry=SOON)
    def after(ctx: late.Context, n: int) -> None:
        seen["after", n] += 1
        with ctx.once() as tx:
            tx.execute("insert into effect values ('after', %s)", (n + 1000,))
        with suppress(ZeroDivisionError), ctx.begin() as tx:
            tx.execute("insert into effect values ('taken back', %s)", (n + 2000,))
            raise ZeroDivisionError
        with psycopg.connect(url) as own:
            assert ctx.claim(own)  # Another transaction is claimed as ever.
        assert ctx.claim(ctx.tx)

    ids = enqueue(app, [mixed.call(n) for n in range(70)])
    enqueue(app, [poison.call(n) for n in range(5000, 5003)])
    counts = drain(app, wait_s=5)
    done = [n for n in range(70) if n % 7 != 2]
    afters = [n + 1000 for n in range(70) if n % 7 == 4]
    assert counts == {"done": len(done) + len(afters), "discarded": 10, "dead": 3}
    assert effects(url) == Counter([*done]) + Counter(afters)
    with psycopg.connect(url) as tx:
        tx.execute("delete from effect where task = 'after'")  # They changed no account.
    check(url)
    results = [asyncio.run(app.handle(ids[n]).result()) for n in done[:5]]
    assert results == [n * n for n in done[:5]]
    with Control(url) as control:
        assert len(control.dead_letters.page().letters) == 3
    with psycopg.connect(url) as tx:
        steps = "select event from late_history where task_id = %s order by number"
        assert tx.execute(steps, (ids[1],)).fetchall() == [("retried",), ("done",)]


def test_keys_keep_their_order_and_are_freed(url: str) -> None:
    app = late.App(url)
    order: dict[str, list[int]] = {}

    @app.task(transaction=True, retry=SOON)
    def step(ctx: late.Context, key: str, n: int) -> None:
        if n == 3 and ctx.attempt == 1:
            raise ValueError("once")
        order.setdefault(key, []).append(n)
        effect(ctx, n)

    @app.task(transaction=True)
    def single(ctx: late.Context, n: int) -> None:
        effect(ctx, n)

    calls = [
        step.options(ordering_key=key).call(key, n) for n in range(8) for key in ("a", "b", "c")
    ]
    enqueue(app, calls)
    enqueue(app, [single.options(unique_key=f"u{n}").call(100 + n) for n in range(20)])
    assert drain(app) == {"done": 44}
    assert order == {key: [*range(8)] for key in ("a", "b", "c")}
    again = enqueue(app, [single.options(unique_key=f"u{n}").call(200 + n) for n in range(20)])
    assert len(set(again)) == 20
    assert drain(app) == {"done": 20}
    assert effects(url) == Counter([*range(8)] * 3 + [*range(100, 120)] + [*range(200, 220)])
    check(url)


def test_what_a_handler_leaves_in_the_transaction_reaches_no_other(url: str) -> None:
    app = late.App(url)

    @app.task(transaction=True, retry=SOON)
    def leave(ctx: late.Context, n: int) -> None:
        [(path,)] = ctx.tx.execute("show search_path").fetchall()
        assert path == '"$user", public'
        effect(ctx, n)
        # Twice in one transaction would fail: it runs again, alone, at no cost of an attempt.
        ctx.tx.execute("create temporary table mine (id int) on commit drop")
        ctx.tx.execute("set local search_path to nowhere")
        ctx.tx.execute("set session statement_timeout to 1")

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def swallow(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
        with pytest.raises(psycopg.Error):
            ctx.tx.execute("select 1 from nowhere")

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def end(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
        ctx.tx.commit()

    enqueue(app, [leave.call(n) for n in range(30)])
    enqueue(app, [swallow.call(100), end.call(200)])
    assert drain(app) == {"done": 30, "dead": 2}
    assert effects(url) == Counter(range(30))
    check(url)
    with Control(url) as control:
        errors = [each.errors[-1].error for each in control.dead_letters.page().letters]
    assert any("nothing of it can be committed" in error for error in errors)
    assert any("shared with other tasks" in error for error in errors)


def test_a_deferred_constraint_fails_its_own_task_only(url: str) -> None:
    with psycopg.connect(url) as tx:
        tx.execute(
            "create table child (account int references account deferrable initially deferred)"
        )
    app = late.App(url)

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def child(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
        ctx.tx.execute("insert into child values (%s)", (-1 if n == 11 else n,))

    enqueue(app, [child.call(n) for n in range(20)])
    assert drain(app) == {"done": 19, "dead": 1}
    assert effects(url) == Counter([n for n in range(20) if n != 11])
    check(url)


async def test_a_deadlock_costs_no_attempt(url: str) -> None:
    app = late.App(url)
    both = threading.Barrier(2, timeout=120)
    attempts: list[int] = []
    runs: Counter[int] = Counter()

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def swap(ctx: late.Context, first: int, second: int) -> None:
        attempts.append(ctx.attempt)
        runs[first] += 1
        effect(ctx, first)
        if runs[1] < 2 and runs[2] < 2:
            both.wait()
        effect(ctx, second)

    async with working(app):
        enqueue(app, [swap.call(1, 2)])
        await until(lambda: bool(runs[1]))  # So the other one is in another transaction.
        enqueue(app, [swap.call(2, 1)])
        await until(ended(url))
    assert effects(url) == {1: 2, 2: 2}
    assert sum(runs.values()) > 2
    assert set(attempts) == {1}
    check(url)


async def test_a_slow_task_holds_nobody_up_and_a_hanging_one_is_ended(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = late.App(url)
    go = threading.Event()
    hangs: list[int] = []
    slows: list[int] = []

    @app.task(transaction=True)
    def quick(ctx: late.Context, n: int) -> None:
        effect(ctx, n)

    @app.task(transaction=True)
    def slow(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
        slows.append(n)
        assert go.wait(60)

    @app.task(transaction=True, timeout_s=1.5, retry=SOON)
    def hang(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
        if ctx.attempt == 1:
            hangs.append(n)
            ctx.tx.execute("select pg_sleep(60)")

    async with working(app):
        for n in (500, 501, 502):
            enqueue(app, [slow.call(n)])
            await until(lambda n=n: n in slows)  # type: ignore[misc]
        enqueue(app, [quick.call(n) for n in range(50)])
        enqueue(app, [hang.call(600)])
        enqueue(app, [quick.call(n) for n in range(50, 100)])
        await until(lambda: effects(url) >= Counter([*range(100), 600]))
        assert not {500, 501, 502} & effects(url).keys()
        go.set()
        await until(ended(url))
    assert hangs == [600]
    assert effects(url) == Counter([*range(100), 500, 501, 502, 600])
    check(url)


def test_a_lost_connection_costs_no_attempt(url: str) -> None:
    app = late.App(url)
    cut: set[int] = set()

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def charge(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
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


@pytest.mark.parametrize("when", ["before", "after", "within"])
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

    def later(commit: Any, tx: Any, settlements: Any) -> None:
        time.sleep(0.3)  # The answer is lost long before the server comes to the commit.
        assert commit(tx, settlements) == (Fate.COMMITTED, None)

    def cut(commit: Any, tx: Any, settlements: Any) -> Any:
        if len(cuts) >= 3:
            return commit(tx, settlements)
        cuts.append(tx.info.backend_pid)
        if when == "before":
            with psycopg.connect(url, autocommit=True) as other:
                other.execute("select pg_terminate_backend(%s, 10000)", (cuts[-1],))
            fate, error = commit(tx, settlements)
            assert fate is Fate.UNKNOWN
            return fate, error
        if when == "after":
            assert commit(tx, settlements) == (Fate.COMMITTED, None)
        else:
            # The settlement is there and not committed: whoever wants its place must wait.
            from late.store.postgres.journal import statements_of

            for statement, values in statements_of(settlements):
                tx.execute(statement, values)
            threading.Timer(0.3, lambda: commit(tx, ())).start()
            threading.Event().wait(0.05)
        return Fate.UNKNOWN, psycopg.OperationalError("cut")

    replace_commit(monkeypatch, cut)
    number = 3 * turn_queue.TURNS_MAX + 1  # More than three transactions have room for.
    enqueue(app, [charge.call(n) for n in range(number)])
    assert drain(app) == {"done": number}
    assert len(cuts) == 3
    assert effects(url) == Counter(range(number))
    assert (max(runs.values()) > 1) == (when == "before")
    check(url)


async def test_a_former_owner_commits_nothing(url: str) -> None:
    app = late.App(url)
    taken: list[str] = []

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def charge(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
        if n == 7 and not taken:
            taken.append(ctx.task_id)
            with psycopg.connect(url, autocommit=True) as other:
                other.execute(
                    "insert into late_settlement (consumer_group, shard_id, seq, settlement_id,"
                    " epoch, owner, cursor, open, settled_at_us)"
                    " select consumer_group, shard_id, seq + 1, 'stranger', epoch, 'stranger',"
                    " cursor, open, settled_at_us from late_settlement where shard_id = %s"
                    " order by seq desc limit 1",
                    (late.model.ids.shard_of(ctx.task_id),),
                )

    async with working(app) as worker:
        enqueue(app, [charge.call(n) for n in range(20)])
        await until(ended(url))
        assert worker.scheduler.fenced.total() == 1
    assert effects(url) == Counter(range(20))
    assert taken


def test_registration_says_what_does_not_go() -> None:
    app = late.App("postgresql://nowhere/none")

    def handler(ctx: late.Context, n: int) -> None: ...
    def bare(n: int) -> None: ...
    async def coroutine(n: int) -> None: ...
    def batch(items: late.Batch[int]) -> None: ...

    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (bare, {}, "bare: .*late.Context"),
        (coroutine, {}, "coroutine: .*late.AsyncContext"),
        (handler, {"process": True}, "handler: .*process=True"),
        (handler, {"soft_timeout_s": 1.0}, "handler: .*soft_timeout_s"),
        (batch, {"batch": 3}, "batch: .*batch="),
    ]
    for fn, given, why in wrong:
        with pytest.raises(ConfigError, match=why):
            app.task(transaction=True, **given)(fn)
    assert app.task(transaction=True)(handler).policy.target == "transaction:local"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("spanner:///projects/p/instances/i/databases/d", "spanner: it has no savepoints"),
        ("cockroachdb://nowhere/none", "cockroachdb: a conflict there ends the whole"),
        ("cockroachdb+psycopg://nowhere/none", "cockroachdb: a conflict there ends the whole"),
    ],
)
def test_registration_refuses_other_stores_and_says_why(given: str, why: str) -> None:
    app = late.App(given)

    def charge(ctx: late.Context, n: int) -> None: ...

    begin = "task 'charge' has transaction=True, which works on PostgreSQL and SQLite and not on "
    with pytest.raises(ConfigError) as refused:
        app.task(transaction=True)(charge)
    assert str(refused.value).startswith(begin + why)


async def test_a_worker_refuses_where_there_is_no_transaction(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PgBouncer that pools statements refuses BEGIN."""
    from late.outbox.adapters import psycopg_shared

    app = late.App(url)

    @app.task(transaction=True)
    def charge(ctx: late.Context, n: int) -> None: ...

    monkeypatch.setattr(psycopg_shared, "_BEGIN", b"transaction blocks not allowed")
    with pytest.raises(ConfigError, match="'charge' has transaction=True"):
        async with working(app):
            pass


def test_a_plain_handler_has_no_tx(url: str) -> None:
    app = late.App(url)
    found: list[str] = []

    @app.task
    def plain(ctx: late.Context) -> None:
        with pytest.raises(ConfigError) as refused:
            _ = ctx.tx
        found.append(str(refused.value))

    enqueue(app, [plain.call()])
    assert drain(app) == {"done": 1}
    assert found == ["plain: ctx.tx is for @app.task(transaction=True)"]


def test_inline_mode_runs_in_a_transaction_of_the_database(url: str) -> None:
    app = late.App(url)

    @app.task(transaction=True)
    def charge(ctx: late.Context, n: int) -> None:
        effect(ctx, n)
        if n == 3:
            raise ValueError("three")

    with inline(app) as box:
        for n in (1, 2, 3):
            charge.enqueue(None, n)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="three"):
            box.run()
    assert effects(url) == {1: 1, 2: 1}
