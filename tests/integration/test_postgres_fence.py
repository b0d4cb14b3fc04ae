"""The fence at its narrowest: an owner that looks, is held up, and writes after a takeover."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from late.model.task import ShardId
from late.store.base import Settlement, SettleResult
from tests.integration.postgres_kit import PATIENCE_S, database, open_store

WAITING = (
    "select count(*) from pg_locks where relation = 'late_settlement'::regclass and not granted"
)
TAKE_OVER = """
with lease as (update late_lease set owner = 'w2', epoch = epoch + 1 returning *)
insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch, owner, cursor,
                             open, settled_at_us)
select l.consumer_group, l.shard_id, s.seq + 1, 'takeover', l.epoch, l.owner, s.cursor, s.open, 1
  from lease l join late_settlement s using (consumer_group, shard_id)
"""


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


async def test_a_settlement_that_is_held_up_before_it_writes_is_fenced(url: str) -> None:
    store = await open_store(url)
    [lease] = await store.acquire("w1", [("default", ShardId(0))])
    late = Settlement(
        "late", lease.group, lease.shard_id, lease.seq + 1, lease.epoch, lease.owner,
        lease.cursor, (),
    )  # fmt: skip
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as watching:
        async with (
            await psycopg.AsyncConnection.connect(url) as successor,
            asyncio.timeout(PATIENCE_S),
        ):
            # Nobody can write to the journal; whoever looks before it writes has looked by now.
            await successor.execute("lock table late_settlement in exclusive mode")
            settling = asyncio.create_task(store.settle([late]))
            while not settling.done():
                [(waiting,)] = await (await watching.execute(WAITING)).fetchall()
                if waiting:
                    break
                await asyncio.sleep(0.005)
            await successor.execute(TAKE_OVER)
            await successor.commit()
            [result] = await settling
        rows = await (await watching.execute("select seq, owner from late_settlement")).fetchall()
    await store.close()
    assert result is SettleResult.FENCED
    assert sorted(rows) == [(lease.seq, "w1"), (lease.seq + 1, "w2")]
