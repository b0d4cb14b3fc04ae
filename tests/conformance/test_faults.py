"""Kills, cancellations, closing, and the errors that come out."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest

from late.control import Control
from late.errors import SchemaMismatch, StoreClosed, StoreError
from late.model.task import Epoch, ShardId
from late.schema import migrate
from late.schema.version import SCHEMA_VERSION
from late.store import open_store
from late.store.base import Lease, SettleResult, Store
from tests.conformance.backends import Backend, Raw
from tests.conformance.kit import (
    BEGINNING,
    Owner,
    dead,
    open_of,
    own,
    parked,
    read_all,
    record,
    task,
    worker,
)
from tests.conformance.victim import TIMERS, kill, start

SHARD = ShardId(0)


async def test_a_producer_killed_between_two_writes_leaves_no_half(
    store: Store, backend: Backend, url: str, raw: Raw
) -> None:
    raw.execute("create table trips (id integer primary key)")
    kill(await asyncio.to_thread(start, "produce", backend.name, url))

    fence = task()
    raw.insert(fence)
    records, _ = await read_all(store, [fence])

    assert [int(r.payload) for r in records[:-1]] == [0, 1, 2]
    assert raw.execute("select id from trips order by id") == [(0,), (1,), (2,)]


@pytest.mark.parametrize("seed", range(3))
async def test_an_owner_killed_while_settling_leaves_no_half(
    store: Store, url: str, raw: Raw, seed: int
) -> None:
    victim = await asyncio.to_thread(start, "settle", url)
    count = "select count(*) from late_settlement"
    while raw.execute(count)[0][0] < 3:  # noqa: ASYNC110 - another process's progress
        await asyncio.sleep(0.005)
    # Some moment in a stream of commits; whichever it is, the journal must tell the truth.
    await asyncio.sleep(random.Random(seed).uniform(0.0, 0.05))
    kill(victim)

    journal = "select seq from late_settlement order by seq"
    rows: list[tuple] | None = None
    # What the victim had sent when it died may still commit: look until nothing moved meanwhile.
    while rows is None or rows != raw.execute(journal):
        rows = raw.execute(journal)
        timers = Counter(due for (due,) in raw.execute("select due_at_us from late_timer"))
        letters = Counter(n for (n,) in raw.execute("select attempts from late_dead"))

    sequence = [seq for (seq,) in rows]
    assert sequence == list(range(1, len(rows) + 1))
    settled = sequence[1:]  # the first one is the takeover
    assert settled
    assert timers == dict.fromkeys(settled, TIMERS)
    assert letters == dict.fromkeys(settled, 1)


async def test_a_cancelled_settle_leaves_the_store_usable(
    store: Store, other_store: Store, raw: Raw
) -> None:
    owner = await own(store)
    settlement = owner.next(parked=(parked(5),))
    # Somebody else is in the middle of writing the same row: the call has to wait for them.
    raw.begin()
    raw.execute(
        "insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch, owner,"
        " cursor, open, settled_at_us) values ('default', 0, ?, 'rival', 9, 'w9', '', '[]', 1)",
        settlement.seq,
    )
    waiting = asyncio.create_task(store.settle([settlement]))
    await asyncio.wait([waiting], timeout=0.2)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    raw.rollback()

    assert await store.settle([settlement]) == [SettleResult.SETTLED]
    assert len(await store.due("default", SHARD, until_us=9, limit=9)) == 1
    assert await other_store.settle([settlement]) == [SettleResult.SETTLED]


LEASE = Lease("default", SHARD, "w1", Epoch(1), 0, BEGINNING, (), {})

CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "read": lambda store: store.read({SHARD: BEGINNING}, 10),
    "fetch": lambda store: store.fetch(SHARD, [open_of(record())]),
    "due": lambda store: store.due("default", SHARD, until_us=1, limit=1),
    "settle": lambda store: store.settle([Owner(store, LEASE).next()]),
    "prune": lambda store: store.prune(journal_keep_s=1),
    "heartbeat": lambda store: store.heartbeat(worker(), 1),
    "acquire": lambda store: store.acquire("w1", [("default", SHARD)]),
    "release": lambda store: store.release([LEASE]),
    "now": lambda store: store.now(),
}


@pytest.mark.parametrize("name", CALLS)
async def test_any_call_may_be_cancelled(store: Store, raw: Raw, name: str) -> None:
    for yields in (0, 1, 2):
        call = asyncio.ensure_future(CALLS[name](store))
        for _ in range(yields):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])

    new = task()
    raw.insert(new)
    await read_all(store, [new])
    await store.heartbeat(worker("w5"), 60)
    assert [lease.owner for lease in await store.acquire("w5", [("default", ShardId(5))])] == ["w5"]


@pytest.mark.parametrize("name", [*CALLS, "open"])
async def test_closed_is_closed(store: Store, name: str) -> None:
    await store.close()
    await store.close()

    call = CALLS.get(name, lambda store: store.open())
    with pytest.raises(StoreClosed):
        await call(store)


async def test_closing_before_opening_is_fine(url: str) -> None:
    store = open_store(url)
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed):
        await store.now()


async def test_opening_twice_is_fine(store: Store) -> None:
    await asyncio.gather(store.open(), store.open())
    assert await store.now() > 0


async def test_calls_run_side_by_side(store: Store, raw: Raw) -> None:
    new = [task(shard) for shard in range(4)]
    raw.insert(*new)
    owners = [await own(store, shard) for shard in range(4)]

    results = await asyncio.gather(
        *(read_all(store, [t]) for t in new),
        *(owner.settle() for owner in owners),
        store.now(),
        store.prune(journal_keep_s=1),
    )

    assert [len(records) for records, _ in results[:4]] == [1] * 4
    assert results[4:8] == [SettleResult.SETTLED] * 4


# --- errors --------------------------------------------------------------------------------------


async def test_a_missing_schema_names_the_remedy(empty_url: str) -> None:
    store = open_store(empty_url)
    with pytest.raises(SchemaMismatch, match="late migrate"):
        await store.open()
    await store.close()


@pytest.mark.parametrize(("version", "remedy"), [("0000", "late migrate"), ("9999", "upgrade")])
async def test_another_schema_is_refused(url: str, raw: Raw, version: str, remedy: str) -> None:
    both = "key in ('schema_version', 'schema_oldest')"
    raw.execute(f"update late_meta set value = ? where {both}", version)
    store = open_store(url)
    with pytest.raises(SchemaMismatch, match=remedy):
        await store.open()
    await store.close()


@pytest.mark.parametrize(("oldest", "taken"), [(SCHEMA_VERSION, True), ("9998", False)])
async def test_a_newer_schema_is_used_if_it_takes_this_version(
    url: str, raw: Raw, oldest: str, taken: bool
) -> None:
    raw.execute("update late_meta set value = ? where key = 'schema_version'", "9999")
    raw.execute("update late_meta set value = ? where key = 'schema_oldest'", oldest)
    store = open_store(url)
    with nullcontext() if taken else pytest.raises(SchemaMismatch, match="upgrade"):
        await store.open()
        with Control(url) as control:
            assert control.status.read().schema_version == "9999"
        assert migrate.upgrade(url) == []
    await store.close()


async def test_a_table_that_went_away_is_our_error(store: Store, raw: Raw) -> None:
    raw.execute("alter table late_worker rename to was_worker")

    with pytest.raises(StoreError) as failed:
        await store.heartbeat(worker(), 60)

    assert isinstance(failed.value, SchemaMismatch)
    assert not failed.value.transient
    assert failed.value.__cause__ is not None, "the driver's error is chained"
    raw.execute("alter table was_worker rename to late_worker")
    assert (await store.heartbeat(worker(), 60)).workers == (worker(),)


async def test_a_failing_settlement_leaves_nothing(store: Store, raw: Raw) -> None:
    """An error after the journal row: the whole transaction is gone, and the store goes on."""
    owner = await own(store)
    raw.execute("alter table late_dead rename to was_dead")
    settlement = owner.next(parked=(parked(5),), dead=(dead(),))
    with pytest.raises(StoreError):
        await store.settle([settlement])
    assert await store.due("default", SHARD, until_us=9, limit=9) == []

    raw.execute("alter table was_dead rename to late_dead")
    assert await store.settle([settlement]) == [SettleResult.SETTLED]
