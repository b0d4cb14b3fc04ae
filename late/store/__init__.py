"""Stores: one class per database behind the seam of `base.py`. Imported lazily, by URL."""

from __future__ import annotations

from late.errors import ConfigError
from late.store.base import Store

POSTGRES_SCHEMES = ("postgresql", "postgresql+psycopg")
COCKROACH_SCHEMES = ("cockroachdb", "cockroachdb+psycopg")
SPANNER_SCHEMES = ("spanner", "spanner+spanner")


def open_store(url: str) -> Store:
    """Return the store for `url`, not yet connected: `await store.open()` does that.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://...`,
            `postgresql+psycopg://...`, `spanner+spanner:///projects/P/instances/I/databases/D` or
            (experimental) `cockroachdb+psycopg://...`, as SQLAlchemy writes them.

    Raises:
        ConfigError: another scheme, no file, or the driver's package is not installed. The
            message never repeats the URL, which may hold a password.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigError("a database URL is needed, such as sqlite:///late.db")
    if scheme == "sqlite":
        from late.store.sqlite.store import SqliteStore

        return SqliteStore(url)
    if scheme in POSTGRES_SCHEMES:
        try:
            from late.store.postgres.store import PostgresStore
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("psycopg"):
                raise
            raise ConfigError(
                "PostgreSQL needs psycopg: install it with `pip install 'late[postgres]'`"
            ) from error
        return PostgresStore(url)
    if scheme in SPANNER_SCHEMES:
        try:
            from late.store.spanner.store import SpannerStore
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith(("google", "grpc")):
                raise
            raise ConfigError(
                "Spanner needs google-cloud-spanner: install it with `pip install 'late[spanner]'`"
            ) from error
        return SpannerStore(url)
    if scheme in COCKROACH_SCHEMES:
        try:
            from late.store.cockroach.store import CockroachStore
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("psycopg"):
                raise
            raise ConfigError(
                "CockroachDB needs psycopg: install it with `pip install 'late[cockroach]'`"
            ) from error
        return CockroachStore(url)
    # A scheme may itself be a slip that holds a secret (`user:password@host://`): show a plain one.
    shown = scheme if scheme.replace("+", "").isalnum() and len(scheme) <= 40 else "this URL"
    raise ConfigError(
        f"no store for {shown}: use sqlite:///FILE, postgresql://..., "
        "postgresql+psycopg://..., spanner+spanner:///... or cockroachdb://..."
    )
