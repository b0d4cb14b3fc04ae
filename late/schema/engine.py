"""SQLAlchemy engines for migrations and the control plane, and the map of their errors.

The hot path does not use them: each store has its native driver. An engine has few users (an
operator's command, a poll of the schedules), so it keeps at most two connections.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url
from sqlalchemy.pool import ConnectionPoolEntry

from late.errors import (
    ConfigError,
    LateError,
    SchemaMismatch,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TransactionAborted,
    causes,
)
from late.model.backoff import Backoff
from late.schema import held_files
from late.schema.sqlstates import error_of
from late.schema.version import check_encoding

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5
LOCK_TIMEOUT_S = 3
"""The time that a read waits for a lock on PostgreSQL; then it raises `StoreUnavailable`."""
REPEAT_S = 20.0
"""The time for which a transaction that the database aborts is repeated."""
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.02, 0.5
BUSY_TIMEOUT_S = 30.0
"""The time that a SQLite connection waits for the write lock."""
_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "cockroachdb": "cockroachdb+psycopg",
    "cockroachdb+psycopg": "cockroachdb+psycopg",
    "spanner": "spanner+spanner",
    "spanner+spanner": "spanner+spanner",
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECRETS = ("password", "passwd", "sslpassword")
_POSTGRES_MIN = (13,)
_SQLITE_MIN = (3, 35, 0)
_COCKROACH_MIN = 230100  # v23.1.0, in psycopg's form.


def parse(url: str) -> URL:
    """Parse a URL, and set the synchronous driver that `late` uses for its dialect.

    Raises:
        ConfigError: the text is not a URL, or `late` does not run on its database.
    """
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        # The message does not contain the text, which may have a password.
        raise ConfigError(
            "not a database URL; expected sqlite:///PATH or postgresql://USER@HOST/DATABASE"
        ) from None
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise ConfigError(
            f"no store for {parsed.drivername!r} URLs: "
            "use sqlite:///PATH, postgresql://…, spanner+spanner:///… or cockroachdb://…"
        )
    if parsed.database is not None and parsed.get_backend_name() in ("postgresql", "cockroachdb"):
        # SQLAlchemy leaves the name as it is in the URL, libpq does not.
        parsed = parsed.set(database=unquote(parsed.database))
    return parsed.set(drivername=driver)


def is_spanner(url: str) -> bool:
    """Tell whether this is a URL of Spanner, whose schema has its own statements."""
    return url.partition("://")[0] in ("spanner", "spanner+spanner")


def shown(url: str) -> str:
    """Return the URL for messages and logs, without a password and the driver's name."""
    try:
        parsed = parse(url)
    except ConfigError:
        return "(not a database URL)"
    parsed = parsed.difference_update_query(_SECRETS)
    if parsed.password is not None:
        parsed = parsed.set(password="***")  # It hides one. # nosec B106
    dialect = parsed.drivername.partition("+")[0]
    return parsed.set(drivername=dialect).render_as_string(hide_password=True)


def make_engine(url: str, *, create: bool = False, stale_s: float = 0.0) -> Engine:
    """Make an engine for `url`. It does not connect yet.

    Args:
        create: create a SQLite file that does not exist. Only a migration does that: a mistyped
            path must not create an empty database.
        stale_s: `reading` sees what was true that long ago on Spanner, and what a follower near by
            has on CockroachDB; nothing on other databases.

    Raises:
        ConfigError: the URL is wrong, or the driver is not installed.
    """
    parsed = parse(url)
    if parsed.get_backend_name() == "sqlite":
        return _sqlite_engine(parsed, create=create)
    if parsed.get_backend_name() == "spanner":
        return _stale(_spanner_engine(parsed), stale_s)
    cockroach = parsed.get_backend_name() == "cockroachdb"
    try:
        engine = create_engine(
            parsed,
            pool_size=1,
            max_overflow=1,
            pool_pre_ping=True,
            # Prepared statements break behind a PgBouncer that pools transactions.
            connect_args={
                "connect_timeout": CONNECT_TIMEOUT_S,
                "prepare_threshold": None,
                "application_name": "late",
                "client_encoding": "utf8",  # With SQL_ASCII psycopg would give bytes for texts.
            },
        )
        return _stale(engine, stale_s) if cockroach else engine
    except (ModuleNotFoundError, exc.NoSuchModuleError) as error:
        name, extra = ("CockroachDB", "cockroach") if cockroach else ("PostgreSQL", "postgres")
        raise ConfigError(
            f'the {name} driver is not installed: pip install "late-queue[{extra}]"'
        ) from error


def _stale(engine: Engine, stale_s: float) -> Engine:
    return engine.execution_options(late_stale_s=stale_s) if stale_s else engine


