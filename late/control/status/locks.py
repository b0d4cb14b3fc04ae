"""Find who holds a lock that sessions of `late` wait for, and old transactions: PostgreSQL only.

It reads the server's own views and none of `late`'s tables, so it answers while somebody holds
these. Without the rights of `pg_read_all_stats` the state of other roles' sessions is hidden, their
number is not.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import Engine, text

from late.control.status import old_transactions
from late.control.status.old_transactions import Hidden, OldTransaction
from late.observability import conflicts
from late.schema.engine import reading, shown

_HIDDEN = -1
"""Stands for a number of waiting sessions in the row with the numbers of hidden ones."""
_LINKS = 5
"""The most sessions that wait one for the other until the first of them is found."""

# `pg_blocking_pids` takes locks of the server for a moment, so it is asked for those who wait only.
# A session that waits for a row waits for its writer's transaction, which names no table. Sessions
# of handlers are known by the tag of their statements. Whoever they wait for may wait as well, as
# an `alter table` does behind an open transaction: the one that waits for nobody is the cause.
# `waitstart` came with PostgreSQL 14 and is never hidden, as `query_start` may be.
_SESSIONS = text(f"""
with recursive waiting as (
  select l.pid, c.relname,
         coalesce(extract(epoch from clock_timestamp() - coalesce(
             (to_jsonb(l) ->> 'waitstart')::timestamptz, a.query_start)), 0)::float8 as waits_s
    from pg_locks l
    join pg_stat_activity a on a.pid = l.pid
    left join pg_class c on c.oid = l.relation
   where not l.granted and a.datname = current_database()
     and (c.relname like 'late\\_%' or a.application_name like 'late%'
          or a.query like '{conflicts.MARK}%')
   limit 200
), pairs as (
  select w.*, unnest(pg_blocking_pids(w.pid)) as first from waiting w
), chain as (
  select distinct first, first as holder, 0 as depth from pairs
  union
  select c.first, b.pid, c.depth + 1
    from chain c, unnest(pg_blocking_pids(c.holder)) as b(pid) where c.depth < {_LINKS}
)
(select k.holder as pid, coalesce(a.application_name, '') as application,
        coalesce(a.usename, '') as "user",
        coalesce(a.state, '') as state,
        extract(epoch from clock_timestamp() - a.xact_start)::float8 as open_s,
        max(p.relname) as table, count(distinct p.pid) as waiting, max(p.waits_s) as waits_s,
        min(k.first) filter (where k.depth > 0 and k.first not in (select pid from waiting))
          as behind
   from pairs p join chain k on k.first = p.first
   left join pg_stat_activity a on a.pid = k.holder
  where cardinality(pg_blocking_pids(k.holder)) = 0
  group by k.holder, a.application_name, a.usename, a.state, a.xact_start
  order by waits_s desc limit 20)
union all
(select o.*, null, 0, 0, null from ({old_transactions.OPEN}) o)
union all
(select h.sessions, '', '', '', h.writing, null, {_HIDDEN}, 0, null
   from ({old_transactions.HIDDEN}) h)
""")


class LockHolder(msgspec.Struct, frozen=True):
    """A session of the database that others wait for, and that waits for nobody."""

    pid: int
    """The process of the server."""
    application: str
    state: str
    """The state in `pg_stat_activity`; empty if it is hidden."""
    open_s: float | None
    """The age of its transaction; None if it is hidden."""
    table: str | None
    """One table that it holds; None if it is a row of one."""
    waiting: int
    """The number of sessions that wait for it."""
    waits_s: float
    """The longest of these waits."""
    user: str = ""
    """The role of its session."""
    behind: int | None = None
    """A session that is no one of `late` and waits for it too, with those of `late` behind it."""
    database: str = ""
    """The address of the database, without a password."""


class Sessions(msgspec.Struct, frozen=True):
    """The sessions of the database that an operator should know of."""

    holders: tuple[LockHolder, ...] = ()
    """Others wait for them; the longest wait first."""
    old: tuple[OldTransaction, ...] = ()
    """Their transactions have written and are old; the oldest first."""
    hidden: Hidden = Hidden()
    """Those that this login may not look at, so that they are not in `old`."""


def sessions(engine: Engine) -> Sessions:
    """Return who holds up sessions of `late`, and who has an old transaction."""
    if engine.dialect.name != "postgresql":
        return Sessions()
    with reading(engine) as connection:
        rows = connection.execute(_SESSIONS, old_transactions.bounds()).all()
    where = shown(engine.url._replace(password=None).render_as_string(hide_password=False))
    return Sessions(
        tuple(LockHolder(**row._mapping, database=where) for row in rows if row.waiting > 0),
        tuple(
            OldTransaction(row.pid, row.application, row.user, row.state, row.open_s, where)
            for row in rows
            if row.waiting == 0
        ),
        *[Hidden(row.pid, int(row.open_s)) for row in rows if row.waiting == _HIDDEN],
    )
