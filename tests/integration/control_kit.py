"""What the tests of the control plane share: ways to write behind its back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Table, delete, select, text, true
from sqlalchemy import insert as insert_into

from late import outbox
from late.model.task import NewTask
from late.schema.engine import make_engine, reading, write, writing


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
    engine = make_engine(url)
    try:
        write(engine, lambda connection: connection.execute(text(statement), values))
    finally:
        engine.dispose()


def add_worker(url: str, name: str = "w1") -> None:
    """Insert the row of a worker that is alive."""
    execute(
        url,
        "insert into late_worker (worker_id, expires_at_us, started_at_us, address,"
        " consumer_groups, capacity, version) values (:name, :until, 0, 'host:1', '[]', 1, '0')",
        name=name,
        until=2**60,
    )


def rows(url: str, statement: str, **values: Any) -> list[Any]:
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            return [tuple(row) for row in connection.execute(text(statement), values)]
    finally:
        engine.dispose()


def rekey(url: str, table: Table, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change columns of a table's key in every row: Spanner has no update of them."""
    with transaction(url) as connection:
        found = [dict(row._mapping) for row in connection.execute(select(table))]
        connection.execute(delete(table).where(true()))
        connection.execute(insert_into(table), [row | change(row) for row in found])


def insert(url: str, *tasks: NewTask) -> None:
    """One transaction of a producer."""
    with transaction(url) as connection:
        outbox.insert(connection, tasks)
