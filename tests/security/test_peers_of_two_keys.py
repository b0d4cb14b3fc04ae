"""Processes that do not have the same keys at one moment: honest ones find each other, a removed
key opens nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from late.api.access.peer_keys import Keyring
from late.api.errors import Unavailable
from late.api.fleet import peers
from late.api.fleet.executor import Executor
from late.api.fleet.peers import Peer
from late.api.grpc.server import RpcServer
from late.api.pull.deliveries import Delivery, TakeRequest
from late.api.pull.receipts import Receipt, seal
from late.model.deployment_keys import SPREAD_US, DeploymentKey
from tests.unit.dispatcher_kit import attempt

OLD, NEW = DeploymentKey(1, b"o" * 32, 0), DeploymentKey(2, b"n" * 32, 0)
ASK = TakeRequest(
    "default", ("payments",), 1, wait_s=30, visibility_s=5, consumer="c~1", names=None
)
RECEIPT = Receipt("w-1", "payments", "default", 0, 1, "t", 1, 1, 2**60)


def keyring(known: Sequence[DeploymentKey], stored: Sequence[DeploymentKey]) -> Keyring:
    """The keys of a process that knows other ones than the database has."""
    made = Keyring(lambda: list(stored), lambda: SPREAD_US)
    made._keys = list(known)
    return made


class Source:
    """One task, for whoever asks when it is there."""

    queues = groups = frozenset({"payments", "default"})

    def __init__(self) -> None:
        self.asked, self.there = asyncio.Event(), asyncio.Event()
        self.dropped: list[str] = []

    async def take(self, ask: TakeRequest) -> list[Delivery]:
        self.asked.set()
        await self.there.wait()
        return [Delivery(attempt(), b"{}", {}, seal(OLD.value, RECEIPT), 0)]

    async def drop(self, consumer: str) -> None:
        self.dropped.append(consumer)


@asynccontextmanager
async def between(server: Keyring, client: Keyring) -> AsyncIterator[tuple[Source, Peer]]:
    source: Any = Source()
    listening = RpcServer(None, "127.0.0.1", 0, peers=partial(peers.handler, source, server))
    await listening.start()
    peer = Peer("w-1", f"127.0.0.1:{listening.port}", client, None)
    try:
        yield source, peer
    finally:
        await peer.close()
        await listening.stop()


@pytest.mark.parametrize("stored", [[OLD, NEW], [NEW]], ids=["rotated", "at once"])
async def test_a_process_that_was_paused_knows_who_has_the_new_key(
    stored: list[DeploymentKey],
) -> None:
    async with between(keyring([OLD], stored), keyring([NEW], stored)) as (_, peer):
        await peer.describe()


async def test_a_process_that_was_paused_is_known_though_its_key_is_gone() -> None:
    async with between(keyring([NEW], [NEW]), keyring([OLD], [NEW])) as (_, peer):
        await peer.describe()


async def test_a_removed_key_opens_nothing() -> None:
    async with between(keyring([NEW], [NEW]), Keyring.of(OLD.value)) as (_, peer):
        with pytest.raises(Unavailable, match="UNAUTHENTICATED"):
            await peer.describe()


async def test_who_waits_with_a_key_that_is_then_removed_gets_no_task() -> None:
    keys = keyring([OLD], [NEW])
    async with between(keys, Keyring.of(OLD.value)) as (source, peer):
        waiting = asyncio.create_task(peer.take(ASK))
        await source.asked.wait()
        await keys.load()
        source.there.set()
        with pytest.raises(Unavailable, match="UNAUTHENTICATED"):
            await waiting
        assert source.dropped == [ASK.consumer]


async def test_a_receipt_of_a_removed_key_does_not_end_an_executor() -> None:
    class Dispatcher:
        free = 1

        def submit(self, attempts: Sequence[Any]) -> None:
            if attempts:
                done.set()

    class Fleet:
        keys = iter([OLD, NEW])

        async def take(self, ask: TakeRequest) -> list[Delivery]:
            key = next(self.keys, None)
            if key is None:
                await asyncio.Event().wait()
            return [Delivery(attempt(), b"{}", {}, seal(key.value, RECEIPT), 0)]

    done = asyncio.Event()
    executor: Any = object.__new__(Executor)
    executor.name, executor._queues, executor._names = "x-1", ("payments",), frozenset[str]()
    executor.dispatcher, executor._fleet, executor._held = Dispatcher(), Fleet(), {}
    executor._keys, executor._freed = keyring([NEW], [NEW]), asyncio.Event()
    fetching = asyncio.create_task(executor._fetch("default"))
    waiting = asyncio.create_task(done.wait())
    async with asyncio.timeout(120):
        await asyncio.wait({fetching, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert not fetching.done()
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    assert len(executor._held) == 1
