"""Calls of other processes that end without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from late.api.access.peer_keys import Keyring
from late.api.errors import Unavailable
from late.api.fleet.peers import Peer


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    made = Peer("w-1", "127.0.0.1:1", Keyring.of(b"k" * 32), None)
    yield made
    await made.close()


async def test_a_channel_that_is_closed_under_a_call_is_a_peer_that_left(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def closed(*_: object, **__: object) -> None:
        raise asyncio.CancelledError  # as gRPC does it

    monkeypatch.setattr(peer, "_drop", closed)
    with pytest.raises(Unavailable, match="its channel was closed"):
        await peer.drop("somebody")


async def test_who_is_cancelled_in_a_call_is_cancelled(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calling = asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        calling.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(peer, "_drop", never)
    call = asyncio.create_task(peer.drop("somebody"))
    await calling.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
