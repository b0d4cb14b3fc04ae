"""Queues that an operator has deleted: a mark in `late_meta` says when.

A deleted queue is left out of a status while nothing in it is younger than its mark. A task that is
enqueued later brings it back by itself. A change of its knobs removes the mark.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, delete, insert

from late.schema.tables import meta

KEY = "queue_gone/"
"""The beginning of the keys of the marks."""


def mark(connection: Connection, name: str, at_us: int) -> None:
    """Write the mark of a queue."""
    unmark(connection, name)
    connection.execute(insert(meta).values(key=KEY + name, value=str(at_us)))


def unmark(connection: Connection, name: str) -> None:
    """Remove the mark of a queue, if it has one."""
    connection.execute(delete(meta).where(meta.c.key == KEY + name))


def marked(facts: Mapping[str, str]) -> dict[str, int]:
    """Return queue -> the time of its deletion, from the rows of `late_meta`. Pure."""
    return {
        key.removeprefix(KEY): int(value) for key, value in facts.items() if key.startswith(KEY)
    }
