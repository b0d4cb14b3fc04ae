"""Say what takes the room of the database on PostgreSQL, for `late doctor`.

An operator whose disk fills sees which table it is, and what empties it. The sizes are those of the
file system, so a table of any size costs the same look.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from late.control.findings.phrases import size
from late.control.views import Check
from late.schema.notices import LOG_SCHEMA

SHOWN = 4
_EMPTIES = {
    "late_task": "the log: `late retention`, and groups that are behind",
    "late_settlement": "the journal: compacted after an hour, kept for `journal_keep_s`",
    "late_timer": "parked tasks: they wait for their time, or for workers",
    "late_dead": "dead letters: `late dead`",
    "late_inbox": "tasks whose effects happen once: a row goes an hour after its task",
    "late_result": "results: kept for `result_ttl`",
    "late_history": "histories: kept as long as the journal",
    "late_audit": "who has changed what",
}
# A partition counts for its table. What was dropped since the list was read has no size.
_SIZES = text(f"""
select coalesce(pg_partition_root(c.oid)::oid, c.oid)::regclass::text as name,
       sum(coalesce(pg_total_relation_size(c.oid), 0))::bigint as bytes
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.relkind = 'r' and c.relname like 'late\\_%' and n.nspname = {LOG_SCHEMA}
 group by 1 order by 2 desc
""")


def check(connection: Connection) -> Check:
    """Return the sizes of the biggest tables with their indexes; it finds nothing wrong."""
    found = [(name.rsplit(".", 1)[-1], n) for name, n in connection.execute(_SIZES).all()]
    total = connection.execute(text("select pg_database_size(current_database())")).scalar_one()
    ours = sum(n for _, n in found)
    biggest = "; ".join(
        f"{name} {size(n)}" + (f" ({_EMPTIES[name]})" if name in _EMPTIES else "")
        for name, n in found[:SHOWN]
    )
    return Check(
        "sizes", "ok", f"late has {size(ours)} of {size(total)} of the database: {biggest}"
    )
