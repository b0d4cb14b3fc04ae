"""Questions of a cache to the database: values with their moment, and how far the log goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Engine, literal_column, select

from late.cache.moment import Moment
from late.control.sql.positions import SEEN, seen_by
from late.control.sql.rows import SPANNER
from late.errors import ConfigError
from late.model.task import Cursor
from late.schema.engine import reading, translated
from late.schema.tables import NOW_US, meta
from late.store.common.groups import RETENTION_KEY

RETENTION_MIN_S = 60.0
"""The shortest retention of the log with which a cache works."""
_KEPT = select(meta.c.value).where(meta.c.key == RETENTION_KEY).scalar_subquery()


class Head(msgspec.Struct, frozen=True):
    """The end of the log at one moment."""

    cursor: Cursor
    now_us: int
    """The database's clock."""
    kept_us: int
    """The time for which the log keeps what every group has settled."""


def moment_of(cursor: str, dialect: str) -> Moment:
    """Return the moment that a cursor of a store stands for."""
    if dialect == "postgresql":
        from late.store.postgres.cursor import parse_snapshot

        snapshot = parse_snapshot(cursor)
        return Moment(snapshot.xmax, snapshot.xip)
    return Moment(int(cursor or 0) + 1)


def head_of(connection: Connection) -> Head:
    """Read the end of the log, and how long the log keeps what is settled.

    Raises:
        ConfigError: that is less than a minute, so that changes could go before they are read.
    """
    name = connection.dialect.name
    clock: ColumnElement[int] = literal_column(NOW_US[name])
    if name == SPANNER:
        cursor = seen_by(connection)
        now_us, kept = connection.execute(select(clock, _KEPT)).one()
    else:
        cursor, now_us, kept = connection.execute(select(SEEN[name], clock, _KEPT)).one()
    connection.rollback()
    kept_us = int(kept or 0)
    if kept_us < RETENTION_MIN_S * 1_000_000:
        raise ConfigError(
            f"the log keeps tasks for {kept_us / 1_000_000:g} s, and a cache needs"
            f" {RETENTION_MIN_S:g}: run `late retention 10m`"
        )
    return Head(Cursor(str(cursor or "")), int(now_us), kept_us)


@contextmanager
def connect(engine: Engine) -> Iterator[Connection]:
    """Open a connection for reading heads, which leaves no transaction open."""
    name = engine.dialect.name
    options: dict[str, Any] = {"read_only": True} if name == SPANNER else {}
    if name == "postgresql":
        options = {"isolation_level": "AUTOCOMMIT"}
    with translated(), engine.connect().execution_options(**options) as connection:
        yield connection


@contextmanager
def snapshot(engine: Engine) -> Iterator[tuple[Connection, Moment]]:
    """Open a connection whose statements all see the database at one moment."""
    name = engine.dialect.name
    if name != SPANNER:
        with reading(engine) as connection:
            yield connection, moment_of(seen_by(connection), name)
        return
    from late.store.spanner.cursor import moment_of as timestamp_of

    with translated(), engine.connect() as connection:
        cursor = seen_by(connection)
        at = {"read_timestamp": timestamp_of(int(cursor))}
        connection.execution_options(read_only=True, staleness=at)
        with connection.begin():
            yield connection, moment_of(cursor, name)
