"""Real logins of PostgreSQL with the roles of `late roles sql`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url

from late.schema.roles import ROLES, script
from tests.servers import drop_database, migrated_database, postgres_url


def open_as(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


@contextmanager
def made() -> Iterator[dict[str, str]]:
    """Give the URL of each role's login, and of the `owner`, on a database of their own."""
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    owner = migrated_database(admin)
    prefix = f"late_t{secrets.token_hex(4)}_"
    urls = {"owner": owner}
    with closing(open_as(owner)) as connection:
        connection.execute(script(prefix=prefix))
        for role in ROLES:
            login, password = f"{prefix}{role}_login", secrets.token_hex(8)
            connection.execute(f"create role {login} login password '{password}' in role"
                               f" {prefix}{role}")  # fmt: skip
            urls[role] = (
                make_url(owner)
                .set(username=login, password=password)
                .render_as_string(hide_password=False)
            )
            _check(urls[role], login)
    try:
        yield urls
    finally:
        with closing(open_as(owner)) as connection:
            for role in ROLES:
                connection.execute(f"drop role {prefix}{role}_login")
                connection.execute(f"drop owned by {prefix}{role}")
                connection.execute(f"drop role {prefix}{role}")
        drop_database(admin, owner)


def _check(url: str, login: str) -> None:
    """See that the URL leads in as that login, whatever else it says."""
    assert "user" not in conninfo_to_dict(url.replace("+psycopg", "")).get("options", "")
    with closing(open_as(url)) as connection:
        assert connection.execute("select current_user").fetchone() == (login,)


def texts(url: str) -> set[str]:
    """Read every text that a login may read: all columns of all tables of `late`, one by one."""
    found: set[str] = set()
    with closing(open_as(url)) as connection:
        columns = connection.execute(
            "select table_name, column_name from information_schema.columns"
            " where table_schema = current_schema() and table_name like 'late\\_%'"
        ).fetchall()
        for table, column in columns:
            try:
                rows = connection.execute(f"select {column}::text from {table}").fetchall()
            except psycopg.errors.InsufficientPrivilege:
                continue
            found |= {value for (value,) in rows if value}
    return found
