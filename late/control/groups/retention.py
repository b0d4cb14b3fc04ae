"""The time for which the log keeps tasks that every group has settled, for later groups.

The stores read it in every round of maintenance (`late/store/common/groups.py`).
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, delete, insert, select

from late.control import audit
from late.control.sql.rows import COCKROACH
from late.errors import ConfigError
from late.schema.engine import reading, write
from late.schema.tables import meta
from late.store.common.groups import RETENTION_KEY

MOST_S = 366 * 86_400.0
_key = meta.c.key == RETENTION_KEY


def get(engine: Engine) -> float:
    """Return the retention in seconds; with 0 a task is removed once every group has settled it."""
    with reading(engine) as connection:
        return _seconds(connection)


def put(engine: Engine, keep_s: float) -> float:
    """Keep tasks for `keep_s` seconds after their settlement, as far as the journal goes back.

    Raises:
        ConfigError: the time is negative or above a year, or the store cannot keep tasks.
    """
    if not 0 <= keep_s <= MOST_S:
        raise ConfigError(f"retention {keep_s:g} s: from 0 to a year")
    if engine.dialect.name == COCKROACH:
        raise ConfigError("this store removes a task with the settlement that ends it")

    def work(connection: Connection) -> float:
        before = _seconds(connection)
        connection.execute(delete(meta).where(_key))
        if keep_s:
            value = str(round(keep_s * 1_000_000))
            connection.execute(insert(meta).values(key=RETENTION_KEY, value=value))
        audit.record(connection, action="retention.set", subject="log", before=before, after=keep_s)
        return keep_s

    return write(engine, work)


def _seconds(connection: Connection) -> float:
    value = connection.execute(select(meta.c.value).where(_key)).scalar()
    return int(value) / 1_000_000 if value else 0.0
