"""What a handler is told of its attempt, and its transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

import late.handler.context
from late.app.app import App
from late.errors import InvalidTask
from late.handler.context import AsyncContext, Context, tag_of
from late.model.task import Attempt, TaskId
from late.schema.migrate import upgrade
from tests.unit.dispatcher_kit import NOW_US, attempt, rig, task

NOW = datetime.fromtimestamp(NOW_US / 1e6, UTC)


def context(
    kind: type[Context] | type[AsyncContext] = Context,
    *,
    url: str = "",
    beat: Callable[[Attempt], None] = lambda attempt: None,
    attempts_max: int | None = 3,
    number: int = 2,
    headers: str | None = None,
) -> Context | AsyncContext:
    return kind(
        attempt("charge", number=number, shard_id=5, headers=headers),
        started_at_us=NOW_US,
        timeout_s=30.0,
        attempts_max=attempts_max,
        url=url,
        beat=beat,
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path}/trips.db"
    upgrade(made)
    return made


def logged(url: str) -> set[str]:
    """Ids in the task log."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return {task_id for (task_id,) in connection.execute("select task_id from late_task")}


def test_the_tag_of_its_transactions_says_that_it_is_a_shadow() -> None:
    real = attempt("charge")
    tried = msgspec.structs.replace(real, shadow=True)
    assert tag_of(real) == "late-foreground:charge"
    assert tag_of(tried) == "late-foreground-shadow:charge"


def test_it_tells_what_the_attempt_is() -> None:
    ctx = context(headers='{"trace": "t1"}')
    assert ctx.task_id[15:18] == "005"
    assert (ctx.name, ctx.queue, ctx.group) == ("charge", "payments", "default")
    assert (ctx.attempt, ctx.deaths) == (2, 0)
    assert ctx.headers == {"trace": "t1"}
    assert context().headers == {}
    assert ctx.enqueued_at == NOW - timedelta(seconds=2)
    assert ctx.due_at == NOW - timedelta(seconds=1)
    assert ctx.due_at.tzinfo is UTC
    assert "charge" in repr(ctx)


@pytest.mark.parametrize(
    ("number", "attempts_max", "last"),
    [(2, 3, False), (3, 3, True), (4, 3, True), (9, None, False)],
)
def test_it_knows_the_last_attempt(number: int, attempts_max: int | None, last: bool) -> None:
    assert context(number=number, attempts_max=attempts_max).is_last_attempt is last


def test_a_heartbeat_moves_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now, beats = 100.0, list[float]()
    monkeypatch.setattr(late.handler.context, "monotonic", lambda: now)
    ctx = context(beat=lambda attempt: beats.append(now))
    assert ctx.deadline == NOW + timedelta(seconds=30)
    now = 112.0
    assert ctx.deadline == NOW + timedelta(seconds=30)
    ctx.heartbeat()
    assert ctx.deadline == NOW + timedelta(seconds=42)
    assert beats == [112.0]


def test_begin_commits_with_the_block_and_rolls_back_when_it_raises(url: str) -> None:
    app = App(url)

    @app.task()
    def receipt(trip: int) -> None: ...

    ctx = context(url=url)
    assert isinstance(ctx, Context)
    with ctx.begin() as tx:
        kept = receipt.enqueue(tx, 1)
        assert logged(url) == set()
    with pytest.raises(ZeroDivisionError), ctx.begin() as tx:  # noqa: PT012  the block is the test
        receipt.enqueue(tx, 2)
        raise ZeroDivisionError
    assert logged(url) == {kept}


def test_enqueue_takes_a_transaction_of_its_own(url: str) -> None:
    app = App(url)

    @app.task()
    def receipt(trip: int) -> None: ...

    ctx = context(url=url)
    assert isinstance(ctx, Context)
    one = ctx.enqueue(receipt.call(1))
    many = ctx.enqueue_many([receipt.call(2), receipt.options(delay=60).call(3)])
    assert ctx.enqueue_many([]) == []
    assert len({one, *many}) == 3
    assert logged(url) == {one, *many}
    # All or none.
    with pytest.raises(InvalidTask):
        ctx.enqueue_many([receipt.call(4), "no call"])  # type: ignore[list-item]
    assert len(logged(url)) == 3


async def test_an_async_handler_enqueues_the_next_task(url: str) -> None:
    """Through the dispatcher: the context of a registered task, its url, its transaction."""
    app = App(url)
    made: list[TaskId] = []

    @app.task()
    async def receipt(ctx: AsyncContext, trip: int) -> None: ...

    @app.task()
    async def charge(ctx: AsyncContext, trip: int) -> None:
        made.append(await ctx.enqueue(receipt.call(trip)))
        async with ctx.begin() as tx:
            made.extend(await app.enqueue_many(tx, [receipt.call(trip)]))
        assert await ctx.enqueue_many([]) == []

    @app.task()
    def refund(ctx: Context, trip: int) -> None:
        made.append(ctx.enqueue(receipt.call(trip)))

    async with rig(url=url) as it:
        it.dispatcher._handlers = app.tasks
        outcomes = await it.run(attempt("charge", trip=7), attempt("refund", trip=8))
    assert [o.error for o in outcomes] == [None, None]
    assert len(made) == 3
    assert logged(url) == set(made)


async def test_a_handler_sees_that_a_cancel_was_asked_for() -> None:
    asked: set[TaskId] = set()
    seen: list[tuple[str, bool]] = []

    @task()
    async def waits(ctx: AsyncContext) -> None:
        seen.append(("async", ctx.cancel_requested))

    @task()
    def works(ctx: Context) -> None:
        seen.append(("def", ctx.cancel_requested))

    async with rig(waits, works, cancel_asked=lambda a: a.record.task_id in asked) as it:
        for name in ("waits", "works"):
            await it.run(attempt(name))
            cancelled = attempt(name)
            asked.add(cancelled.record.task_id)
            await it.run(cancelled)
    assert seen == [("async", False), ("async", True), ("def", False), ("def", True)]


def test_a_context_of_which_nobody_knows_more_says_that_no_cancel_was_asked_for() -> None:
    assert not context().cancel_requested
