"""Look whether the write lock of a SQLite file is held by somebody who does not let it go.

Workers cannot write their heartbeats then, and look dead. Nothing else tells it: SQLite has no list
of its locks.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from late.control.sql.per_shard import EMBEDDED
from late.errors import LateError
from late.schema.engine import BUSY_TIMEOUT_S

TRIES_S = 0.2
"""The lock is tried for so long: transactions of producers are shorter."""


def is_held(engine: Engine) -> bool:
    """Return True if the lock was not free for `TRIES_S`, and nobody has committed meanwhile.

    False for a server, and where it cannot be known. It changes nothing.
    """
    if engine.dialect.name != EMBEDDED:
        return False
    try:
        pooled = engine.raw_connection()
    except (SQLAlchemyError, LateError, sqlite3.Error):
        return False
    try:
        return _is_held(pooled.driver_connection)
    finally:
        pooled.close()


def _is_held(connection: Any) -> bool:
    try:
        connection.execute(f"pragma busy_timeout = {round(TRIES_S * 1000)}")
        before = connection.execute("pragma data_version").fetchone()
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            # Else it went from hand to hand, and heartbeats have their turn.
            return busy and connection.execute("pragma data_version").fetchone() == before
        connection.execute("rollback")
        return False
    except sqlite3.Error:
        return False
    finally:
        with suppress(sqlite3.Error):
            connection.execute(f"pragma busy_timeout = {round(BUSY_TIMEOUT_S * 1000)}")
