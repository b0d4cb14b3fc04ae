"""Stores: one class per database behind the seam of `base.py`. Imported lazily, by URL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from late.errors import ConfigError
from late.store.base import Store, WakeUps

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
        with _driver("PostgreSQL", "psycopg", "postgres", ("psycopg",)):
            from late.store.postgres.store import PostgresStore
        return PostgresStore(url)
    if scheme in SPANNER_SCHEMES:
        with _driver("Spanner", "google-cloud-spanner", "spanner", ("google", "grpc")):
            from late.store.spanner.store import SpannerStore
        return SpannerStore(url)
    if scheme in COCKROACH_SCHEMES:
        with _driver("CockroachDB", "psycopg", "cockroach", ("psycopg",)):
            from late.store.cockroach.store import CockroachStore
        return CockroachStore(url)
    # A scheme may itself be a slip that holds a secret (`user:password@host://`): show a plain one.
    shown = scheme if scheme.replace("+", "").isalnum() and len(scheme) <= 40 else "this URL"
    raise ConfigError(
        f"no store for {shown}: use sqlite:///FILE, postgresql://..., "
        "postgresql+psycopg://..., spanner+spanner:///... or cockroachdb://..."
    )


def open_wake_ups(url: str, *, listen_url: str | None, prepared: bool) -> WakeUps | None:
    """Return what tells of commits in the database of `url`, or None if nothing does.

    Args:
        listen_url: where LISTEN works, if that is not `url`; for PostgreSQL.
        prepared: also where transactions may be prepared; for PostgreSQL.

    Raises:
        ConfigError: `listen_url` cannot be read.
    """
    if url.partition("://")[0] in POSTGRES_SCHEMES:
        from late.store.postgres.wake_ups import PostgresWakeUps

        return PostgresWakeUps(listen_url or url, prepared=prepared)
    if url.startswith("sqlite://") and sys.platform == "linux":
        from late.store.sqlite.wake_ups import SqliteWakeUps

        return SqliteWakeUps(url)
    return None


@contextmanager
def _driver(database: str, package: str, extra: str, modules: tuple[str, ...]) -> Iterator[None]:
    """Turn a missing module of the driver into advice; another missing module is our own fault."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(modules):
            raise
        raise ConfigError(
            f"{database} needs {package}: install it with `pip install 'late-queue[{extra}]'`"
        ) from error
