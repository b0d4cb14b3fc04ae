"""Rows to values and back, shared by the parts of the control plane."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    MetaData,
    Select,
    Table,
    func,
    literal_column,
    select,
)

from late.model.task import AttemptError, OpenTask
from late.schema.engine import EPOCH
from late.schema.tables import NOW_US, log_table
from late.store.common import open_tasks

Row = TypeVar("Row", bound=tuple[Any, ...])
_errors = msgspec.json.Decoder(tuple[AttemptError, ...])
SPANNER = "spanner+spanner"
"""SQLAlchemy's name of Spanner's dialect."""
COCKROACH = "cockroachdb"
_tables = {
    name: log_table(name, MetaData()) for name in ("sqlite", "postgresql", COCKROACH, SPANNER)
}


def _readable() -> dict[str, FromClause]:
    """The log for reading, with `created_at_us` in every dialect."""
    found: dict[str, FromClause] = dict(_tables)
    log = _tables[SPANNER]
    micros = func.unix_micros(log.c.created_at, type_=BigInteger)
    # The commit timestamp is the only time there, and no column of it can be computed and stored.
    found[SPANNER] = select(
        *log.c, micros.label("created_at_us"), (micros * 1_000).label("position")
    ).subquery("late_log")
    return found


_logs = _readable()
_MICROSECOND = timedelta(microseconds=1)
_FOLLOWED_US: ColumnElement[int] = literal_column(
    "floor(cluster_logical_timestamp() / 1000)::bigint"
)
"""The moment of a read on CockroachDB's followers; untried."""


def now_us(connection: Connection, *, of_server: bool = False) -> int:
    """The database's clock, microseconds.

    In a read of the past, and in a stale one, it is the time of what is read.

    Args:
        of_server: the clock of the server that answers, whatever the age of what is read.
    """
    options = {} if of_server else connection.get_execution_options()
    if (at_us := options.get("late_at_us")) is not None:
        return int(at_us)
    if options.get("late_stale_s"):
        return _moment_us(connection)
    clock: ColumnElement[int] = literal_column(NOW_US[connection.dialect.name])
    return int(connection.execute(select(clock)).scalar_one())


def _moment_us(connection: Connection) -> int:
    """The moment of a stale read, as the database has chosen it; rounded down, and so never newer
    than what is read."""
    if connection.dialect.name == COCKROACH:
        return int(connection.execute(select(_FOLLOWED_US)).scalar_one())
    now_us(connection, of_server=True)  # The driver begins its transaction with a statement.
    driver: Any = connection.connection.driver_connection
    return _micros(driver.snapshot_checkout()._transaction_read_timestamp)


def _micros(moment: datetime) -> int:
    return (moment - EPOCH) // _MICROSECOND


def locking(connection: Connection, statement: Select[Row]) -> Select[Row]:
    """Lock the rows that are read until the transaction ends.

    Spanner has no FOR UPDATE: a read-write transaction locks there what it reads.
    """
    return statement if connection.dialect.name == SPANNER else statement.with_for_update()


def log_of(connection: Connection) -> FromClause:
    """The task log for reading, as this connection's dialect has it."""
    return _logs[connection.dialect.name]


def log_table_of(connection: Connection) -> Table:
    """The task log for an insert."""
    return _tables[connection.dialect.name]


def errors_of(text: str | None) -> tuple[AttemptError, ...]:
    """The attempts' errors; what cannot be read is shown and not hidden."""
    if text is None:
        return ()
    try:
        return _errors.decode(text)
    except msgspec.MsgspecError:
        return (AttemptError(0, 0, "", f"(unreadable record of errors: {text[:200]})"),)


def open_of(text: str | None) -> tuple[OpenTask, ...]:
    """The `open` of a settlement; empty when there is none or it is damaged (see doctor)."""
    try:
        return open_tasks.open_of(text) if text else ()
    except msgspec.MsgspecError:
        return ()


def object_of(text: str | None) -> dict[str, Any] | None:
    """A JSON object that is kept as text, or None; what cannot be read is kept under `invalid`."""
    if text is None:
        return None
    try:
        value = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return {"invalid": text[:200]}
    return value if isinstance(value, dict) else {"invalid": text[:200]}


def payload_of(payload: bytes, options: dict[str, Any] | None) -> str:
    """The payload for people: JSON as text, another codec's bytes in base64."""
    if not (options or {}).get("codec"):
        try:
            return payload.decode()
        except UnicodeDecodeError:
            pass
    return base64.b64encode(payload).decode()


def seconds(us: int) -> float:
    """Microseconds as seconds, never negative: two clocks' roundings must not show as `-0.001`."""
    return max(0, us) / 1_000_000
