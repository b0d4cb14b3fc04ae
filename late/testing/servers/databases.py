"""A temporary database for the demo and measurements, on a server that is found or started.

| store | its database |
|---|---|
| `postgres` | the one of `LATE_POSTGRES_URL`, unchanged; else a private one (see `postgres.py`) |
| `spanner` | a new one on the emulator at `SPANNER_EMULATOR_HOST`; else on a private emulator |

A server that is started here is removed at the end of the block, also after an error.
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
    """Yield the URL of a PostgreSQL database.

    Raises:
        StoreUnavailable: the environment names none, and no server can be started.
    """
    given = os.environ.get(POSTGRES_VARIABLE)
    if given:
        yield given
        return
    # As PostgreSQL comes, unlike the servers of the tests: where transactions can be prepared, no
    # worker is told of commits.
    with PostgresServer(settings={"max_prepared_transactions": "0"}) as server:
        yield server.url


@contextmanager
def spanner_emulator() -> Iterator[str]:
    """Yield the URL of an empty database on an emulator.

    The environment names the emulator within the block.

    Raises:
        ConfigError: Google's client is not installed.
        StoreUnavailable: the environment names no emulator, and none can be started.
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
                "Spanner needs google-cloud-spanner: "
                "install it with `pip install 'late-queue[spanner]'`"
            ) from error
        if shared:
            stack.callback(spanner.drop_database, url)
        yield url


STORES = {"postgres": postgres, "spanner": spanner_emulator}


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for this process and its children, and remove them at the end of the block."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
