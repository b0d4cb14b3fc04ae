"""Find old transactions of the database that have written: PostgreSQL only.

It reads the server's own views. Without the rights of `pg_read_all_stats` the server shows that a
session of another role has written, and not since when: such sessions are counted.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, text

OLD_S = 60.0
MOST = 5
"""The most transactions that are found, the oldest first."""
OPEN = """
select pid, coalesce(application_name, '') as application, coalesce(usename, '') as "user",
       coalesce(state, '') as state,
       extract(epoch from clock_timestamp() - xact_start)::float8 as open_s
  from pg_stat_activity
 where xact_start < clock_timestamp() - make_interval(secs => :old_s) and backend_xid is not null
   and pid <> pg_backend_pid() and datname = current_database()
   and backend_type = 'client backend' and wait_event_type is distinct from 'Lock'
 order by xact_start limit :most
"""
HIDDEN = """
select count(*) as sessions, count(backend_xid) as writing
  from pg_stat_activity
 where datname = current_database() and usesysid is not null
   and query = '<insufficient privilege>'
"""
GRANT = "grant pg_read_all_stats to this login, as late roles sql does to late_operator"
"""The cure for a login that may not see the sessions of others."""


class OldTransaction(msgspec.Struct, frozen=True):
    """A transaction that has written and has not ended for long.

    One that waits for a lock is none: whoever has the lock must end (`locks`)."""

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


class Hidden(msgspec.Struct, frozen=True):
    """The number of sessions whose times this login may not see."""

    sessions: int = 0
    writing: int = 0
    """Those that have written and have not ended: nothing tells how old they are."""


def bounds() -> dict[str, float]:
    """Return the parameters of `OPEN`."""
    return {"old_s": OLD_S, "most": MOST}


def found(connection: Connection) -> list[OldTransaction]:
    """Return the transactions that are older than `OLD_S`, the oldest first, without the address of
    the database. The connection is one of PostgreSQL."""
    return [OldTransaction(**row._mapping) for row in connection.execute(text(OPEN), bounds())]


def hidden(connection: Connection) -> Hidden:
    """Count the sessions that this login may not look at. The connection is one of PostgreSQL."""
    return Hidden(**connection.execute(text(HIDDEN)).one()._mapping)
