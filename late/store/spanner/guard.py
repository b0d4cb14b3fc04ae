"""Guards of the Spanner store: they refuse unsafe databases, each with its remedy."""

from __future__ import annotations

from typing import Any

from google.api_core import exceptions as api
from google.cloud.spanner_v1 import KeySet

from late.errors import SchemaMismatch, StoreRefused
from late.schema import version as schema_version
from late.schema.spanner.migrate import check_dialect
from late.store.spanner.client import place_of


def identity_of(url: str) -> str:
    """Return the name that tells this database from a copy of it.

    A restore always makes a database with another name, and so does a clone for staging. Its
    commit timestamps go on from the copied ones, so that cursors stay true in it. It is refused
    because the same tasks would run in two places.
    """
    place = place_of(url)
    return f"spanner:{place.project}/{place.instance}/{place.database}"


def facts(database: Any, url: str) -> dict[str, str]:
    """Read `late_meta`, and check its version.

    Raises:
        SchemaMismatch: there is none, or it is another version.
        StoreRefused: the database is of another dialect, or it cannot be reached for good.
    """
    check_dialect(database, url)
    try:
        with database.snapshot() as snapshot:
            rows = snapshot.read("late_meta", ("key", "value"), KeySet(all_=True))
            found = dict(map(tuple, rows))
    except api.NotFound as error:
        if "Table not found" not in str(error):
            raise
        raise SchemaMismatch(f"{url} has no schema of late: run `late migrate URL`") from error
    oldest = found.get(schema_version.OLDEST_KEY)
    schema_version.check(found.get("schema_version"), oldest=oldest, where=url)
    return found


def claim(transaction: Any, identity: str) -> str:
    """Claim the database at its first opening, and return the identity that holds it."""
    rows = list(transaction.read("late_meta", ("value",), KeySet(keys=[["identity"]])))
    if rows:
        return str(rows[0][0])
    transaction.insert("late_meta", ("key", "value"), [("identity", identity)])
    return identity


def check_identity(found: str, ours: str, url: str) -> None:
    """Refuse to run on a restored copy.

    Raises:
        StoreRefused: two deployments would run the same tasks.
    """
    if found != ours:
        raise StoreRefused(
            f"{url} is a restored or copied database ({found} became {ours}): its tasks may be "
            f"running elsewhere. If this copy is to take over, run `late rebase {url}`"
        )
