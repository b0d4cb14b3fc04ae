"""Say what takes the room of the database, for `late doctor`: on PostgreSQL and on SQLite.

An operator whose disk fills sees which table it is, and what empties it; on SQLite, that it is the
log of writes, which a reader keeps. The sizes are those of the file system, so a table of any size
costs the same look.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from sqlalchemy import Connection, text

from late.control.findings.phrases import size
from late.control.views import Check
from late.schema.notices import LOG_SCHEMA

SHOWN = 4
WRITES_MAX = 256 * 2**20
"""Bytes of SQLite's log of writes that are worth a look: it starts anew at 4 MB while nobody holds
it."""
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


def check_file(path: str) -> Check:
    """Return the sizes of SQLite's file and its log of writes; a warning where the log is big.

    They are asked for by name: who opens and closes such a file in a process that has the database
    open would give up its locks.
    """
    file = Path(path).absolute()
    try:
        size_of, writes = file.stat().st_size, _bytes_of(file.with_name(f"{file.name}-wal"))
    except OSError as error:
        return Check("sizes", "warning", f"{file}: {error.strerror}")
    told = f"{file.name} has {size(size_of)}, its log of writes {size(writes)}"
    if writes <= WRITES_MAX:
        return Check("sizes", "ok", told)
    name = shlex.quote(str(file))
    return Check(
        "sizes", "warning",
        f"{told}. It grows while a process keeps a transaction open that has read. End that (all "
        f"that have the file open: fuser -v {name}); then give the room back: "
        f"sqlite3 {name} 'pragma wal_checkpoint(truncate)'",
    )  # fmt: skip


def _bytes_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


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
