"""The service's own tables: what it would have without `late`.

They live in the same database as `late`'s, which is the whole point: one commit covers both.
"""

from __future__ import annotations

import sqlite3
import time
from decimal import Decimal

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


def connect(url: str, *, connections: int) -> Engine:
    """An engine for the service; a PostgreSQL URL without a driver gets psycopg."""
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
    """The driver opens no transaction by itself, and does not wait for the lock."""
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


def create(engine: Engine) -> None:
    """Make the tables if they are not there; rows of earlier runs stay."""
    metadata.create_all(engine)


def next_id(engine: Engine) -> int:
    """An id above every trip of earlier runs on this database."""
    with engine.connect() as connection:
        return (connection.scalar(select(func.max(trips.c.id))) or 0) + 1


def cents(amount: Decimal) -> int:
    return int(amount * 100)


def now_us(connection: Connection) -> str:
    """The database's clock, as SQL: both `late` and the check go by it."""
    return NOW_US[connection.dialect.name]


def book(connection: Connection, trip_id: int, zone: str, payment: str, total: Decimal) -> None:
    """Write the trip."""
    connection.execute(
        insert(trips).values(
            id=trip_id,
            zone=zone,
            payment=payment,
            total_cents=cents(total),
            booked_at_us=literal_column(now_us(connection)),
        )
    )


def once(
    connection: Connection, trip_id: int, step: str, task_id: str, amount: Decimal | None = None
) -> bool:
    """Record the effect of a step; False if an earlier run of the task had recorded it."""
    statement = text(
        "insert into fulfilment_log (trip_id, step, task_id, cents, at_us) values"
        f" (:trip, :step, :task, :cents, {now_us(connection)}) on conflict (trip_id, step)"
        " do nothing"
    )
    values = {
        "trip": trip_id,
        "step": step,
        "task": task_id,
        "cents": None if amount is None else cents(amount),
    }
    return connection.execute(statement, values).rowcount == 1
