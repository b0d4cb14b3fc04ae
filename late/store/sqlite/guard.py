"""Guards of the SQLite store: the connection's settings, and the checks that refuse unsafe files.

Each check protects a promise that broke without it in a test; the message says what to do.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from late.errors import ConfigError, SchemaMismatch, StoreRefused
from late.schema import held_files
from late.schema import version as schema_version
from late.store.common.statement_counts import count
from late.store.sqlite import write_lock
from late.store.sqlite.cursor import position_of
from late.store.sqlite.statements import LAST_CHECKPOINTS

log = logging.getLogger("late.store")

POSITION_MAX = 2**62
"""The highest rowid that the schema's CHECK accepts: after 2^63-1 every insert would fail."""
VERSION_MIN = (3, 35, 0)
"""The first version with RETURNING."""
WAL_RESET_FIXED = (3, 51, 3)

_VERSIONS = (
    "select key, value from late_meta"
    f" where key in ('schema_version', '{schema_version.OLDEST_KEY}')"
)
_SOURCE_ID = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [0-9a-f]{40}")


def path_of(url: str) -> Path:
    """Return the file that `sqlite:///relative` or `sqlite:////absolute` names.

    Raises:
        ConfigError: no file (a database in memory has one connection and cannot be shared with
            producers), or options, of which none is safe to pass on.
    """
    rest = url.removeprefix("sqlite://")
    location, _, query = rest.partition("?")
    if query:
        raise ConfigError(
            "options in a SQLite URL are refused (a shared cache reads uncommitted rows); "
            f"use sqlite://{location}"
        )
    name = unquote(location[1:])
    if not location.startswith("/") or name in ("", ":memory:"):
        raise ConfigError(
            "a SQLite URL names a file: sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    return Path(name)


class CountedConnection(sqlite3.Connection):
    """A connection whose statements are counted."""

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
        count(statement)
        return super().execute(statement, values)

    def executemany(self, statement: str, rows: Any, /) -> sqlite3.Cursor:
        count(statement)
        return super().executemany(statement, rows)


def connect(path: Path, url: str) -> sqlite3.Connection:
    """Open a connection with our settings, and check all but positions and identity. It does not
    wait for locks: calls on it go through `write_lock.patiently`.

    Raises:
        SchemaMismatch: no such file, no schema, or one of another version.
        StoreRefused: an unknown build of SQLite, no write-ahead log, a log that loses tasks.
        DatabaseReplaced: this process has another file open under this name.
    """
    check_build()
    if not path.exists():
        held_files.check(path)
        # Never create it: an empty file would only move the mistake to a later message.
        raise SchemaMismatch(held_files.missing(path))
    connection = sqlite3.connect(
        address(path, "rw"),
        uri=True,
        timeout=write_lock.BUSY_TIMEOUT_S,
        isolation_level=None,
        factory=CountedConnection,
    )
    try:
        held_files.check(path)
        _settings(connection, path)
        _check_schema(connection, url)
        _check_log(connection, url)
        connection.execute("pragma busy_timeout = 0")  # from here on `patiently` waits
    except BaseException:
        connection.close()
        raise
    return connection


def address(path: Path, mode: str) -> str:
    """Return the name under which the driver opens an existing file."""
    # A private cache, whatever the process-wide default is: a shared one has table locks that
    # ignore the busy timeout, and lets read-uncommitted connections see rows that may be rolled
    # back.
    return f"file:{quote(str(path.absolute()))}?mode={mode}&cache=private"


@functools.cache  # once per process: the library does not change, and one warning is enough
def check_build() -> None:
    """Refuse a library in which rowid order may not be commit order."""
    if sqlite3.sqlite_version_info < VERSION_MIN:
        raise StoreRefused(
            f"SQLite {sqlite3.sqlite_version} is too old: "
            f"{'.'.join(map(str, VERSION_MIN))} or newer is needed"
        )
    probe = sqlite3.connect(":memory:", isolation_level=None)
    try:
        refuse_unknown_build(probe)
    finally:
        probe.close()
    if sqlite3.sqlite_version_info < WAL_RESET_FIXED:
        # Two connections that write and checkpoint at the same instant can corrupt the file:
        # a bug of 3.7.0 to 3.51.2 (sqlite.org/wal.html#walresetbug). Rare, but worth a line.
        log.warning(
            "SQLite %s has the WAL-reset bug; 3.51.3 or newer is advised",
            sqlite3.sqlite_version,
        )


def refuse_unknown_build(probe: sqlite3.Connection) -> None:
    """Refuse a fork with several writers at a time (libSQL's MVCC, builds with BEGIN CONCURRENT).

    There rowids can commit out of order, and the tail would lose rows.
    """
    (source_id,) = probe.execute("select sqlite_source_id()").fetchone()
    options = [row[0] for row in probe.execute("pragma compile_options")]
    functions = [row[0] for row in probe.execute("select name from pragma_function_list")]
    foreign = [name for name in options + functions if "libsql" in name.lower()]
    if not _SOURCE_ID.match(source_id) or foreign:
        raise StoreRefused(f"unknown build of SQLite ({source_id[:80]!r}): use the official one")
    try:
        probe.execute("begin concurrent")
    except sqlite3.OperationalError:
        return
    raise StoreRefused("this build of SQLite has BEGIN CONCURRENT, whose commits leave rowid order")


def _settings(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("pragma journal_mode").fetchone()
    if mode != "wal":
        (mode,) = connection.execute("pragma journal_mode = wal").fetchone()
    if mode != "wal":
        raise StoreRefused(
            f"{path} cannot use a write-ahead log (journal_mode is {mode}); is it on a network "
            "file system? Use a local disk."
        )
    # NORMAL may lose the last commits in a power failure, and with them tasks that ran already.
    connection.execute("pragma synchronous = full")
    connection.execute("pragma read_uncommitted = 0")


def _check_schema(connection: sqlite3.Connection, url: str) -> None:
    try:
        found = dict(connection.execute(_VERSIONS).fetchall())
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        found = {}
    oldest = found.get(schema_version.OLDEST_KEY)
    schema_version.check(found.get("schema_version"), oldest=oldest, where=url)


def _check_log(connection: sqlite3.Connection, url: str) -> None:
    """Refuse a log whose positions may not always grow, also over deletes, dumps and repairs."""
    (ddl,) = connection.execute("select sql from sqlite_master where name = 'late_task'").fetchone()
    if "autoincrement" not in ddl.lower():
        # The highest deleted rowid would be used again, below every cursor: never delivered.
        raise StoreRefused(f"late_task in {url} has lost AUTOINCREMENT: restore it from a backup")
    (low,) = connection.execute("select min(seq) from late_task").fetchone()
    given = highest_given(connection)
    if (low is not None and low < 1) or given >= POSITION_MAX:
        raise StoreRefused(
            f"late_task in {url} holds, or held, a seq set by hand ({low}..{given}); the range is "
            f"1 to {POSITION_MAX}, and only the database may give it. Delete such rows, and set "
            "the counter in sqlite_sequence back to the highest seq that is left"
        )


def check_positions(connection: sqlite3.Connection, url: str) -> None:
    """Refuse a log whose counter fell back (a table rebuilt without `sqlite_sequence`).

    Raises:
        StoreRefused: the next rows would land below the cursors and never be delivered.
    """
    given, covered = highest_given(connection), highest_covered(connection)
    if covered > given:
        raise StoreRefused(
            f"late_task in {url} would give positions again that were settled already (counter at "
            f"{given}, settled up to {covered}); was it rebuilt? Run `late rebase {url}`"
        )


def highest_given(connection: sqlite3.Connection) -> int:
    """Return the highest position that AUTOINCREMENT knows to have given, 0 for none."""
    row = connection.execute(
        "select max(seq) from (select max(seq) as seq from late_task"
        " union all select seq from sqlite_sequence where name = 'late_task')"
    ).fetchone()
    return int(row[0] or 0)


def highest_covered(connection: sqlite3.Connection) -> int:
    """Return the highest position that the cursor of any last settlement covers."""
    rows = connection.execute(LAST_CHECKPOINTS)
    return max((position_of(cursor) for _, _, cursor, _ in rows), default=0)


def identity_of(path: Path) -> str | None:
    """Return the inode number, which tells this file from a copy of it.

    A restored backup, a clone for staging and a copy on another machine are new files with
    another inode, while a rename, VACUUM and a restart keep it. The device number is left out:
    it changes when disks are attached in another order. (`late.schema.held_files` compares both
    while a process has the file open.) A backup that was copied *into* the same file is not
    noticed, and a new file may get the inode of one that was deleted: log and journal then go back
    together and agree, so that tasks are repeated but not lost. None on a file system without inode
    numbers, where there is nothing to compare.
    """
    inode = os.stat(path).st_ino
    return f"inode:{inode}" if inode else None


def check_identity(connection: sqlite3.Connection, path: Path, url: str) -> None:
    """Claim the file at the first opening; refuse to run on a copy of it at any later one.

    Raises:
        StoreRefused: the file is a copy: two deployments would run the same tasks.
    """
    ours = identity_of(path)
    if ours is None:
        return
    query = "select value from late_meta where key = 'identity'"
    row = connection.execute(query).fetchone()
    if row is None:
        connection.execute(
            "insert into late_meta (key, value) values ('identity', ?) on conflict do nothing",
            (ours,),
        )
        row = connection.execute(query).fetchone()
    if row[0] != ours:
        raise StoreRefused(
            f"{url} is a restored or copied file ({row[0]} became {ours}): its tasks may be "
            f"running elsewhere. If this copy is to take over, run `late rebase {url}`"
        )
