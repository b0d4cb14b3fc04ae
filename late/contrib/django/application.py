"""The project's `late.App`, made from Django's settings."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from late.app.app import App
from late.app.mistakes import FORGOTTEN
from late.contrib.django.connections import IN_MEMORY, database_url, fresh
from late.errors import ConfigError, InvalidTask, SchemaMismatch
from late.model.task import SHARDS_MAX

KEYS = {
    "DATABASE": "default",
    "SHARDS": 8,
    "GROUP": "default",
    "CODEC": "json",
    "MAX_BACKLOG": None,
    "TARGETS": (),
    "HISTORY": False,
}
"""Each key of the setting `LATE`, and its default. All but DATABASE are options of `late.App`."""
_Bound = Annotated[int, msgspec.Meta(ge=0)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
TYPES: dict[str, Any] = {
    "DATABASE": str,
    "SHARDS": Annotated[int, msgspec.Meta(ge=1, le=SHARDS_MAX)],
    "GROUP": _Name,
    "MAX_BACKLOG": _Bound | dict[_Name, _Bound] | None,
    "TARGETS": list[Any],
    "HISTORY": bool,
}
"""The types of the values. `late.App` looks at codecs itself, and at each target."""


class ProjectApp(App):
    """The app of a Django project.

    Its URL is looked up at each use: a test run has a database of its own, made after this app.
    """

    @property
    def url(self) -> str:
        """The URL of `DATABASES[LATE["DATABASE"]]`."""
        return database_url(setting("DATABASE"))

    @url.setter
    def url(self, _: str) -> None:
        """Keep nothing: `late.App` sets it once, to what the property returns."""

    @property
    def django_database(self) -> str:
        """The alias of the database that has the tasks."""
        return str(setting("DATABASE"))

    def enqueue(self, tx: Any, *args: Any, **kwargs: Any) -> Any:
        """Do what `late.App.enqueue` does. An error about tables names the command of Django.

        Raises:
            InvalidTask: `tx` is a connection of Django's to another database, which no worker of
                the project reads.
        """
        self._refuse_elsewhere(tx)
        try:
            return super().enqueue(tx, *args, **kwargs)
        except SchemaMismatch as error:
            raise SchemaMismatch(f"{error} ({migrate_hint()})") from error

    def enqueue_many(self, tx: Any = FORGOTTEN, calls: Any = FORGOTTEN, /) -> Any:
        """Do what `late.App.enqueue_many` does; see `enqueue`."""
        self._refuse_elsewhere(tx)
        return super().enqueue_many(tx, calls)

    def _refuse_elsewhere(self, tx: Any) -> None:
        alias = getattr(tx, "alias", None)
        if alias is None or alias == (ours := self.django_database):
            return
        # Two aliases may lead to one database, as with a pooler and without.
        if str(tx.settings_dict["NAME"]) != str(connections[ours].settings_dict["NAME"]):
            raise InvalidTask(
                f"this is the connection to DATABASES[{alias!r}], and the tasks are in"
                f' DATABASES[{ours!r}], as LATE["DATABASE"] says: give `connections[{ours!r}]`,'
                f" in `transaction.atomic(using={ours!r})`"
            )


def setting(key: str) -> Any:
    """Return one value of the setting `LATE`.

    Raises:
        ImproperlyConfigured: `LATE` is not a dictionary, has a key that is not known, or has a
            value of a wrong type for this one.
    """
    given = _given()
    if wrong := _mistakes(given, [key]):
        raise ImproperlyConfigured(wrong[0])
    return given.get(key, KEYS[key])


def mistakes() -> list[str]:
    """Say what is wrong with the setting `LATE`, and with the kind of its database."""
    try:
        given = _given()
        if wrong := _mistakes(given, KEYS):
            return wrong
        _build()
    except ImproperlyConfigured as error:
        return [str(error)]
    except ConfigError as error:
        return [f"LATE: {error}"]
    return []


def _given() -> dict[str, Any]:
    given = getattr(settings, "LATE", {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured("LATE must be a dictionary")
    unknown = sorted(map(str, given.keys() - KEYS.keys()))
    if unknown:
        raise ImproperlyConfigured(f"LATE has no {', '.join(unknown)}; it has {', '.join(KEYS)}")
    return given


def _mistakes(given: dict[str, Any], keys: Iterable[str]) -> list[str]:
    """Say what is wrong with the types of the values of `keys`, and with the alias."""
    found = []
    for key in keys:
        value = given.get(key, KEYS[key])
        try:
            msgspec.convert(value, TYPES.get(key, Any))
        except msgspec.ValidationError as error:
            found.append(f"LATE[{key!r}]: {error}")
        else:
            if key == "DATABASE" and value not in connections:
                found.append(f"LATE['DATABASE']: there is no {value!r} in DATABASES")
    return found


def migrate_hint() -> str:
    """Return the commands that make or upgrade the tables of `late` in this project.

    Django applies nothing where it has noted the migrations already, as after `late migrate --to`.
    """
    first = f"`manage.py migrate late --database {setting('DATABASE')}`"
    return f"in this project: {first}; if that has nothing to apply, `manage.py late migrate`"


def make_app() -> App:
    """Make the app whose database is the one that `LATE["DATABASE"]` names. It does not connect.

    Raises:
        ImproperlyConfigured: settings are wrong, all of which it names, or `late` does not run on
            the database. Not while `manage.py check` runs, which reports them.
    """
    wrong = mistakes()
    if not wrong:
        return _build()
    if _is_checking():
        return App(IN_MEMORY, wrap=fresh)
    raise ImproperlyConfigured("; ".join(wrong))


def _build() -> App:
    options = {key.lower(): setting(key) for key in KEYS if key != "DATABASE"}
    return ProjectApp(database_url(setting("DATABASE")), wrap=fresh, **options)


def _is_checking() -> bool:
    """Tell whether this process is `manage.py check`, which runs no task. `late check` is not."""
    return sys.argv[1:2] == ["check"] and "late.cli" not in sys.modules
