"""A worker in this process, on every store: what the README promises, end to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import late
from late import outbox
from late.config import WorkerConfig
from late.control import Control, Filter
from late.model.ids import new_id
from late.model.task import NewTask
from late.outbox import connect
from late.payload.codec import Encrypted, Signed
from late.testing import NotDrained, drain
from late.worker.worker import Worker
from tests.support.leases import LONG_LEASES

QUICK = WorkerConfig(poll_max_s=0.05, grace_s=60.0, **LONG_LEASES)


async def until(condition: Callable[[], Any], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)


async def until_read(condition: Callable[[], Any], limit_s: float = 120.0) -> None:
    """Like `until`, for a condition that reads the database: in a thread, as the worker of this
    loop must not stand still so long."""
    deadline = time.monotonic() + limit_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)


def test_tasks_run_with_the_transaction_and_not_without_it(url: str) -> None:
    app, ran = late.App(url), []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    with connect(url) as tx:
        app.enqueue_many(tx, [note.call(n) for n in range(100)])
    with pytest.raises(KeyError), connect(url) as tx:  # noqa: PT012
        note.enqueue(tx, -1)
        raise KeyError
    assert drain(app) == {"done": 100}
    assert sorted(ran) == list(range(100))
    assert drain(app) == {}


def test_a_delay_a_retry_and_a_dead_letter(url: str) -> None:
    app, ran = late.App(url), []

    @app.task(retry=late.Retry(max_attempts=3, base=0.05, cap=0.05))
    def fails(n: int) -> None:
        ran.append(("fails", n, time.monotonic()))
        raise ValueError(f"no {n}")

    @app.task
    def later(ctx: late.Context) -> None:
        ran.append(("later", ctx.attempt, time.monotonic()))

    began = time.monotonic()
    with connect(url) as tx:
        fails.enqueue(tx, 7)
        later.options(delay=0.5).enqueue(tx)
        later.options(delay=timedelta(days=1)).enqueue(tx)
    assert drain(app, wait_s=5.0) == {"done": 1, "dead": 1}
    assert [name for name, *_ in ran].count("fails") == 3
    [late_at] = [at for name, _, at in ran if name == "later"]
    assert late_at - began >= 0.5
    with Control(url) as control:
        [letter] = control.dead_letters.find(Filter())
        assert (letter.reason, letter.attempts) == ("attempts_exhausted", 3)
        assert [e.attempt for e in letter.errors] == [1, 2, 3]
        assert "no 7" in letter.errors[0].error
        [queue] = control.status.read().queues
        assert (queue.parked.n, queue.dead.n) == (1, 1)


def test_a_redriven_dead_letter_runs_again(url: str) -> None:
    app, broken = late.App(url), [True]

    @app.task(retry=late.Retry(max_attempts=1))
    def mended() -> None:
        if broken[0]:
            raise ValueError

    with connect(url) as tx:
        mended.enqueue(tx)
    assert drain(app) == {"dead": 1}
    broken[0] = False
    with Control(url) as control:
        assert control.dead_letters.redrive(Filter()).count == 1
    assert drain(app) == {"done": 1}


def test_outcomes_of_handlers(url: str) -> None:
    app, seen = late.App(url), []

    @app.task
    def snoozes(ctx: late.Context) -> late.Snooze | None:
        seen.append(ctx.attempt)
        return late.Snooze(0.05) if len(seen) < 3 else None

    @app.task
    async def discards() -> None:
        raise late.Discard("not wanted any more")

    with connect(url) as tx:
        snoozes.enqueue(tx)
        discards.enqueue(tx)
    assert drain(app, wait_s=2.0) == {"done": 1, "discarded": 1}
    assert seen == [1, 1, 1], "a snooze costs no attempt"


def test_a_handler_enqueues_in_a_transaction_of_its_own(url: str) -> None:
    app, ran = late.App(url), []

    @app.task
    def second(n: int) -> None:
        ran.append(n)

    @app.task
    def first(ctx: late.Context) -> None:
        with ctx.begin() as tx:
            second.enqueue(tx, 1)
        with pytest.raises(KeyError), ctx.begin() as tx:  # noqa: PT012
            second.enqueue(tx, 2)
            raise KeyError

    @app.task
    async def third(ctx: late.AsyncContext) -> None:
        async with ctx.begin() as tx:
            await second.enqueue(tx, 3)

    with connect(url) as tx:
        first.enqueue(tx)
        third.enqueue(tx)
    assert drain(app) == {"done": 4}
    assert sorted(ran) == [1, 3]


def test_tasks_of_one_key_run_one_after_the_other_in_order(url: str) -> None:
    app = late.App(url)
    ran: dict[str, list[int]] = {}
    inside: set[str] = set()
    failed: set[tuple[str, int]] = set()

    @app.task(retry=late.Retry(base=0.02, cap=0.02))
    async def step(key: str, n: int) -> None:
        assert key not in inside
        inside.add(key)
        await asyncio.sleep(0.001)
        inside.discard(key)
        if n % 7 == 3 and (key, n) not in failed:
            failed.add((key, n))
            raise ValueError
        ran.setdefault(key, []).append(n)

    for n in range(30):
        with connect(url) as tx:
            app.enqueue_many(
                tx, [step.options(ordering_key=key).call(key, n) for key in ("a", "b", "c")]
            )
    assert drain(app, wait_s=3.0) == {"done": 90}
    assert ran == {key: list(range(30)) for key in ("a", "b", "c")}


def test_an_expired_task_does_not_run(url: str) -> None:
    app, ran = late.App(url), []

    @app.task
    def stale() -> None:
        ran.append(1)

    with connect(url) as tx:
        stale.options(expires=0.05).enqueue(tx)
    time.sleep(0.2)  # the database's clock must pass the expiry; there is nothing to await
    assert drain(app) == {"expired": 1}
    assert not ran


def test_a_unique_key_is_free_again_after_its_task(url: str) -> None:
    app = late.App(url)

    @app.task
    def once(n: int) -> None:
        pass

    with connect(url) as tx:
        first = once.options(unique_key="k").enqueue(tx, 1)
        assert once.options(unique_key="k").enqueue(tx, 1) == first
        with pytest.raises(late.KeyConflict):
            once.options(unique_key="k").enqueue(tx, 2)
    assert drain(app) == {"done": 1}
    with connect(url) as tx:
        assert once.options(unique_key="k").enqueue(tx, 2) != first
    assert drain(app) == {"done": 1}


async def test_a_schedule_fires_once_per_tick_with_two_workers(url: str) -> None:
    ticks: list[str] = []

    def make() -> late.App:
        app = late.App(url)

        @app.schedule(every=timedelta(seconds=1), name="beat")
        @app.task(name="beat")
        async def beat(ctx: late.AsyncContext) -> None:
            ticks.append(ctx.headers["late-due"])

        return app

    workers = [Worker(make(), settings=QUICK) for _ in range(2)]
    for worker in workers:
        await worker.start()
    try:
        await until(lambda: len(ticks) >= 3)
        # The owner of the schedule's shard stops; the other goes on with it.
        await workers[0].stop()
        count = len(ticks)
        await until(lambda: len(ticks) >= count + 2)
    finally:
        for worker in workers:
            await worker.stop()
    assert len(ticks) == len(set(ticks)), "one task per tick"


async def test_an_interrupted_task_costs_no_attempt(url: str) -> None:
    app = late.App(url)
    attempts: list[int] = []

    @app.task
    async def long(ctx: late.AsyncContext) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            await asyncio.sleep(60)

    with connect(url) as tx:
        long.enqueue(tx)
    worker = Worker(app, settings=WorkerConfig(poll_max_s=0.05, grace_s=0.1, **LONG_LEASES))
    await worker.start()
    await until(lambda: attempts)
    await worker.stop()
    assert await asyncio.to_thread(drain, app) == {"done": 1}
    assert attempts == [1, 1]


async def test_a_worker_on_a_missing_schema_says_what_to_do(empty_url: str) -> None:
    with pytest.raises(late.SchemaMismatch, match="late migrate"):
        await Worker(late.App(empty_url)).start()


def test_a_drain_that_cannot_end_says_so(url: str) -> None:
    app = late.App(url)

    @app.task
    async def hangs() -> None:
        await asyncio.sleep(60)

    with connect(url) as tx:
        hangs.enqueue(tx)
    with pytest.raises(NotDrained):
        drain(app, timeout_s=0.5)


@pytest.mark.parametrize(
    ("codec", "payload", "reason"),
    [
        ("json", b"{", "undecodable"),
        ("json", b"[" * 5_000, "undecodable"),
        ("json", b'{"n":1' + b" " * 1_100_000 + b"}", "payload_too_large"),
        ("signed", b'{"n":1}', "bad_signature"),
    ],
)
def test_a_payload_that_no_producer_of_ours_made_is_buried_unrun(
    url: str, codec: str, payload: bytes, reason: str
) -> None:
    keys = {"k1": b"0123456789abcdef" * 2}
    sealed = {"signed": Signed, "encrypted": Encrypted}.get(codec)
    app, ran = late.App(url, codec=sealed(keys=keys, current="k1") if sealed else "json"), []

    @app.task
    def note(n: int) -> None:
        ran.append(n)

    # Given a row that somebody with access to the table has written, and one of ours
    with connect(url) as tx:
        outbox.insert(tx, [NewTask(0, new_id(0), "default", note.name, payload)])
        note.enqueue(tx, 7)
    # Then it is a dead letter that used no attempt, and ours has run
    assert drain(app) == {"done": 1, "dead": 1}
    assert ran == [7]
    with Control(url) as control:
        [letter] = control.dead_letters.find(Filter())
    assert (letter.reason, letter.attempts) == (reason, 0)
