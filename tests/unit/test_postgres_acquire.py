"""What becomes of a takeover when an owner goes on settling a shard at the same moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from psycopg import errors

from late.errors import TransactionAborted
from late.model.task import ShardId
from late.store.postgres import journal

QUIET, BUSY = ("g", ShardId(1)), ("g", ShardId(2))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[journal.Shard]]:
    """The transactions that were tried; one with the busy shard in it fails each time."""
    tried: list[list[journal.Shard]] = []

    async def take(connection: Any, worker_id: str, shards: Sequence[journal.Shard]) -> list[Any]:
        tried.append(list(shards))
        if BUSY in shards:
            raise errors.UniqueViolation
        return [(worker_id, shard) for shard in shards]

    monkeypatch.setattr(journal, "_take", take)
    return tried


async def acquire(*shards: journal.Shard) -> list[Any]:
    connection: Any = None
    return list(await journal.acquire(connection, "w", shards))


async def test_the_other_shards_are_taken(asked: list[list[journal.Shard]]) -> None:
    assert await acquire(BUSY, QUIET) == [("w", QUIET)]
    assert asked == [[QUIET, BUSY], [QUIET], *[[BUSY]] * journal.TAKEOVERS]


async def test_nothing_but_a_busy_shard_is_an_abort(asked: list[list[journal.Shard]]) -> None:
    with pytest.raises(TransactionAborted, match="shard 2 in group 'g' goes on settling"):
        await acquire(BUSY)
    assert asked == [[BUSY]] * (1 + journal.TAKEOVERS)


async def test_one_transaction_takes_all_that_is_quiet(asked: list[list[journal.Shard]]) -> None:
    assert await acquire(QUIET) == [("w", QUIET)]
    assert asked == [[QUIET]]
