"""Connections of the PostgreSQL store are lent again after an answer, and closed at any doubt."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from psycopg import errors, pq

from late.errors import ConfigError, StoreClosed, StoreError, StoreRefused
from late.store.postgres.connection import (
    ON_REQUEST,
    PLAN_LOST,
    Connection,
    ConnectionPool,
    StorePools,
)


class Fake:
    """A connection to no server."""

    def __init__(self) -> None:
        self.closed = self.broken = False
        self.prepare_threshold: int | None = ON_REQUEST
        self.pgconn = SimpleNamespace(transaction_status=pq.TransactionStatus.IDLE)

    async def execute(self, _: str) -> None:
        assert not self.closed

    async def close(self) -> None:
        self.closed = True


class Server:
    """Makes connections, and guards each of them."""

    def __init__(self) -> None:
        self.made: list[Fake] = []
        self.fault: StoreError | None = None

    async def connect(self) -> Connection:
        self.made.append(Fake())
        return cast(Connection, self.made[-1])

    async def guard(self, _: Connection) -> None:
        if self.fault is not None:
            raise self.fault

    def pool(self, size: int = 1) -> ConnectionPool:
        pool = ConnectionPool(self.connect, size, self.guard, "late")
        pool.open()
        return pool


async def lend(pool: ConnectionPool, error: BaseException | None = None, **state: Any) -> None:
    """Make one call, which changes the connection and ends with `error`."""
    async with pool.use() as connection:
        for name, value in state.items():
            setattr(connection, name, value)
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [None, errors.UniqueViolation(), errors.SerializationFailure()])
async def test_a_connection_is_lent_again_after_an_answer(error: Exception | None) -> None:
    server = Server()
    pool = server.pool()
    if error is None:
        await lend(pool)
    else:
        with pytest.raises(StoreError):
            await lend(pool, error)
    await lend(pool)
    assert [one.closed for one in server.made] == [False]
    await pool.close()
    assert server.made[0].closed


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (psycopg.OperationalError("the connection is lost"), StoreError),
        (TimeoutError(), StoreError),
        (OSError(), StoreError),
        (asyncio.CancelledError(), asyncio.CancelledError),
        *((errors.lookup(state)(), StoreError) for state in PLAN_LOST),
    ],
    ids=repr,
)
async def test_a_connection_is_closed_at_any_doubt(
    error: BaseException, raised: type[BaseException]
) -> None:
    server = Server()
    pool = server.pool()
    with pytest.raises(raised):
        await lend(pool, error)
    await lend(pool)
    assert [one.closed for one in server.made] == [True, False]
    lost = getattr(error, "sqlstate", None) in PLAN_LOST
    assert server.made[1].prepare_threshold == (None if lost else ON_REQUEST)


async def test_a_connection_that_is_left_in_a_transaction_is_closed() -> None:
    server = Server()
    within = SimpleNamespace(transaction_status=pq.TransactionStatus.INTRANS)
    await lend(server.pool(), pgconn=within)
    assert server.made[0].closed


async def test_a_broken_connection_takes_the_idle_ones_along() -> None:
    server = Server()
    pool = server.pool(2)
    async with pool.use():
        await lend(pool)
    with pytest.raises(StoreError):
        await lend(pool, psycopg.OperationalError("the server is gone"), broken=True)
    assert [one.closed for one in server.made] == [True, True]


async def test_a_connection_that_the_guard_refuses_is_closed() -> None:
    server = Server()
    pool, server.fault = server.pool(), StoreRefused("a copy")
    with pytest.raises(StoreRefused):
        await lend(pool)
    server.fault = None
    await lend(pool)
    assert [one.closed for one in server.made] == [True, False]


async def test_calls_are_refused_before_the_opening_and_after_the_end() -> None:
    server = Server()
    pool = ConnectionPool(server.connect, 1, server.guard, "late")
    with pytest.raises(StoreClosed, match="not open"):
        await lend(pool)
    pool.open()
    async with pool.use():
        await pool.close()
    assert [one.closed for one in server.made] == [True]
    with pytest.raises(StoreClosed, match="was closed"):
        await lend(pool)
    with pytest.raises(StoreClosed):
        pool.open()


async def test_reading_and_settling_have_a_connection_each() -> None:
    server = Server()
    with pytest.raises(ConfigError):
        StorePools(server.connect, 2, server.guard)
    pools = StorePools(server.connect, 3, server.guard)
    await pools.open()
    await pools.open()
    assert len(server.made) == 2
    async with pools.reading.use(), pools.settling.use(), pools.working.use():
        assert len(server.made) == 3
    await pools.close()
    assert all(one.closed for one in server.made)
