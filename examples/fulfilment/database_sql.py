"""The service's tables on SQLite and PostgreSQL, through SQLAlchemy."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from decimal import Decimal
from typing import TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    func,
    insert,
    literal_column,
    make_url,
    select,
    text,
)

from late.schema.tables import NOW_US

from .database import Effect, cents

T = TypeVar("T")

metadata = MetaData()

trips = Table(
    "fulfilment_trip",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("zone", Text, nullable=False),
    Column("payment", Text, nullable=False),
    Column("total_cents", Integer, nullable=False),
    Column("booked_at_us", BigInteger, nullable=False),
)

log = Table(
    "fulfilment_log",
    metadata,
    # The key makes an effect happen once, however often its task runs.
    Column("trip_id", BigInteger, primary_key=True, autoincrement=False),
    Column("step", Text, primary_key=True),
    Column("task_id", Text, nullable=False),
    Column("cents", Integer),
    Column("at_us", BigInteger, nullable=False),
)


class SqlDatabase:
    """A `Database` on an engine of its own; a PostgreSQL URL without a driver gets psycopg."""

    def __init__(self, url: str, *, connections: int) -> None:
        self._engine = _engine(url, connections)
        self.store = self._engine.dialect.name
        # The database's clock, as SQL: both `late` and the check go by it.
        self._now_us = NOW_US[self.store]
        self._once = text(
            "insert into fulfilment_log (trip_id, step, task_id, cents, at_us) values"
            f" (:trip, :step, :task, :cents, {self._now_us}) on conflict (trip_id, step) do nothing"
        )

    def create(self) -> None:
        metadata.create_all(self._engine)

    def transaction(self, body: Callable[[Connection], T]) -> T:
        # At their usual isolation levels neither of the two aborts a transaction: once is enough.
        with self._engine.begin() as tx:
            return body(tx)

    def book(self, tx: Connection, trip_id: int, zone: str, payment: str, total: Decimal) -> None:
        tx.execute(
            insert(trips).values(
                id=trip_id,
                zone=zone,
                payment=payment,
                total_cents=cents(total),
                booked_at_us=literal_column(self._now_us),
            )
        )

    def once(
        self,
        trip_id: int,
        step: str,
        task_id: str,
        amount: Decimal | None = None,
        *,
        also: Callable[[Connection], object] | None = None,
    ) -> None:
        paid = None if amount is None else cents(amount)
        with self._engine.begin() as tx:
            values = {"trip": trip_id, "step": step, "task": task_id, "cents": paid}
            if tx.execute(self._once, values).rowcount == 1 and also is not None:
                also(tx)

    def next_id(self) -> int:
        with self._engine.connect() as connection:
            return (connection.scalar(select(func.max(trips.c.id))) or 0) + 1

    def booked(self, first_id: int) -> dict[int, int]:
        statement = select(trips.c.id, trips.c.booked_at_us).where(trips.c.id >= first_id)
        with self._engine.connect() as connection:
            return dict(connection.execute(statement).tuples().all())

    def effects(self, first_id: int) -> list[Effect]:
        statement = select(log).where(log.c.trip_id >= first_id)
        with self._engine.connect() as connection:
            return [Effect(*row) for row in connection.execute(statement)]

    def close(self) -> None:
        self._engine.dispose()


def _engine(url: str, connections: int) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        # One write lock for all: threads wait in the pool's queue, processes for their turn.
        engine = create_engine(parsed, pool_size=1, max_overflow=0, pool_timeout=60.0)
        event.listen(engine, "connect", _by_hand)
        event.listen(engine, "begin", _take_turns)
        return engine
    parsed = parsed.set(drivername="postgresql+psycopg")
    return create_engine(parsed, pool_size=connections, max_overflow=0)


def _by_hand(connection: sqlite3.Connection, _: object) -> None:
    """Tell the driver to open no transaction by itself and not to wait for the lock."""
    connection.isolation_level = None
    connection.execute("pragma busy_timeout = 0")


def _take_turns(connection: Connection) -> None:
    """Take the write lock by asking every millisecond.

    SQLite's own waiting sleeps up to 0.1 s at a time and leaves the lock idle meanwhile: with three
    busy processes the demo took four times as long.
    """
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    deadline = time.monotonic() + 60.0
    while True:
        try:
            raw.execute("begin immediate")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(0.001)
