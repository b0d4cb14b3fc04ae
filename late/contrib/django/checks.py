"""System checks: of the settings in `manage.py check` and before each command that checks, of the
schema with `--database default` and before each `manage.py migrate`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from late.contrib.django.application import mistakes, setting
from late.contrib.django.connections import IN_MEMORY, database_url
from late.control import Control
from late.errors import LateError
from late.schema import migrate
from late.schema.version import SCHEMA_VERSION

_NOTED = "; if that has nothing to apply, `manage.py late migrate`"
"""Django applies nothing that it has noted already, as after `late migrate --to`."""


def check_settings(**_: Any) -> list[CheckMessage]:
    """Look at the setting `LATE` and at its database in `DATABASES`, without connecting."""
    if wrong := mistakes():
        return [Error(each, hint="See docs/django.md, Set up.", id="late.E004") for each in wrong]
    alias = setting("DATABASE")
    if connections[alias].settings_dict["AUTOCOMMIT"]:
        return []
    return [
        Warning(
            f"DATABASES[{alias!r}] has AUTOCOMMIT off: tasks wait until you commit yourself",
            hint="Leave AUTOCOMMIT on, and enqueue inside of transaction.atomic().",
            id="late.W001",
        )
    ]


def check_schema(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Compare the tables of `late` with this version. Without tables there is a warning: the check
    runs before the first `manage.py migrate` too."""
    if mistakes():  # `check_settings` tells.
        return []
    alias = setting("DATABASE")
    url = database_url(alias) if alias in (databases or ()) else IN_MEMORY
    if url == IN_MEMORY:
        return []
    path = url.removeprefix("sqlite:///")
    try:
        absent = path != url and not Path(path).exists()
        found = None if absent else migrate.current(url)
    except LateError as error:
        return [Error(f"late cannot read its schema in {alias!r}: {error}", id="late.E001")]
    if found == SCHEMA_VERSION or _takes_us(found, url):
        return _check_shards(alias, url)
    if found is None:
        told = f"late has no tables in the database {alias!r}"
        hint = f"`manage.py migrate late --database {alias}` makes them{_NOTED}."
        return [Warning(told, hint=hint, id="late.W003")]
    told = f"the tables of late in {alias!r} are at {found}, this version needs {SCHEMA_VERSION}"
    if found < SCHEMA_VERSION:
        hint = f"Run `manage.py migrate late --database {alias}`{_NOTED}."
        return [Warning(told, hint=hint, id="late.W002")]
    return [Error(told, hint="Install the version of late that made them.", id="late.E002")]


def _takes_us(found: str | None, url: str) -> bool:
    """Tell whether a newer schema takes this version."""
    if found is None or found < SCHEMA_VERSION:
        return False
    with Control(url) as control, suppress(LateError):
        control.lanes.all()
        return True
    return False


def _check_shards(alias: str, url: str) -> list[CheckMessage]:
    """Compare `LATE["SHARDS"]` with a lane that was never resized. After that the database's own
    number applies, and the setting says nothing any more."""
    wanted = setting("SHARDS")
    try:
        with Control(url) as control:
            lanes = [lane for lane in control.lanes.all() if lane.name == "default"]
    except LateError as error:
        return [Error(f"late cannot read its lanes in {alias!r}: {error}", id="late.E001")]
    if not any(lane.version == 0 and lane.shards < wanted for lane in lanes):
        return []
    told = f"LATE['SHARDS'] is {wanted}, and the lane in {alias!r} has {lanes[0].shards} shards"
    hint = (
        f"No worker reads the tasks of the others. Run `manage.py late shards --resize {wanted}`,"
        f" or set SHARDS to {lanes[0].shards}."
    )
    return [Error(told, hint=hint, id="late.E003")]
