"""The schema version that this version of `late` needs, and the check at every opening."""

from __future__ import annotations

from late.errors import SchemaMismatch

SCHEMA_VERSION = "0017"
"""The number of the newest revision in `migrations/versions`. It has four digits, so that the order
of texts is that of numbers. Each revision writes its own to `late_meta` under `schema_version`."""


def check(version: str | None, *, where: str = "this database") -> None:
    """Accept exactly the schema that this code was written for.

    Args:
        version: the value of `schema_version` in `late_meta`; None if there is no such table or
            row.
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
    raise SchemaMismatch(
        f"{where} has schema {version}, newer than the {SCHEMA_VERSION} of this late: upgrade late"
    )