def _spanner_engine(parsed: URL) -> Engine:
    try:
        from late.schema.spanner.engine import make

        return make(parsed)
    except (ModuleNotFoundError, exc.NoSuchModuleError) as error:
        raise ConfigError(
            'the dialect of Spanner is not installed: pip install "late-queue[spanner]"'
        ) from error


def _make_private(path: str) -> None:
    """Make a new file that only its owner reads. SQLite gives its -wal and -shm the same mode."""
    # A missing folder and the like are SQLite's to report, with the error that it always had.
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _sqlite_engine(parsed: URL, *, create: bool) -> Engine:
    path = parsed.database or ""
    memory = path in ("", ":memory:")

    def connect() -> sqlite3.Connection:
        if not memory and not create and not Path(path).exists():
            raise StoreUnavailable(held_files.missing(path))
        if not memory and create:
            _make_private(path)
        # `_begin` below opens transactions: the module's own handling commits before DDL.
        connection = sqlite3.connect(
            path or ":memory:",
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        if not memory and held_files.held:
            _check_held(connection, path)
        return connection

    engine = create_engine(parsed, creator=connect)

    @event.listens_for(engine, "connect")
    def _connect(_: object, record: ConnectionPoolEntry) -> None:
        record.info["file"] = held_files.file_id(path)

    @event.listens_for(engine, "checkout")
    def _checkout(_: object, record: ConnectionPoolEntry, __: object) -> None:
        # A file that was moved or replaced still exists for the processes that have it open. So an
        # operator would read and change a file that no worker uses.
        if not memory and record.info["file"] != held_files.file_id(path):
            raise exc.DisconnectionError("another file has this name now")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads and then writes fails with SQLITE_BUSY_SNAPSHOT if another writer
        # was faster, for any busy timeout. So a writer takes the lock at its beginning.
        write = connection.get_execution_options().get("late_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _check_held(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a connection to another file than the one that a store of this process has open."""
    try:
        held_files.check(path)
    except StoreRefused:
        connection.close()
        raise


def write(engine: Engine, work: Callable[[Connection], T]) -> T:
    """Run `work(connection)` in one transaction that writes, and return its result.

    A transaction that the database aborts in favour of another one (a deadlock, 40001, ABORTED, a
    busy file) has done nothing. It is repeated as a whole for `REPEAT_S`. So `work` may run more
    than once, and must change nothing but the database.

    Raises:
        TransactionAborted: the transaction was still aborted after that time.
        StoreError: see `translated`. Errors of `work` are raised too.
    """
    # The pause is random, so that two transactions that collided do not collide again.
    backoff = Backoff(random.Random(), base_s=_PAUSE_MIN_S, cap_s=_PAUSE_MAX_S)
    until = time.monotonic() + REPEAT_S
    while True:
        try:
            with writing(engine) as connection:
                return work(connection)
        except TransactionAborted:
            if time.monotonic() > until:
                raise
        time.sleep(backoff.next_s())


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a connection in one transaction that writes.

    It is committed at the end, and rolled back after an error. It is for a body that cannot be
    repeated; others use `write`.
    """
    with (
        _turn(str(engine.url)) if engine.dialect.name.startswith("spanner") else nullcontext(),
        translated(),
        engine.connect().execution_options(late_write=True) as connection,
        connection.begin(),
    ):
        check_server(connection)
        yield connection


def _turn(url: str) -> AbstractContextManager[None]:
    """Wait for the other transactions of this process on Spanner's emulator, which allows one at a
    time."""
    from late.schema.spanner.address import turn

    return turn(url)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Open a connection in one read-only transaction that sees one snapshot of the database.

    The options `late_at_us` and `late_stale_s` of the engine say of which moment, on Spanner and
    CockroachDB.
    """
    options: dict[str, Any] = {}
    at_us: int | None = engine.get_execution_options().get("late_at_us")
    stale_s: float | None = engine.get_execution_options().get("late_stale_s")
    if engine.dialect.name == "postgresql":
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    if engine.dialect.name == "cockroachdb":  # its default, which a role can change
        options = {"isolation_level": "SERIALIZABLE", "postgresql_readonly": True}
    if engine.dialect.name.startswith("spanner"):
        options = {"read_only": True}
        if stale_s:
            options["staleness"] = {"exact_staleness": timedelta(seconds=stale_s)}
        if at_us is not None:
            options["staleness"] = {"read_timestamp": EPOCH + timedelta(microseconds=at_us)}
    with (
        translated(),
        engine.connect().execution_options(**options) as connection,
        connection.begin(),
    ):
        check_server(connection)
        if engine.dialect.name == "cockroachdb" and (moment := _system_time(at_us, stale_s)):
            connection.exec_driver_sql(f"set transaction as of system time {moment}")
        if engine.dialect.name == "postgresql":
            # PostgreSQL compiles queries that it estimates as large, which takes longer than any of
            # these statements. The setting is for this transaction only: behind a pooler the
            # session belongs to others too.
            # And nobody who looks waits for a lock without end: a held table is a finding.
            connection.exec_driver_sql(
                f"set local jit = off; set local lock_timeout = '{LOCK_TIMEOUT_S}s'"
            )
        yield connection


def _system_time(at_us: int | None, stale_s: float | None) -> str | None:
    """Return the moment of a read as CockroachDB's SQL has it; None: now."""
    if at_us is not None:
        return f"'{at_us // 1_000_000}.{at_us % 1_000_000:06d}'"
    return "follower_read_timestamp()" if stale_s else None


def check_server(connection: Connection) -> None:
    """Refuse a server that is too old for the schema, or a database that does not take all texts.

    Raises:
        StoreRefused: PostgreSQL below 13 (no `xid8`), SQLite below 3.35 (no RETURNING); or a
            database of PostgreSQL that is not UTF8.
    """
    name = connection.dialect.name
    if name.startswith("spanner"):
        return  # Spanner is a service with one version.
    if name == "cockroachdb":
        # The dialect reports PostgreSQL 9.5 for every server; the driver has the real version.
        driver: Any = connection.connection.driver_connection
        if driver.info.server_version < _COCKROACH_MIN:
            raise StoreRefused("CockroachDB is too old: late needs v23.1 or newer")
        return
    version = connection.dialect.server_version_info or ()
    least = _POSTGRES_MIN if name == "postgresql" else _SQLITE_MIN
    if tuple(version) < least:
        have, need = (".".join(map(str, numbers)) for numbers in (version, least))
        raise StoreRefused(f"{name} {have} is too old: late needs {need} or newer")
    if name == "postgresql":
        session: Any = connection.connection.driver_connection
        check_encoding(session.info.parameter_status("server_encoding"))


@contextmanager
def translated() -> Iterator[None]:
    """Raise the errors of SQLAlchemy and its drivers as those of `late.errors`.

    The message is the first line of the database's message. SQLAlchemy's text is never used: it
    contains the statement's parameters, which are payloads.
    """
    try:
        yield
    except LateError:
        raise
    except Exception as error:
        # SQLAlchemy wraps only errors of a DB-API, so those of Google's client arrive unwrapped.
        if isinstance(error, exc.SQLAlchemyError | sqlite3.Error) or _of_spanner(error):
            raise translate(error) from error
        raise


_ADVICE = {
    "25006": ": writes go to the primary; is this the URL of a standby?",
    "42501": " (docs/sql.md says which role may; `late roles sql` gives it the rights)",
}
"""By SQLSTATE, what to do about it."""


def translate(error: Exception) -> StoreError:
    """Return the error of `late` with the same meaning. Pure; a test checks the whole map."""
    original: Any = getattr(error, "orig", None) or error
    message = (str(original).strip().splitlines() or [type(original).__name__])[0][:300]
    if (foreign := _of_spanner(error)) is not None:
        from late.schema.spanner.errors import translate as translate_spanner

        return translate_spanner(foreign)
    if isinstance(original, sqlite3.Error):
        return _translate_sqlite(original, message)
    state: str | None = getattr(original, "sqlstate", None)
    kind = error_of(state)
    if kind is SchemaMismatch:
        return SchemaMismatch(f"the schema of late is missing or damaged ({message})")
    if kind is not StoreError:
        return kind(message + _ADVICE.get(state or "", ""))
    lost = isinstance(error, exc.DBAPIError) and error.connection_invalidated
    if lost or (state is None and isinstance(error, exc.OperationalError | exc.TimeoutError)):
        return StoreUnavailable(message)
    return StoreError(message)


def _of_spanner(error: BaseException) -> BaseException | None:
    """Find the client's error among the causes of the DB-API's, which has no text."""
    for cause in causes(error):
        if type(cause).__module__.startswith(("google.api_core", "google.auth")):
            return cause
    return None


def _translate_sqlite(original: sqlite3.Error, message: str) -> StoreError:
    code: int = getattr(original, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return TransactionAborted(f"{message}: another process holds the write lock")
    if message.startswith(("no such table", "no such column")):
        return SchemaMismatch(f"the schema of late is missing or damaged ({message})")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL):
        return StoreUnavailable(message)
    if code == sqlite3.SQLITE_READONLY:
        return StoreRefused(message + held_files.READ_ONLY)
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StoreRefused(message)
    return StoreError(message)
