"""Find old transactions of the database that have written: PostgreSQL only.

It reads the server's own views. Without the rights of `pg_monitor` those of other roles are hidden.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, Engine, text

from late.schema.engine import reading, shown

OLD_S = 60.0
MOST = 5
"""The most transactions that are found, the oldest first."""
_OPEN = text("""
select pid, coalesce(application_name, '') as application, coalesce(usename, '') as "user",
       coalesce(state, '') as state,
       extract(epoch from clock_timestamp() - xact_start)::float8 as open_s
  from pg_stat_activity
 where xact_start < clock_timestamp() - make_interval(secs => :old_s) and backend_xid is not null
   and pid <> pg_backend_pid() and datname = current_database()
   and backend_type = 'client backend'
 order by xact_start limit :most
""")


class OldTransaction(msgspec.Struct, frozen=True):
    """A transaction that has written and has not ended for long."""

    pid: int
    """The process of the server."""
    application: str
    user: str
    """The role of its session."""
    state: str
    """The state in `pg_stat_activity`."""
    open_s: float
    database: str = ""
    """The address of the database, without a password."""


def old_transactions(engine: Engine) -> tuple[OldTransaction, ...]:
    """Return the transactions that are older than `OLD_S`, the oldest first."""
    if engine.dialect.name != "postgresql":
        return ()
    where = shown(engine.url._replace(password=None).render_as_string(hide_password=False))
    with reading(engine) as connection:
        return tuple(msgspec.structs.replace(each, database=where) for each in found(connection))


def found(connection: Connection) -> list[OldTransaction]:
    """Return the same on a connection of PostgreSQL, without the address."""
    rows = connection.execute(_OPEN, {"old_s": OLD_S, "most": MOST})
    return [OldTransaction(**row._mapping) for row in rows]
