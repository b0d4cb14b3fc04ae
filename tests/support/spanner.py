"""Spanner databases for tests: made of the statements of one that each process migrates.

All tables as they are at last in one job, by a client that is kept: half the processor time of a
migration, in the emulator and here.
"""

from __future__ import annotations

import os
import secrets
from functools import cache
from typing import Any

from google.cloud.spanner_v1 import Client

from late.schema.spanner import migrate
from late.schema.spanner.address import place_of, turn
from late.testing.servers import spanner

TIMEOUT_S = 30.0


def database() -> str:
    """Return the URL of a new database with the current schema, on the emulator that is set."""
    instance, statements = _template(os.environ[spanner.HOST_VARIABLE])
    name = f"late-{secrets.token_hex(6)}"
    made = instance.database(name, ddl_statements=statements)
    made.create().result(TIMEOUT_S)
    url = spanner.url_of(name)
    with turn(url):
        made.run_in_transaction(migrate._seed, default_retry_delay=0.02)
    return url


@cache
def _template(host: str) -> tuple[Any, tuple[str, ...]]:
    """The instance on the emulator at `host`, and the statements that make a database there."""
    url = spanner.create_database(migrated=True)
    place = place_of(url)
    client: Any = Client(project=place.project, disable_builtin_metrics=True)
    instance = client.instance(place.instance)
    migrated = instance.database(place.database)
    migrated.reload()
    statements = tuple(migrated.ddl_statements)
    migrated.drop()
    return instance, statements
