"""The project's `late.App`, made from Django's settings."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from late.app.app import App
from late.contrib.django.connections import database_url, fresh
from late.errors import ConfigError

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


def setting(key: str) -> Any:
    """Return one value of the setting `LATE`.

    Raises:
        ImproperlyConfigured: `LATE` is not a dictionary, or has a key that is not known.
    """
    given = getattr(settings, "LATE", {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured("LATE must be a dictionary")
    unknown = sorted(map(str, given.keys() - KEYS.keys()))
    if unknown:
        raise ImproperlyConfigured(f"LATE has no {', '.join(unknown)}; it has {', '.join(KEYS)}")
    return given.get(key, KEYS[key])


def make_app() -> App:
    """Make the app whose database is the one that `LATE["DATABASE"]` names. It does not connect.

    Raises:
        ImproperlyConfigured: a setting is wrong, or `late` does not run on the database.
    """
    options = {key.lower(): setting(key) for key in KEYS if key != "DATABASE"}
    try:
        return App(database_url(setting("DATABASE")), wrap=fresh, **options)
    except ConfigError as error:
        raise ImproperlyConfigured(f"LATE: {error}") from error
