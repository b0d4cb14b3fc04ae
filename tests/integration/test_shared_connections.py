"""Connections of shared transactions: each handler has one of its own, and waits while there is
none; and memory after a shard was lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import psycopg
import psycopg.adapt
import psycopg.rows
import pytest

import late
from late.dispatcher.transactions import turn_queue
from late.dispatcher.transactions.pool import TransactionPool
from late.model.task import TRANSACTION_POOL
from late.outbox.adapters.psycopg_shared import PsycopgSharedTransactions
from late.testing import drain
from tests.integration.shared_kit import (
    business,
    check,
    effect,
    effects,
    enqueue,
    until,
    working,
)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def url() -> Iterator[str]:
    with business() as made:
        yield made


def test_a_setting_of_the_connection_s_object_reaches_no_other_handler(url: str) -> None:
    app = late.App(url)
    seen: list[Any] = []

    class Loud(psycopg.adapt.Dumper):
        def dump(self, obj: Any) -> bytes:
            raise AssertionError("of another handler")

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def look(ctx: late.Context, n: int) -> None:
        [row] = ctx.tx.execute("select 1 as one where %s::text = 'text'", ("text",)).fetchall()
        seen.append(row)
        ctx.tx.execute("select 1", prepare=True)
        effect(ctx, n)
        ctx.enqueue(later.call())
        ctx.tx.row_factory = psycopg.rows.dict_row
        ctx.tx.adapters.register_dumper(str, Loud)
        ctx.tx.prepare_threshold = 0

    @app.task(transaction=True)
    def later(ctx: late.Context) -> None:
        pass

    enqueue(app, [look.call(n) for n in range(20)])
    assert drain(app) == {"done": 40}
    # A worker that gets no processor for the time of a lease runs an attempt again; the effects say
    # that nothing is done twice.
    assert set(seen) == {(1,)}
    assert effects(url) == Counter(range(20))
    check(url)


def test_without_a_connection_tasks_wait_and_lose_no_attempt(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = late.App(url)
    begin, calls = PsycopgSharedTransactions.begin, count()

    def away(self: PsycopgSharedTransactions, is_async: bool) -> Any:
        if 1 <= next(calls) < 150:  # The first one is that of the worker's start.
            raise psycopg.OperationalError("connection refused")
        return begin(self, is_async)

    monkeypatch.setattr(PsycopgSharedTransactions, "begin", away)
    monkeypatch.setattr(turn_queue, "AWAY_S", 0.01)

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def charge(ctx: late.Context, n: int) -> None:
        effect(ctx, n)

    enqueue(app, [charge.call(n) for n in range(40)])
    assert drain(app) == {"done": 40}
    assert next(calls) > 150
    assert effects(url) == Counter(range(40))
    check(url)


async def test_a_lost_shard_leaves_nothing_in_memory(url: str) -> None:
    app = late.App(url)
    go, begun = threading.Event(), threading.Event()

    @app.task(transaction=True)
    def wait(ctx: late.Context, n: int) -> None:
        begun.set()
        assert go.wait(60)

    async with working(app, concurrency=2) as worker:
        enqueue(app, [wait.call(n) for n in range(2)])
        await until(begun.is_set)
        pool = worker.pools[TRANSACTION_POOL]
        assert isinstance(pool, TransactionPool)
        await until(lambda: len(pool._turns) == 2)
        for turn in [*pool._turns.values()]:
            attempt = turn.attempt
            pool.abandon(attempt.group, attempt.record.shard_id, attempt.epoch)
        go.set()
        await until(lambda: not pool._turns)
