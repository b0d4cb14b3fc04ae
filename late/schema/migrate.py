"""Migrate a database to the schema of this version.

A migration may be repeated, also by two processes at once. It goes forward; the newest revisions
can be undone too, as long as nothing that a service or an operator wrote is lost by it.

The revisions in `migrations/versions` are immutable snapshots: they do not import
`late.schema.tables`, because a database that was migrated last year must not depend on today's
tables. A test checks that both are equal at the newest revision.

A revision is marked `pre` (run it before the new code is deployed, as the old code runs on it) or
`post` (run it when no old code runs any more). They are applied in the order of their numbers.
Each run also writes which older code may start on the result (`late.schema.version.OLDEST_SCHEMA`).
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

from late.errors import (
    ConfigError,
    Conflict,
    SchemaMismatch,
    StoreError,
    StoreRefused,
    TransactionAborted,
)
from late.schema.engine import is_spanner, make_engine, parse, reading, shown, translated, writing
from late.schema.tables import NOW_US
from late.schema.version import OLDEST_KEY, SCHEMA_VERSION, check

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE = "late_revision"
"""The table of Alembic's version. It is not `alembic_version`, which the service may use itself."""

LOCK_WAIT_S, PAUSE_S, WAIT_S = 2.0, 1.0, 60.0
_LOCK = 0x6C617465  # "late": the advisory lock that one migration holds at a time.


def directory() -> Path:
    """Return the folder of the revisions: in the installed package, or beside it in a checkout.

    Raises:
        ConfigError: neither exists (the package was built without them).
    """
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "_migrations", package.parent / "migrations"):
        if (candidate / "versions").is_dir():
            return candidate
    raise ConfigError(f"the migrations of late are missing from {package}: install it again")


def upgrade(
    url: str,
    *,
    wait_s: float = WAIT_S,
    lock_wait_s: float = LOCK_WAIT_S,
    on_wait: Callable[[StoreError], None] = lambda error: None,
) -> list[str]:
    """Apply the missing revisions in one transaction, and return them. There are none if the schema
    is newer and takes this version.

    Runs may overlap: the second waits for the lock of the first until that commits, and then has
    nothing to do. A run that fails leaves the schema unchanged.

    Args:
        wait_s: on PostgreSQL, the time for which a run that did not get its locks begins anew.
        lock_wait_s: the longest wait of one statement for a lock. Meanwhile all who want the table
            wait behind it, so it is short, and others go on between two tries.
        on_wait: told of each try that got no lock.

    Raises:
        TransactionAborted: others held a lock for `wait_s`.
        ConfigError: the URL is wrong.
        SchemaMismatch: the schema is newer than this version, and does not take it.
        StoreUnavailable, StoreRefused, StoreError: from the database.
    """
    if is_spanner(url):
        from late.schema.spanner import migrate as spanner

        return spanner.upgrade(url)
    engine = make_engine(url, create=True)
    ends_s = time.monotonic() + wait_s
    try:
        if engine.dialect.name == "sqlite":
            _prepare_file(engine)
        while True:
            try:
                return _upgrade(engine, url, lock_wait_s)
            except StoreRefused as error:
                if not str(error).startswith(("permission denied", "must be owner")):
                    raise
                raise StoreRefused(
                    f"{error}: run `late migrate` as the owner of the tables of late"
                ) from error
            except TransactionAborted as error:
                if engine.dialect.name != "postgresql":
                    raise
                if time.monotonic() >= ends_s:
                    raise TransactionAborted(
                        f"{error}: others held it for {wait_s:g} s, and nothing was changed;"
                        " `late doctor` names long transactions"
                    ) from error
                on_wait(error)
            time.sleep(PAUSE_S)
    finally:
        engine.dispose()


def _upgrade(engine: Engine, url: str, lock_wait_s: float) -> list[str]:
    from alembic import command

    with writing(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text(f"set local lock_timeout = {round(lock_wait_s * 1_000)}"))
        _lock(connection)
        before = version_of(connection)
        if before is not None and before > SCHEMA_VERSION:
            check_schema(connection, where=shown(url))
            return []
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        check(version_of(connection), where=shown(url))
        return [revision for revision in revisions() if revision > (before or "")]


