"""The database that all parts of `Control` share."""

from __future__ import annotations

from sqlalchemy import Engine

from late.schema.engine import make_engine, reading, shown
from late.schema.migrate import version_of
from late.schema.version import check


class Database:
    """One engine, whose schema is looked at once before it is used."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.unchecked = make_engine(url)
        """The engine for questions that need none of our tables."""
        self._checked = False

    @property
    def shown(self) -> str:
        """The URL for people: without its password."""
        return shown(self.url)

    @property
    def engine(self) -> Engine:
        """The engine; nothing is connected before the first call.

        Raises:
            SchemaMismatch: the schema is missing, older or newer; the message says what to do.
        """
        if not self._checked:
            with reading(self.unchecked) as connection:
                check(version_of(connection), where=self.shown)
            self._checked = True
        return self.unchecked


class Part:
    """One field of `Control`: questions and commands about one subject."""

    def __init__(self, database: Database) -> None:
        self._database = database
