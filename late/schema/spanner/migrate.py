"""Migrate the schema on Spanner, by its own statements, which are applied as one batch.

Alembic is not used here. Spanner runs DDL as long jobs outside of any transaction, and one batch is
one job. Alembic would need a job for every table, and updates the primary key of the table with its
version. So a version here is a tuple of statements that may be repeated (`IF NOT EXISTS`), and the
number of the last one is in `late_meta`.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.api_core import exceptions as api
from google.auth.exceptions import DefaultCredentialsError
from google.cloud.spanner_v1 import Client, KeySet

from late.errors import StoreRefused
from late.model.task import DEFAULT_GROUP
from late.schema.spanner import deadlines
from late.schema.spanner.address import (
    emulator_settings,
    no_credentials,
    options_of,
    place_of,
    turn,
)
from late.schema.spanner.ddl import STATEMENTS
from late.schema.spanner.errors import translated
from late.schema.tables import SHARDS_DEFAULT
from late.schema.version import OLDEST_KEY, OLDEST_SCHEMA, SCHEMA_VERSION, check

DDL_TIMEOUT_S = 600.0
_DDL_PAUSE_S = 0.1
_DIALECT = (
    "SELECT option_value FROM information_schema.database_options"
    " WHERE option_name = 'database_dialect'"
)


def upgrade(url: str) -> list[str]:
    """Apply the missing versions as one batch of DDL, and return them.

    Runs may overlap, and an interrupted one may be run again: every statement may be repeated, and
    the version is written last. Of several runs at once, the one that wrote it returns it.

    Raises:
        SchemaMismatch: the schema is newer than this version, and does not take it.
        StoreUnavailable, StoreRefused, StoreError: from the database.
    """
    with _opened(url) as database:
        before = _version(database)
        if before is not None and before > SCHEMA_VERSION:
            check(before, oldest=_meta(database, OLDEST_KEY), where=url)
        missing = _after(before)
        if not missing:
            return []
        statements = [line for version in missing for line in STATEMENTS[version]]
        if statements:  # Some versions change other stores only, and Spanner refuses empty batches.
            _apply(database, statements)
        deadlines.start()
        with turn(url):
            written: str | None = database.run_in_transaction(
                _seed, timeout_secs=deadlines.left(), default_retry_delay=0.02
            )
        return _after(written)


def _after(version: str | None) -> list[str]:
    return [each for each in sorted(STATEMENTS) if each > (version or "")]


def _apply(database: Any, statements: list[str]) -> None:
    """Apply one batch of DDL. Spanner queues batches; the emulator refuses a second one."""
    until = time.monotonic() + DDL_TIMEOUT_S
    while True:
        deadlines.start()
        try:
            database.update_ddl(statements).result(max(1.0, until - time.monotonic()))
            return
        except api.FailedPrecondition as error:
            if "concurrent schema change" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(_DDL_PAUSE_S)


def current(url: str) -> str | None:
    """Read the schema version of the database; None if it has none."""
    with _opened(url) as database:
        return _version(database)


def script() -> str:
    """Return all statements, for a person to read or run."""
    return "".join(f"{line};\n\n" for lines in STATEMENTS.values() for line in lines)


def check_dialect(database: Any, url: str) -> None:
    """Refuse a database with the PostgreSQL dialect, which has other types and statements.

    Raises:
        StoreRefused: the dialect is not GoogleSQL.
    """
    with database.snapshot() as snapshot:
        found = [value for (value,) in snapshot.execute_sql(_DIALECT)]
    if found and found[0] != "GOOGLE_STANDARD_SQL":
        raise StoreRefused(
            f"{url} is a database with the dialect {found[0]}: late needs one with GoogleSQL"
        )


@contextmanager
def _opened(url: str) -> Iterator[Any]:
    with translated():
        yield open_database(url)


def open_database(url: str) -> Any:
    """Open a client for `url` whose requests have a deadline; see `deadlines`.

    Other settings are Google's defaults, because this client is for rare work. A store has its own.

    Raises:
        ConfigError: the URL has another form or an unknown option, or no credentials were found.
        StoreRefused: the database has another dialect.
        Other errors are those of the client, which `errors.translated` maps.
    """
    place = place_of(url)
    directed = options_of(url).directed
    emulator_settings()
    try:
        client: Any = Client(
            project=place.project, disable_builtin_metrics=True, directed_read_options=directed
        )
    except DefaultCredentialsError as error:
        raise no_credentials(error) from error
    database = client.instance(place.instance).database(place.database)
    deadlines.start()
    deadlines.bind(database.spanner_api)
    deadlines.bind_admin(client.database_admin_api)
    check_dialect(database, url)
    # The client is never closed: that would wait for one of its threads, which sleeps for minutes.
    # The thread is a daemon and has a weak reference to the database, so both end by themselves.
    return database


def _version(database: Any) -> str | None:
    return _meta(database, "schema_version")


def _meta(database: Any, name: str) -> str | None:
    try:
        with database.snapshot() as snapshot:
            rows = snapshot.read("late_meta", ("value",), KeySet(keys=[[name]]))
            values = [value for (value,) in rows]
    except api.NotFound as error:
        if "Table not found" in str(error):
            return None
        raise
    # If the table has no row, a run was interrupted between the two.
    return str(values[0]) if values else None


def _seed(transaction: Any) -> str | None:
    """Write the version and the rows of a new schema; return the version that was there before.

    Existing rows do not change.
    """
    key = KeySet(keys=[["schema_version"]])
    found = [str(value) for (value,) in transaction.read("late_meta", ("value",), key)]
    before = found[0] if found else None
    if before is not None and before >= SCHEMA_VERSION:
        return before  # Another run was faster.
    if not list(transaction.read("late_secret", ("name",), KeySet(all_=True))):
        keys = ("1", secrets.token_hex(32), secrets.token_hex(32))
        transaction.insert("late_secret", ("name", "peer_key", "form_key"), [keys])
        # Any reader of the database may have seen the key of the versions before 0013.
        transaction.delete("late_meta", KeySet(keys=[["receipt_key"]]))
    versions = [("schema_version", SCHEMA_VERSION), (OLDEST_KEY, OLDEST_SCHEMA)]
    transaction.insert_or_update("late_meta", ("key", "value"), versions)
    if before is not None:
        return before
    ((now_us,),) = transaction.execute_sql("SELECT UNIX_MICROS(CURRENT_TIMESTAMP())")
    wanted: tuple[tuple[str, tuple[str, ...], tuple[Any, ...]], ...] = (
        ("late_lane", ("name", "first_shard", "shards"), ("default", 0, SHARDS_DEFAULT)),
        ("late_group", ("name", "created_at_us"), (DEFAULT_GROUP, now_us)),
        ("late_meta", ("key", "value"), ("deployment", uuid.uuid4().hex)),
    )
    for table, columns, row in wanted:
        if not list(transaction.read(table, columns, KeySet(keys=[[row[0]]]))):
            transaction.insert(table, columns, [row])
    return None