def downgrade(url: str, to: str) -> list[str]:
    """Undo the revisions after `to` in one transaction, and return them, the newest first.

    Raises:
        ConfigError: the URL is wrong, there is no such revision, the database has not come to it,
            or one of those after it has no way back, because what it holds would be lost.
        StoreRefused: workers are running.
        Conflict: something in the database would be lost, such as a workflow that has not ended.
        SchemaMismatch: the database has no schema, or one that is newer than this version.
        StoreUnavailable, StoreError: from the database.
    """
    if is_spanner(url):
        raise ConfigError("a schema on Spanner goes forward only: restore a backup")
    if to not in revisions():
        raise ConfigError(f"no revision {to!r}: there are {revisions()[0]} to {revisions()[-1]}")
    from alembic import command

    engine = make_engine(url)
    try:
        with writing(engine) as connection:
            _lock(connection)
            before = version_of(connection)
            if before is None or before > SCHEMA_VERSION:
                check(before, where=shown(url))
            undone = [each for each in revisions()[::-1] if to < each <= (before or "")]
            if to > (before or ""):
                raise ConfigError(f"{shown(url)} is at {before}: `late migrate` goes forward")
            if undone:
                _refuse_loss(undone)
                _refuse_workers(connection)
                config = _config()
                config.attributes["connection"] = connection
                try:
                    command.downgrade(config, to)
                except RuntimeError as refused:  # A revision that would lose something says so.
                    raise Conflict(f"{shown(url)}: {refused}") from refused
            return undone
    finally:
        engine.dispose()


def _refuse_loss(undone: list[str]) -> None:
    from alembic.script import ScriptDirectory

    script = ScriptDirectory(str(directory()))
    for number in undone:
        revision = script.get_revision(number)
        if not hasattr(revision.module, "downgrade"):
            raise ConfigError(f"revision {number} has no way back: restore a backup")


def _refuse_workers(connection: Connection) -> None:
    now_us = NOW_US[connection.dialect.name]
    running = connection.execute(
        text(f"select count(*) from late_worker where expires_at_us > {now_us}")
    ).scalar_one()
    if running:
        raise StoreRefused(f"workers are running ({running}): stop them first")


def _lock(connection: Connection) -> None:
    # On SQLite `writing` has begun with BEGIN IMMEDIATE, which is the lock. On PostgreSQL the lock
    # ends with the transaction, so that it works behind PgBouncer and cannot stay held.
    if connection.dialect.name == "postgresql":
        connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _LOCK})


def _prepare_file(engine: Engine) -> None:
    """Switch the file to WAL, outside any transaction, so that readers do not wait for a writer.
    Before that, let a new one give pages back: later only a VACUUM changes this."""
    if engine.url.database in (None, "", ":memory:"):
        raise ConfigError("a migration of an in-memory database would be lost at once")
    # It may fail while others use the file. The store tries again when it opens the file.
    with suppress(TransactionAborted), translated():
        connection = engine.raw_connection()
        try:
            connection.cursor().execute("PRAGMA auto_vacuum=INCREMENTAL")
            connection.cursor().execute("PRAGMA journal_mode=WAL")
        finally:
            connection.close()


def sql(url: str) -> str:
    """Return the statements of all revisions for `url`'s dialect, without connecting."""
    if is_spanner(url):
        from late.schema.spanner import migrate as spanner

        return spanner.script()
    from alembic import command

    parsed = parse(url)
    buffer = io.StringIO()
    config = _config(buffer)
    config.attributes["url"] = parsed
    command.upgrade(config, "head", sql=True)
    return buffer.getvalue()


def current(url: str) -> str | None:
    """Read the schema version of the database; None if it has none.

    Raises:
        ConfigError: the URL is wrong.
        StoreUnavailable, StoreError: from the database.
    """
    if is_spanner(url):
        from late.schema.spanner import migrate as spanner

        return spanner.current(url)
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            return version_of(connection)
    finally:
        engine.dispose()


def version_of(connection: Connection) -> str | None:
    """Read `schema_version` from `late_meta`; None if there is no such table.

    Raises:
        SchemaMismatch: the table has no such row.
    """
    # On PostgreSQL a query of a missing table would abort the caller's transaction.
    if not inspect(connection).has_table("late_meta"):
        return None
    found = connection.execute(text("select value from late_meta where key = 'schema_version'"))
    value = found.scalar_one_or_none()
    if value is None:
        raise SchemaMismatch("late_meta has no row schema_version: restore it from a backup")
    return str(value)


def check_schema(connection: Connection, *, where: str) -> str:
    """Return the schema version, once it is one that this code takes.

    Raises:
        SchemaMismatch: the schema is missing, older, or too new; the message says what to do.
    """
    version = version_of(connection)
    if version == SCHEMA_VERSION:
        return version
    oldest = None
    if version is not None:
        row = text("select value from late_meta where key = :key")
        oldest = connection.execute(row, {"key": OLDEST_KEY}).scalar_one_or_none()
    check(version, oldest=oldest, where=where)
    return str(version)


def revisions() -> list[str]:
    """List the numbers of all revisions, ascending."""
    return sorted(path.name[:4] for path in (directory() / "versions").glob("[0-9]*_*.py"))


def _config(output: io.StringIO | None = None) -> Config:
    from alembic.config import Config

    config = Config() if output is None else Config(output_buffer=output)
    config.set_main_option("script_location", str(directory()).replace("%", "%%"))
    config.attributes["version_table"] = VERSION_TABLE
    return config
