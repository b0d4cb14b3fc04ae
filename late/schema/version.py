"""The schema version that this version of `late` needs, and the checks at every opening.

A schema may be newer than the code. Then the schema says which code may still use it: the migration
writes to `late_meta` the oldest schema whose code runs on the new one.
"""

from __future__ import annotations

from late.errors import SchemaMismatch, StoreRefused

SCHEMA_VERSION = "0019"
"""The number of the newest revision in `migrations/versions`. It has four digits, so that the order
of texts is that of numbers. Each revision writes its own to `late_meta` under `schema_version`."""

OLDEST_SCHEMA = "0017"
"""The oldest schema whose code runs on `SCHEMA_VERSION`, beside this code. A migration writes it to
`late_meta` under `OLDEST_KEY`. A revision that old code does not notice (a new table, a column with
a default) leaves it; any other, and each with the phase `post`, sets it to its own number. Code for
schemas before 0017 does not look at it."""

OLDEST_KEY = "schema_oldest"


def check(version: str | None, *, oldest: str | None = None, where: str = "this database") -> None:
    """Accept the schema that this code was written for, and a newer one that takes this code.

    Args:
        version: the value of `schema_version` in `late_meta`; None if there is no such table or
            row.
        oldest: the value of `OLDEST_KEY`; without it, a newer schema is refused.
        where: the database, for the message; a URL must come without its password.

    Raises:
        SchemaMismatch: the schema is missing, older, or newer; the message says what to do.
    """
    if version == SCHEMA_VERSION:
        return
    if version is None:
        raise SchemaMismatch(f"{where} has no schema of late: run `late migrate URL`")
    if not (len(version) == 4 and version.isdigit()):
        raise SchemaMismatch(
            f"{where} has schema version {version[:32]!r} in late_meta, which late never writes: "
            "restore late_meta from a backup"
        )
    if version < SCHEMA_VERSION:
        raise SchemaMismatch(
            f"{where} has schema {version}, this late needs {SCHEMA_VERSION}: "
            "run `late migrate URL`"
        )
    if oldest is not None and oldest <= SCHEMA_VERSION:
        return
    raise SchemaMismatch(
        f"{where} has schema {version}, newer than the {SCHEMA_VERSION} of this late: upgrade late"
    )


def check_encoding(encoding: str | None) -> None:
    """Accept a database of PostgreSQL that takes every text.

    In another one an error text, a name or a payload with a character that it does not have ends
    the settlement of its shard: nothing of the shard is recorded any more, and its tasks run again
    and again. SQL_ASCII takes all bytes, and checks none.

    Args:
        encoding: what the server says of it, `server_encoding`; None if a pooler does not tell.

    Raises:
        StoreRefused: it has another encoding.
    """
    if encoding not in (None, "UTF8"):
        raise StoreRefused(
            f"the database has the encoding {encoding}, and late needs UTF8: create database NAME"
            " encoding 'UTF8' template template0, and move the data there with pg_dump"
        )
