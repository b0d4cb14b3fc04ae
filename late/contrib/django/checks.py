"""System checks: `manage.py check --database default`, and before each `manage.py migrate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from late.contrib.django.application import setting
from late.contrib.django.connections import IN_MEMORY, database_url
from late.errors import LateError
from late.schema import migrate
from late.schema.version import SCHEMA_VERSION


def check_database(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Look at the settings of the database that has the tasks; it is not connected to."""
    alias = setting("DATABASE")
    if alias not in (databases or ()) or connections[alias].settings_dict["AUTOCOMMIT"]:
        return []
    return [
        Warning(
            f"DATABASES[{alias!r}] has AUTOCOMMIT off: tasks wait until you commit yourself",
            hint="Leave AUTOCOMMIT on, and enqueue inside of transaction.atomic().",
            id="late.W001",
        )
    ]


def check_schema(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Compare the tables of `late` with this version. A database without them passes: the check
    runs before the first `manage.py migrate` too."""
    alias = setting("DATABASE")
    url = database_url(alias) if alias in (databases or ()) else IN_MEMORY
    path = url.removeprefix("sqlite:///")
    if url == IN_MEMORY or (path != url and not Path(path).exists()):
        return []
    try:
        found = migrate.current(url)
    except LateError as error:
        return [Error(f"late cannot read its schema in {alias!r}: {error}", id="late.E001")]
    if found is None or found == SCHEMA_VERSION:
        return []
    older = found < SCHEMA_VERSION
    told = f"the tables of late in {alias!r} are at {found}, this version needs {SCHEMA_VERSION}"
    if older:
        return [Warning(told, hint="Run `manage.py migrate late`.", id="late.W002")]
    return [Error(told, hint="Install the version of late that made them.", id="late.E002")]
