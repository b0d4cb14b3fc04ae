"""How many attempts the pool of shared transactions asks for, and which of them have not begun."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest
from msgspec.structs import replace

import late
from late.dispatcher.transactions import turn_queue
from late.dispatcher.transactions.pool import AHEAD_MAX, GRAIN, TransactionPool
from late.dispatcher.transactions.run import Turn
from late.dispatcher.transactions.turn_queue import TURNS_MAX, Alone, TurnQueue
from late.handler.classify import DONE, GIVEN_BACK
from late.handler.context import AsyncContext
from late.model.task import Options, Outcome
from late.store.base import Fate
from tests.unit.dispatcher_kit import attempt


def made(alone: Alone, concurrency: int = 16) -> TransactionPool:
    app = late.App("postgresql://nowhere/none")

    @app.task(transaction=True)
    def charge(ctx: late.Context) -> None: ...

    return TransactionPool(
        {"charge": charge},
        url=app.url,
        alone=alone,
        concurrency=concurrency,
        worker_id="w",
        now_us=lambda: 0,
        on_finished=lambda outcomes: None,
        wake=lambda: None,
        trusted=lambda: True,
    )


@pytest.mark.parametrize(
    ("usual_s", "load", "room"),
    [
        (0.0, 0, 16),  # Nothing is known of them.
        (0.0, 15, 1),
        (0.0002, 0, 16 + AHEAD_MAX),
        (0.0002, TURNS_MAX - 1, 16 + AHEAD_MAX - TURNS_MAX + 1),
        (0.0002, 16 + AHEAD_MAX - GRAIN, GRAIN),
        (0.0002, 16 + AHEAD_MAX - GRAIN + 1, 0),  # They would cost a pass over all shards.
        (0.001, 0, 116),
        (0.2, 0, 16),
        (0.2, 15, 1),
        (0.2, 16, 0),
        (0.2, 20, 0),
    ],
)
def test_quick_tasks_are_taken_ahead(usual_s: float, load: int, room: int) -> None:
    pool = made(None)  # type: ignore[arg-type]
    pool._queue.usual_s = usual_s
    pool._load = load
    assert pool.room == room


def test_many_slow_tasks_leave_no_slot_empty() -> None:
    pool = made(None, concurrency=200)  # type: ignore[arg-type]
    pool._queue.usual_s = 1.0
    pool._load = 199
    assert pool.room == 1


async def test_what_is_given_back_has_not_begun_until_its_outcome_is_told() -> None:
    pool = made(None)  # type: ignore[arg-type]
    pool._queue._stopped = True  # No transaction begins.
    mine, left = attempt("charge"), attempt("charge")
    handler = pool._handlers["charge"]
    calls = []
    for each in (mine, left):
        context = AsyncContext(each, 0, 5.0, None, "", lambda attempt: None)
        calls.append(asyncio.create_task(handler.fn(context)))
    await asyncio.sleep(0)
    assert list(pool.queued) == [mine, left]

    calls[0].cancel()
    assert await calls[0] is GIVEN_BACK
    assert list(pool.queued) == [mine, left], "a settlement would say that it has begun"

    pool._reported([Outcome(mine, "interrupted", 0, 0, begun=False)])
    assert list(pool.queued) == [left]
    calls[1].cancel()
    await calls[1]


async def test_an_end_that_is_committed_is_no_late_result_after_a_hand_over() -> None:
    pool = made(None)  # type: ignore[arg-type]
    ended, repeated = attempt("charge"), attempt("charge")
    for each in (ended, repeated):
        context = AsyncContext(each, 0, 5.0, None, "", lambda attempt: None)
        future = asyncio.get_running_loop().create_future()
        pool._turns[id(each)] = Turn(each, context, lambda tx: None, None, future)
    pool._turns[id(ended)].recorded = True
    pool.abandon(ended.group, ended.record.shard_id, ended.epoch)
    for each in (ended, repeated):
        pool._finished.add(each, DONE, 0, 0.0)
    pool._finished.deliver()
    assert pool.dropped == 1, "nothing is lost of what the journal has"
    assert not pool._turns


async def test_the_foreground_goes_first_in_a_transaction_but_for_the_oldest_attempt() -> None:
    queue = made(None)._queue  # type: ignore[arg-type]
    queue._stopped = True
    low = [replace(attempt(shard_id=n % 2), options=Options(priority=-1)) for n in range(4)]
    high = [attempt(shard_id=1), attempt(shard_id=0)]
    for each in (*low, *high):
        context = AsyncContext(each, 0, 5.0, None, "", lambda attempt: None)
        ended = asyncio.get_running_loop().create_future()
        queue.add(Turn(each, context, lambda tx: None, None, ended))
    first, *rest = [turn.attempt for turn in queue._take_short()]
    assert first is low[0], "nobody waits for ever"
    assert {each.is_background for each in rest[:2]} == {False}
    assert {each.is_background for each in rest[2:]} == {True}
    assert len(rest) == 5


class Connection:
    """A transaction whose handler hangs until its connection is taken from it."""

    one_writer = False

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.broken_off, self.cancel_may_end = threading.Event(), threading.Event()
        self.closed = asyncio.Event()

    def begin(self, is_async: bool, /) -> Any:
        return self

    def next(self) -> None: ...

    def break_off(self) -> None:
        self.broken_off.set()

    def cancel(self) -> None:
        assert self.cancel_may_end.wait(30)
        self.steps.append("cancelled")

    def roll_back(self) -> None:
        self.steps.append("rolled back")

    def is_of_database(self, error: BaseException) -> bool:
        return True

    def close(self, *, committed: bool = False) -> None:
        self.steps.append("closed")
        self.closed.set()

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None


async def test_a_connection_is_not_closed_while_another_thread_is_in_its_driver() -> None:
    connection = Connection()
    queue = TurnQueue(
        connection,
        cast("Alone", lambda attempts: nullcontext()),
        concurrency=1,
        may_start=lambda attempt: True,
        now_us=lambda: 0,
        report=lambda outcome: None,
    )

    began = threading.Event()

    def hang(tx: object) -> None:
        began.set()
        assert connection.broken_off.wait(30)

    context = AsyncContext(attempt(), 0, 5.0, None, "", lambda attempt: None)
    turn = Turn(attempt(), context, hang, None, asyncio.get_running_loop().create_future())
    queue.add(turn)
    assert await asyncio.to_thread(began.wait, 30)
    assert await queue.cancel(turn) is None
    await asyncio.sleep(0.05)
    assert "closed" not in connection.steps
    connection.cancel_may_end.set()
    await asyncio.wait_for(connection.closed.wait(), 30)
    assert connection.steps[-2:] == ["cancelled", "closed"]


class Database(Connection):
    """No transaction can be opened while it is away."""

    error = None

    def __init__(self) -> None:
        super().__init__()
        self.away = True
        self.refused = 0

    def begin(self, is_async: bool, /) -> Any:
        if self.away:
            self.refused += 1
            raise OSError("the database is starting up")
        return self


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110  the state is of other threads
            await asyncio.sleep(0.001)


async def test_a_database_that_is_away_is_logged_once_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turn_queue, "AWAY_S", 0.01)

    async def settle(outcomes: object, write: object) -> Fate:
        return Fate.COMMITTED

    database = Database()
    queue = TurnQueue(
        database,
        cast("Alone", lambda attempts: nullcontext(settle)),
        concurrency=4,
        may_start=lambda attempt: True,
        now_us=lambda: 0,
        report=lambda outcome: None,
    )

    def add(work: Callable[[object], object] = lambda tx: None) -> Turn:
        context = AsyncContext(attempt(), 0, 5.0, None, "", lambda attempt: None)
        ended = asyncio.get_running_loop().create_future()
        turn = Turn(attempt(), context, work, None, ended)
        turn.alone = True
        queue.add(turn)
        return turn

    def lines() -> int:
        return sum("no transaction for handlers" in each.message for each in caplog.records)

    turns = [add() for _ in range(4)]  # They fail at once.
    await _until(lambda: database.refused > 12)
    assert lines() == 1
    database.away = False
    await asyncio.wait([each.ended for each in turns], timeout=30)
    assert all(each.recorded for each in turns)

    began, may_end = threading.Event(), threading.Event()

    def hold(tx: object) -> None:
        began.set()
        assert may_end.wait(30)

    held = add(hold)
    await _until(began.is_set)
    database.away = True
    turns = [add()]
    await _until(lambda: lines() == 2)
    may_end.set()  # It has its connection from before, and says nothing of the present.
    await _until(held.ended.done)
    before = database.refused
    await _until(lambda: database.refused > before + 3)
    assert lines() == 2
    database.away = False
    await _until(turns[0].ended.done)
    queue.stop()
