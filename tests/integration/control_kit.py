"""What the tests of the control plane share: ways to write behind its back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, text

from late import outbox
from late.schema.engine import make_engine, writing
from late.task import NewTask


@contextmanager
def transaction(url: str) -> Iterator[Connection]:
    """A transaction of somebody else's, and nothing left open behind it."""
    engine = make_engine(url)
    try:
        with writing(engine) as connection:
            yield connection
    finally:
        engine.dispose()


def execute(url: str, statement: str, **values: Any) -> None:
    with transaction(url) as connection:
        connection.execute(text(statement), values)


def rows(url: str, statement: str, **values: Any) -> list[Any]:
    with transaction(url) as connection:
        return [tuple(row) for row in connection.execute(text(statement), values)]


def insert(url: str, *tasks: NewTask) -> None:
    """One transaction of a producer."""
    with transaction(url) as connection:
        outbox.insert(connection, tasks)
