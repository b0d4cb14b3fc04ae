"""Notices of changes of the fleet: each change is told of, and a calm worker sees it by that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

import late
from late.config import WorkerConfig
from late.control import Control
from late.model.ids import new_id
from late.model.offers import Offer, Offered, OfferKey
from late.model.task import ShardId
from late.store.postgres.store import PostgresStore
from late.store.postgres.wake_ups import PostgresWakeUps
from late.worker.worker import Worker
from tests.conformance.kit import counting
from tests.integration.postgres_kit import open_store
from tests.integration.waking_kit import database, listening, nothing_heard, until

TTL_S = 60.0
SHARD = ("default", ShardId(0))
Change = Callable[[PostgresStore], Awaitable[object]]


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        yield made


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    made = await open_store(url)
    yield made
    await made.close()


async def join(store: PostgresStore) -> None:
    await store.heartbeat(counting("joins"), TTL_S)


async def leave(store: PostgresStore) -> None:
    await store.heartbeat(counting("me"), 0)


async def grant(store: PostgresStore) -> None:
    assert await store.acquire("me", [SHARD])


async def renew(store: PostgresStore) -> None:
    await store.heartbeat(counting("me"), TTL_S)


@pytest.mark.parametrize("change", [join, leave, grant], ids=lambda each: each.__name__)
async def test_each_change_of_the_fleet_is_told_of(
    change: Change, store: PostgresStore, url: str
) -> None:
    told: asyncio.Queue[None] = asyncio.Queue()
    await renew(store)
    made = PostgresWakeUps(url, prepared=True)
    async with listening(made, changed=lambda: told.put_nowait(None)) as commits:
        await renew(store)
        await nothing_heard(commits, made)
        assert told.empty(), "a renewal is no change"
        await change(store)
        async with asyncio.timeout(120):
            await told.get()
        assert await nothing_heard(commits, made), "it is no commit of a task"


async def test_a_release_is_told_of(store: PostgresStore, url: str) -> None:
    told: asyncio.Queue[None] = asyncio.Queue()
    await renew(store)
    (lease,) = await store.acquire("me", [SHARD])
    made = PostgresWakeUps(url, prepared=True)
    async with listening(made, changed=lambda: told.put_nowait(None)):
        await store.release([lease])
        async with asyncio.timeout(120):
            await told.get()


async def test_an_offer_is_told_of(store: PostgresStore, url: str) -> None:
    told: asyncio.Queue[None] = asyncio.Queue()
    made = PostgresWakeUps(url, prepared=True)
    key = OfferKey("default", 0, new_id(0))
    async with listening(made, changed=lambda: told.put_nowait(None)):
        offer = Offer(key, "me", 1, Offered("mail", "send", 1, 1, 0, 0))
        with Control(url.replace("postgresql:", "postgresql+psycopg:")) as control:
            await asyncio.to_thread(control.offers.put, [offer])
        async with asyncio.timeout(120):
            await told.get()


async def test_a_calm_worker_sees_a_join_long_before_its_next_heartbeat(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for minutes: only the notice brings its next look in the test's time."""
    monkeypatch.setattr("late.tailer.beat_pace.CALM_SHARE", 10_000.0)
    monkeypatch.setattr("late.tailer.beat_pace.CALM_AFTER_S", 4.0)
    settings = WorkerConfig(lease_ttl_s=2_000.0, heartbeat_s=1.0, waking="on", grace_s=5.0)
    workers = [Worker(late.App(url, shards=2), settings=settings) for _ in range(2)]
    first, second = workers
    await first.start()
    try:
        await until(lambda: first.heartbeat._pace.pause_s(asyncio.get_running_loop().time()) > 100)
        await asyncio.sleep(2.0)  # a pause of the usual pace may still be under way
        await second.start()
        await until(lambda: first.keeper.others("default"))
        await until(lambda: second.keeper.leases)
    finally:
        for worker in reversed(workers):
            await worker.stop()
