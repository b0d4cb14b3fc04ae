"""Effects that happen exactly once: they and the record of them commit together, or neither."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from google.api_core.exceptions import Aborted

import late
from late.errors import ConfigError, InvalidTask, SchemaMismatch
from late.handler.context import AsyncContext, AttemptOver, Context
from late.model.task import Attempt
from late.outbox import connect, connect_async
from late.testing import drain, inline
from tests.conformance.backends import Backend
from tests.integration import outbox_kit
from tests.integration.effects_kit import attempt, do, effects, make_table, select
from tests.servers import drop_database, migrated_database, postgres_url
from tests.support import sqlite

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def context(
    url: str, of: Attempt, beat: Callable[[Attempt], None] = lambda attempt: None
) -> Context:
    return Context(of, started_at_us=0, timeout_s=60.0, attempts_max=3, url=url, beat=beat)


def async_context(url: str, of: Attempt) -> AsyncContext:
    return AsyncContext(
        of, started_at_us=0, timeout_s=60.0, attempts_max=3, url=url, beat=lambda attempt: None
    )


@pytest.fixture
def url(backend: Backend, url: str) -> str:
    make_table(backend, url)
    return url


def test_a_repeat_does_nothing(backend: Backend, url: str) -> None:
    first = attempt()
    with context(url, first).once() as tx:
        do(tx, 1)
    for _ in range(2):
        with pytest.raises(late.AlreadyDone), context(url, first).once() as tx:
            do(tx, 1)
    assert effects(backend, url) == [1]
    # Another task, and the same task in another group, have effects of their own.
    for other in (attempt(), Attempt("audit", first.record, 1, 0, 1, 1)):
        with context(url, other).once() as tx:
            do(tx, 2)
    assert effects(backend, url) == [1, 2, 2]
    assert len(select(backend, url, "select task_id from late_inbox")) == 3


def test_what_failed_was_not_done(backend: Backend, url: str) -> None:
    one = attempt()
    with pytest.raises(KeyError), context(url, one).once() as tx:  # noqa: PT012
        do(tx, 1)
        raise KeyError
    assert effects(backend, url) == []
    with context(url, one).once() as tx:
        do(tx, 1)
    assert effects(backend, url) == [1]


async def test_the_same_in_async_handlers(backend: Backend, url: str) -> None:
    one = attempt()

    async def fails() -> None:
        async with async_context(url, one).once() as tx:
            await do(tx, 1)
            raise KeyError

    with pytest.raises(KeyError):
        await fails()
    async with async_context(url, one).once() as tx:
        await do(tx, 1)
    with pytest.raises(late.AlreadyDone):
        async with async_context(url, one).once() as tx:
            await do(tx, 1)
    assert effects(backend, url) == [1]


def own_the_shard(backend: Backend, url: str, epoch: int) -> None:
    select(
        backend,
        url,
        "insert into late_lease (consumer_group, shard_id, owner, epoch)"
        f" values ('default', 0, 'w', {epoch})",
    )


def test_inline_mode_has_effects_after_several_drains(backend: Backend, url: str) -> None:
    app = late.App(url, shards=1)

    @app.task
    def charge(ctx: Context, number: int) -> None:
        with ctx.once() as tx:
            do(tx, number)

    own_the_shard(backend, url, epoch=9)  # Each drain raises it.
    with inline(app) as box:
        charge.enqueue(None, 1)  # type: ignore[call-overload]
        assert box.run() == 1
    assert effects(backend, url) == [1]


async def test_a_run_whose_shard_has_a_new_owner_has_no_effects(backend: Backend, url: str) -> None:
    own_the_shard(backend, url, epoch=2)
    with pytest.raises(AttemptOver, match="new owner"), context(url, attempt()).once() as tx:
        do(tx, 1)
    with pytest.raises(AttemptOver):
        async with async_context(url, attempt()).once() as tx:
            await do(tx, 1)
    assert effects(backend, url) == []
    assert select(backend, url, "select task_id from late_inbox") == []
    with context(url, attempt(epoch=2)).once() as tx:
        do(tx, 2)
    assert effects(backend, url) == [2]


def test_an_attempt_that_was_ended_meanwhile_does_not_commit(backend: Backend, url: str) -> None:
    ended = threading.Event()

    def beat(attempt: Attempt) -> None:
        if ended.is_set():
            raise AttemptOver

    one = attempt()
    with pytest.raises(AttemptOver), context(url, one, beat).once() as tx:  # noqa: PT012
        do(tx, 1)
        ended.set()
    assert effects(backend, url) == []
    with pytest.raises(AttemptOver), context(url, one, beat).once() as tx:
        do(tx, 1)
    assert effects(backend, url) == []


def test_a_second_block_in_one_attempt_is_a_mistake_and_not_skipped(url: str) -> None:
    one = context(url, attempt())
    with one.once() as tx:
        do(tx, 1)
    with pytest.raises(ConfigError, match="one block of once"), one.once() as tx:
        do(tx, 2)


def test_a_repeat_at_the_same_time_waits_for_the_first(backend: Backend, url: str) -> None:
    one, inside, ended = attempt(), threading.Event(), threading.Event()
    seen: list[str] = []

    def repeat() -> None:
        inside.wait()
        try:
            with context(url, one).once() as tx:
                do(tx, 1)
                seen.append("done again")
        except late.AlreadyDone:
            seen.append("waited" if ended.is_set() else "did not wait")

    thread = threading.Thread(target=repeat)
    thread.start()
    with context(url, one).once() as tx:
        do(tx, 1)
        if not backend.emulated:  # which has one transaction at a time
            inside.set()
            thread.join(0.3)  # it cannot end before this block does
        ended.set()
    inside.set()
    thread.join(120)
    assert seen == ["waited"]
    assert effects(backend, url) == [1]


@contextmanager
def counted(runs: list[int], n: int) -> Iterator[None]:
    """Count an attempt, unless Spanner aborted its transaction: then it runs once more."""
    try:
        yield
    except Aborted:
        raise
    except BaseException:
        runs.append(n)
        raise
    runs.append(n)


@pytest.mark.parametrize("kind", ["async", "thread", "own"])
def test_a_task_that_fails_behind_its_block_ends_as_done(
    backend: Backend, url: str, kind: str
) -> None:
    app, runs = late.App(url), list[int]()
    retry = late.Retry(max_attempts=5, base=0.05, cap=0.05)

    if kind == "async":

        @app.task(retry=retry)
        async def charge(ctx: late.AsyncContext, n: int) -> None:
            with counted(runs, n):
                async with ctx.once() as tx:
                    await do(tx, n)
                    await follow.enqueue(tx, n)
                raise ConnectionError("after the commit")
    elif kind == "thread":

        @app.task(retry=retry)
        def charge(ctx: late.Context, n: int) -> None:
            with counted(runs, n):
                with ctx.once() as tx:
                    do(tx, n)
                    follow.enqueue(tx, n)
                raise ConnectionError("after the commit")
    else:

        @app.task(retry=retry)
        def charge(ctx: late.Context, n: int) -> None:
            with counted(runs, n):
                with connect(url) as tx:
                    if not ctx.claim(tx):
                        return
                    do(tx, n)
                    follow.enqueue(tx, n)
                raise ConnectionError("after the commit")

    @app.task
    async def follow(n: int) -> None: ...

    with connect(url) as tx:
        app.enqueue_many(tx, [charge.call(n) for n in range(5)])
    assert drain(app, wait_s=5.0) == {"done": 10}
    assert sorted(runs) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert effects(backend, url) == [0, 1, 2, 3, 4]


async def test_an_awaited_handler_may_claim_for_a_sync_transaction(tmp_path: Any) -> None:
    """Django's ORM has no other: what needs a transaction is a function in a thread."""
    url = sqlite.database(tmp_path / "late.db")
    first = attempt()

    def work() -> bool:
        with connect(url) as tx:
            taken: bool = async_context(url, first).claim(tx)
            return taken

    assert [await asyncio.to_thread(work) for _ in range(2)] == [True, False]


