"""SQLAlchemy sessions of handlers with `transaction=True`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import late
from late.control import Control
from late.testing import drain, inline
from tests.integration.shared_kit import (
    SOON,
    business,
    business_file,
    check,
    effect,
    effect_async,
    effects,
    enqueue,
    raw,
)


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


class Effect(Base):
    __tablename__ = "effect"
    number: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str]


@pytest.fixture(params=["postgresql", "sqlite"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    with business() if request.param == "postgresql" else business_file(tmp_path) as made:
        yield made


@pytest.fixture
def server() -> Iterator[str]:
    with business() as made:
        yield made


def test_what_is_pending_is_flushed_and_commits_with_the_task(url: str) -> None:
    app = late.App(url)

    @app.task(transaction=True, retry=SOON)
    def charge(ctx: late.Context, n: int) -> None:
        assert ctx.session is ctx.session
        account = ctx.session.get_one(Account, n)
        account.balance += 1
        ctx.session.add(Effect(number=n, task=ctx.task_id))
        if n % 7 == 1 and ctx.attempt == 1:
            ctx.session.flush()
            raise ValueError("once")
        if n % 7 == 2 and ctx.attempt == 1:
            raise ValueError("once, before the flush")
        if n % 7 == 3:
            with suppress(ZeroDivisionError), ctx.session.begin_nested():
                ctx.session.add(Effect(number=n + 5000, task="taken back"))
                ctx.session.flush()
                raise ZeroDivisionError
        if n % 7 == 4:
            after.enqueue(ctx.session, n)
            assert ctx.claim(ctx.session)

    @app.task(transaction=True)
    def after(ctx: late.Context, n: int) -> None:
        effect(ctx, n + 100)  # Without a session.

    enqueue(app, [charge.call(n) for n in range(70)])
    assert drain(app, wait_s=5) == {"done": 80}
    assert effects(url) == Counter([*range(70), *[n + 100 for n in range(70) if n % 7 == 4]])
    check(url)


def test_async_sessions(server: str) -> None:
    url, app = server, late.App(server)

    @app.task(transaction=True, retry=SOON)
    async def charge(ctx: late.AsyncContext, n: int) -> None:
        account = await ctx.session.get_one(Account, n)
        account.balance += 1
        ctx.session.add(Effect(number=n, task=ctx.task_id))
        if n % 7 == 1 and ctx.attempt == 1:
            await ctx.session.flush()
            raise ValueError("once")
        if n % 7 == 3:
            with suppress(ZeroDivisionError):
                async with ctx.session.begin_nested():
                    ctx.session.add(Effect(number=n + 5000, task="taken back"))
                    await ctx.session.flush()
                    raise ZeroDivisionError
        if n % 7 == 4:
            await after.enqueue(ctx.session, n)
            assert await ctx.claim(ctx.session)

    @app.task(transaction=True)
    async def after(ctx: late.AsyncContext, n: int) -> None:
        await effect_async(ctx, n + 100)

    enqueue(app, [charge.call(n) for n in range(70)])
    assert drain(app, wait_s=5) == {"done": 80}
    assert effects(url) == Counter([*range(70), *[n + 100 for n in range(70) if n % 7 == 4]])
    check(url)


def test_a_flush_that_fails_is_its_own_handlers_failure(url: str) -> None:
    with raw(url) as tx:
        tx.execute("create unique index one on effect (number)")
        tx.execute("insert into effect values ('before', 7)")
        tx.execute("update account set balance = 1 where id = 7")
    app = late.App(url)

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def charge(ctx: late.Context, n: int) -> None:
        ctx.session.add(Effect(number=n, task=ctx.task_id))
        ctx.session.get_one(Account, n, populate_existing=True).balance += 1

    enqueue(app, [charge.call(n) for n in range(20)])
    assert drain(app) == {"done": 19, "dead": 1}
    assert effects(url) == Counter(range(20))
    check(url)


def test_a_session_ends_no_transaction_and_none_outlives_its_handler(url: str) -> None:
    app = late.App(url)
    kept: list[sa.orm.Session] = []

    @app.task(transaction=True, retry=late.Retry(max_attempts=1))
    def end(ctx: late.Context, how: str) -> None:
        ctx.session.execute(sa.insert(Effect).values(number=1, task="x"))
        getattr(ctx.session, how)()

    @app.task(transaction=True)
    def keep(ctx: late.Context) -> None:
        ctx.session.execute(sa.select(1))
        kept.append(ctx.session)

    @app.task(transaction=True)
    def close(ctx: late.Context, n: int) -> None:
        ctx.session.execute(sa.insert(Effect).values(number=n, task="x"))
        ctx.session.execute(sa.update(Account).where(Account.id == n).values(balance=1))

    enqueue(app, [end.call(how) for how in ("commit", "rollback", "close")])
    enqueue(app, [keep.call() for _ in range(5)])
    enqueue(app, [close.call(n) for n in range(5, 10)])
    assert drain(app) == {"done": 10, "dead": 3}
    assert effects(url) == Counter(range(5, 10))
    check(url)
    with Control(url) as control:
        letters = control.dead_letters.page().letters
    assert all("shared with other tasks" in each.errors[-1].error for each in letters)
    assert len({id(session) for session in kept}) == 5


def test_there_is_none_elsewhere(tmp_path: Path) -> None:
    with business_file(tmp_path) as url:
        app = late.App(url)
        errors: list[str] = []

        @app.task(transaction=True)
        async def awaited(ctx: late.AsyncContext) -> None:
            with pytest.raises(late.ConfigError) as refused:
                _ = ctx.session
            errors.append(str(refused.value))

        @app.task
        def plain(ctx: late.Context) -> None:
            with pytest.raises(late.ConfigError) as refused:
                _ = ctx.session
            errors.append(str(refused.value))

        enqueue(app, [awaited.call(), plain.call()])
        assert drain(app) == {"done": 2}
    assert any("async def handler is for PostgreSQL" in error for error in errors)
    assert "plain: ctx.session is for @app.task(transaction=True)" in errors


def test_inline_mode(url: str) -> None:
    app = late.App(url)

    @app.task(transaction=True)
    def charge(ctx: late.Context, n: int) -> None:
        ctx.session.add(Effect(number=n, task=ctx.task_id))
        if n == 3:
            raise ValueError("three")

    with inline(app) as box:
        for n in (1, 2, 3):
            charge.enqueue(None, n)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="three"):
            box.run()
    assert effects(url) == {1: 1, 2: 1}
