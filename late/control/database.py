"""The database that all parts of `Control` share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Engine

from late.schema.engine import make_engine, reading, shown
from late.schema.migrate import check_schema, version_of
from late.schema.version import SCHEMA_VERSION

P = ParamSpec("P")
R = TypeVar("R")


class Database:
    """One engine, whose schema is checked once before it is used."""

    def __init__(self, url: str, *, stale_s: float = 0.0) -> None:
        self.url = url
        self.unchecked = make_engine(url, stale_s=stale_s)
        """The engine for queries that need no table of `late`."""
        self._checked = False

    @property
    def engine(self) -> Engine:
        """The engine. It connects at the first use.

        Raises:
            SchemaMismatch: the schema is missing, older or too new; the message says what to do.
        """
        if not self._checked:
            with reading(self.unchecked) as connection:
                if version_of(connection) != SCHEMA_VERSION:
                    check_schema(connection, where=shown(self.url))
            self._checked = True
        return self.unchecked


class Part:
    """The base of each field of `Control`: the queries and commands of one subject."""

    def __init__(self, database: Database) -> None:
        self._database = database


def on_engine(work: Callable[Concatenate[Engine, P], R]) -> Callable[Concatenate[Part, P], R]:
    """Make a method of a `Part` of a function that takes an engine first."""

    @wraps(work)
    def method(part: Part, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return work(part._database.engine, *args, **kwargs)

    return method
