"""On PostgreSQL: which transactions ran when a resize had committed, and when they have ended."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, text

# Every transaction of this database that runs, by the lock that each holds on its own number from
# its beginning on. Its xid would not do: it is given out at the first write, perhaps after the
# transaction has seen the lane as it was. Autovacuum is known by having no user, which everybody
# may see: without pg_read_all_stats the backend_type of others is null.
_RUNNING = text("""
select distinct l.virtualtransaction
  from pg_locks l join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'virtualxid' and l.granted and l.pid <> pg_backend_pid()
   and a.datname = current_database() and a.usesysid is not null
   and coalesce(a.backend_type, '') not in ('autovacuum worker', 'walsender')
""")
# What was prepared for two-phase commit holds no such lock any more. It is listed before it gives
# the lock up, so that whoever looks here after there sees it in one of the two.
_PREPARED = text(
    "select 'prepared/' || transaction::text from pg_prepared_xacts"
    " where database = current_database()"
)


def waits(connection: Connection, waits_for: str | None) -> str | None:
    """The transactions to be waited for after this look, as JSON; None if all have ended.

    Args:
        waits_for: what the last look returned, None at the first, which must come after the commit
            of the resize.
    """
    running = set(connection.execute(_RUNNING).scalars())
    prepared = set(connection.execute(_PREPARED).scalars())
    before = None if waits_for is None else set(msgspec.json.decode(waits_for))
    left = still_waits(before, running, prepared)
    if before is None or left:
        return msgspec.json.encode(sorted(left)).decode()
    return None


def still_waits(before: set[str] | None, running: set[str], prepared: set[str]) -> set[str]:
    """The transactions that are still to be waited for, of those `before` (None: the first look,
    after the resize). Empty: none can write by the closed version any more.

    A transaction that was waited for and runs no more has ended or was prepared, and nothing tells
    as which: so each time that one has gone, those prepared at that moment are waited for too. That
    happens once for each that ran; otherwise the set only shrinks.

    Args:
        running: seen before `prepared`.
    """
    if before is None:
        return running | prepared
    ended = {each for each in before if not each.startswith("prepared/")} - running
    return before & (running | prepared) | (prepared if ended else set())
