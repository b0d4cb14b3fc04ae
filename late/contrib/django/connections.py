"""Django's connections: the URL of a database, and handlers that get working connections."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from late.concurrency import drained

logger = logging.getLogger("late.django")
IN_MEMORY = "sqlite:///:memory:"
"""The URL of a database that only this process sees. No worker starts on it."""


def database_url(alias: str) -> str:
    """Return the URL of `DATABASES[alias]` for `late`, with its password.

    In a test run it is the test database, as soon as Django has made that.

    Raises:
        ImproperlyConfigured: `late` does not run on this database or with this driver.
        ConnectionDoesNotExist (Django's): there is no such alias.
    """
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return _sqlite_url(connection)
    if connection.vendor == "postgresql" and connection.Database.__name__ == "psycopg":
        return _postgres_url(connection)
    raise ImproperlyConfigured(
        f"late runs on SQLite, and on PostgreSQL with psycopg 3: DATABASES[{alias!r}] is"
        f" {connection.vendor} with {connection.Database.__name__}"
    )


def _sqlite_url(connection: Any) -> str:
    name = str(connection.settings_dict["NAME"])
    if connection.is_in_memory_db():
        return IN_MEMORY
    return f"sqlite:///{Path(name).absolute()}"


def _postgres_url(connection: Any) -> str:
    """Keep what libpq knows: the rest of `OPTIONS` is for Django's own connections."""
    from psycopg.pq import Conninfo

    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    given = connection.get_connection_params()
    found = {key: str(value) for key, value in given.items() if key in known and value is not None}
    found.pop("client_encoding", None)  # The stores read and write UTF-8.
    host, port = found.pop("host", None), found.pop("port", None)
    user, password = found.pop("user", None), found.pop("password", None)
    name = found.pop("dbname", None)
    if host is not None and host.startswith("/"):  # The path of a socket is not a host in a URL.
        found["host"], host = host, None
    # Not by SQLAlchemy: it writes a space as `+` or leaves it, and libpq reads `%20` alone.
    login = "" if user is None else _quoted(user)
    login += "" if password is None else f":{_quoted(password)}"
    place = "" if host is None else f"[{host}]" if ":" in host else host
    place += "" if port is None else f":{port}"
    path = "" if name is None else f"/{_quoted(name)}"
    query = "&".join(f"{key}={_quoted(value)}" for key, value in found.items())
    return f"postgresql://{login}{'@' if login else ''}{place}{path}{'?' if query else ''}{query}"


def _quoted(value: str) -> str:
    return quote(value, safe="")


def close_old_connections() -> None:
    """Close what is unusable, or older than CONN_MAX_AGE, and not in an atomic block.

    Django's function of this name would close the connection of a test in the middle of its
    transaction.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _after(name: str) -> None:
    """Look at the connections after a handler, as `close_old_connections` does.

    One that has a transaction open is closed. That is no failure, as the handler may have committed
    before, and would do it twice; but it is said. Those of a thread of `drain` are closed all: the
    test database cannot be removed while one is open.
    """
    for connection in connections.all(initialized_only=True):
        if _is_open(connection):
            logger.warning(
                "handler %s has left a transaction of DATABASES[%r] open: what it wrote there since"
                " its last commit is rolled back",
                name,
                connection.alias,
            )
    close_old_connections()
    for connection in connections.all(initialized_only=True) if drained.get() else ():
        if not connection.in_atomic_block:
            connection.close()


def _is_open(connection: Any) -> bool:
    """Return whether there is a transaction that nobody will commit."""
    raw = connection.connection
    if raw is None or connection.in_atomic_block or connection.get_autocommit():
        return False
    if connection.vendor == "sqlite":
        return bool(raw.in_transaction)
    return bool(raw.info.transaction_status)  # IDLE is 0.


def fresh(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return `handler` with a look at the thread's connections before and after each call, as
    Django has around a request.

    Without it, a connection that was cut fails every later attempt in its thread.
    """
    if inspect.iscoroutinefunction(handler):
        # An async handler uses the ORM in the thread of `sync_to_async`: its connections are there.
        before, after = sync_to_async(close_old_connections), sync_to_async(_after)

        @functools.wraps(handler)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            await before()
            try:
                return await handler(*args, **kwargs)
            finally:
                await after(handler.__qualname__)

        return run_async

    @functools.wraps(handler)
    def run(*args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return handler(*args, **kwargs)
        finally:
            _after(handler.__qualname__)

    return run