async def test_the_truth_of_a_claim_that_is_not_awaited_is_refused(tmp_path: Any) -> None:
    """A coroutine is true, so the effects would happen at each repeat."""
    url = sqlite.database(tmp_path / "late.db")
    async with connect_async(url) as tx:
        with pytest.raises(TypeError, match=r"`if await ctx.claim\(tx\):`"):
            assert async_context(url, attempt()).claim(tx)
        assert await async_context(url, attempt()).claim(tx)


@pytest.mark.parametrize("name", [*outbox_kit.SQLITE, *outbox_kit.POSTGRES])
async def test_a_claim_through_every_kind_of_transaction(name: str, tmp_path: Any) -> None:
    server = None
    if name in outbox_kit.SQLITE:
        where = sqlite.database(tmp_path / "claim.db")
        opener = outbox_kit.SQLITE[name]
    else:
        server = postgres_url()
        if server is None:
            pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
        where, opener = migrated_database(server), outbox_kit.POSTGRES[name]
    one = attempt()

    async def claim(tx: Any) -> bool:
        kind = async_context if late.outbox.is_async(tx) else context
        answer: bool = await outbox_kit.Caller.wait(kind(where, one).claim(tx))
        return answer

    async with opener(where) as caller:
        assert await claim(caller.tx) is True
        await caller.rollback()
    async with opener(where) as caller:
        assert await claim(caller.tx) is True
        await caller.commit()
    async with opener(where) as caller:
        assert await claim(caller.tx) is False
        await caller.rollback()
    if server is not None:
        drop_database(server, where)


async def test_a_transaction_that_is_none_is_refused(
    backend: Backend, url: str, empty_url: str
) -> None:
    with connect(url) as tx, pytest.raises(InvalidTask, match="not async"):
        await async_context(url, attempt()).claim(tx)
    async with connect_async(url) as tx:
        with pytest.raises(InvalidTask, match="is async"):
            context(url, attempt()).claim(tx)
    with pytest.raises(SchemaMismatch, match="late migrate"), connect(empty_url) as tx:
        context(empty_url, attempt()).claim(tx)


def test_autocommit_is_refused(tmp_path: Any) -> None:
    import sqlite3

    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    with pytest.raises(InvalidTask, match="need a transaction"):
        context("sqlite:///a.db", attempt()).claim(connection)
    connection.close()
