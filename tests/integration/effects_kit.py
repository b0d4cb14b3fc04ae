"""A business table whose rows are the effects that must happen once, on every store."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from late.model.ids import new_id
from late.model.task import Attempt, Record

if TYPE_CHECKING:
    # The workers of the kill tests import this, and need neither pytest nor Alembic.
    from tests.conformance.backends import Backend

TABLE = "create table effect (run varchar(64) primary key, number integer)"


def make_table(backend: Backend, url: str) -> None:
    raw = backend.raw(url)
    raw.execute(TABLE)
    raw.close()


def effects(backend: Backend, url: str) -> list[int]:
    """The numbers of the effects that were committed; one that happened twice is there twice."""
    return [row[0] for row in select(backend, url, "select number from effect order by number")]


def select(backend: Backend, url: str, statement: str) -> list[tuple[Any, ...]]:
    raw = backend.raw(url)
    try:
        return raw.execute(statement)
    finally:
        raw.close()


def effect(number: int) -> str:
    """The statement of one effect; each execution is a row of its own."""
    return f"insert into effect (run, number) values ('{secrets.token_hex(8)}', {number})"


def do(tx: Any, number: int) -> Any:
    """The effect through whatever `ctx.once()` gave; to be awaited where that is async."""
    execute = tx.execute_update if hasattr(tx, "execute_update") else tx.execute
    return execute(effect(number))


def attempt(*, epoch: int = 1, shard: int = 0, group: str = "default") -> Attempt:
    """The first attempt of a task of its own."""
    record = Record(shard, 1, new_id(shard), "default", "charge", b"{}", None, None, 1, 1)
    return Attempt(group, record, 1, 0, epoch, 1)
