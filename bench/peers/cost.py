"""The cost of a run for the database (W4): differences of the server's counters, a database a peer.

`pg_current_wal_insert_lsn` counts the whole server, so nothing else may write to it meanwhile.
Counters of tables and transactions arrive when a session ends or idles, so they are read after the
worker has stopped. A row that is updated or deleted leaves a dead one: `dead_rows` counts those
made, not those that autovacuum has left.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psycopg

SETTLE_S = 1.5
"""Sessions that stay open hand in their counters once a second at the most."""

COUNTERS = """
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
       d.tup_inserted, d.tup_updated, d.tup_deleted, d.xact_commit + d.xact_rollback
  from pg_stat_database d where d.datname = current_database()"""


@dataclass(frozen=True, slots=True)
class Counters:
    wal_bytes: int
    inserted: int
    updated: int
    deleted: int
    transactions: int

    def since(self, before: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))

    def per_task(self, count: int) -> dict[str, float]:
        """Return bytes, rows, dead rows and transactions of the tables for one task."""
        written = self.inserted + self.updated + self.deleted
        return {
            "wal_bytes": self.wal_bytes / count,
            "rows_written": written / count,
            "dead_rows": (self.updated + self.deleted) / count,
            "transactions": self.transactions / count,
        }


def counters(url: str) -> Counters:
    """The database's counters now, after a moment in which sessions hand theirs in."""
    time.sleep(SETTLE_S)
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        row = connection.execute(COUNTERS).fetchone()
    assert row is not None, "the database that one is connected to has a row"
    return Counters(*map(int, row))


def wal_bytes(url: str) -> int:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        row: Any = connection.execute(
            "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
        ).fetchone()
    return int(row[0])


def postmaster(url: str) -> int | None:
    """The server's first process if it runs on this machine and its folder may be read."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        row: Any = connection.execute("show data_directory").fetchone()
    try:
        pid = int((Path(row[0]) / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if Path(f"/proc/{pid}/stat").exists() else None


def cpu_s(pid: int | None) -> float | None:
    """Processor seconds of a process, of its children, and of those that it has waited for."""
    if pid is None or not Path("/proc").is_dir():
        return None
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue  # it has just ended; its parent has its time
        parent, own, waited = parse_stat(stat)
        if int(folder.name) == pid:
            ticks += own + waited
        elif parent == pid:
            ticks += own
    return ticks / os.sysconf("SC_CLK_TCK")


def parse_stat(text: str) -> tuple[int, int, int]:
    """(parent, own ticks, ticks of children that were waited for) of a line of /proc/PID/stat.

    A program's name may hold spaces and brackets, so what counts begins behind the last one.
    """
    values = text.rpartition(")")[2].split()
    return int(values[1]), int(values[11]) + int(values[12]), int(values[13]) + int(values[14])
