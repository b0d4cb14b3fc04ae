"""A database for a while, on a server that is found or started: for the demo and measurements.

| store | where it comes from |
|---|---|
| `postgres` | `LATE_POSTGRES_URL`, used as it is; else a private one (see `postgres.py`) |
| `spanner` | a new database on the emulator at `SPANNER_EMULATOR_HOST`; else on a private one |

What is started here is gone at the end of the block, whatever ends it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from late.errors import ConfigError
from late.testing.servers import spanner
from late.testing.servers.postgres import PostgresServer

POSTGRES_VARIABLE = "LATE_POSTGRES_URL"


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL database.

    Raises:
        StoreUnavailable: none is named, and none can be started.
    """
    given = os.environ.get(POSTGRES_VARIABLE)
    if given:
        yield given
        return
    with PostgresServer() as server:
        yield server.url


@contextmanager
def spanner_emulator() -> Iterator[str]:
    """The URL of an empty database on an emulator, which the environment names for the block.

    Raises:
        ConfigError: Google's client is not installed.
        StoreUnavailable: no emulator is named, and none can be started.
    """
    with ExitStack() as stack:
        shared = bool(os.environ.get(spanner.HOST_VARIABLE))
        if not shared:
            emulator = stack.enter_context(spanner.SpannerEmulator())
            stack.enter_context(_environment({spanner.HOST_VARIABLE: emulator.host}))
        unset = {k: v for k, v in spanner.ENVIRONMENT.items() if k not in os.environ}
        stack.enter_context(_environment(unset))
        try:
            url = spanner.create_database(migrated=False)
        except ModuleNotFoundError as error:
            raise ConfigError(
                "Spanner needs google-cloud-spanner: install it with `pip install 'late[spanner]'`"
            ) from error
        if shared:
            stack.callback(spanner.drop_database, url)
        yield url


STORES = {"postgres": postgres, "spanner": spanner_emulator}


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables that are not set, for this process and its children."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
