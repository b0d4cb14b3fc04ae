"""A new key of peers and receipts, while processes run and consumers hold receipts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from late.api.access import peer_keys
from late.api.pull.receipts import UnknownReceipt, unseal
from late.control import Control
from late.model import deployment_keys
from tests.integration.serve_kit import Serving, fleet
from tests.security.logins import made
from tests.unit.cli_kit import Cli, cli

__all__ = ["cli"]


@pytest.fixture
def url() -> Iterator[str]:
    with made() as urls:
        yield urls["owner"]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_keys, "LOAD_EVERY_S", 0.05)
    monkeypatch.setattr(deployment_keys, "SPREAD_US", 300_000)


async def rotated(url: str, *, at_once: bool = False) -> bytes:
    def work() -> bytes:
        with Control(url) as control:
            control.tokens.rotate(at_once=at_once)
            return max(control.tokens.peer_keys(), key=lambda key: key.number).value

    return await asyncio.to_thread(work)


async def sealed_with(it: Serving, key: bytes) -> str:
    """Receive new tasks until the receipt of one is sealed with `key`."""
    async with asyncio.timeout(120):
        while True:
            await it.put()
            for task in await it.receive(visibility_s=15):
                receipt = str(task["receipt"])
                try:
                    unseal([key], receipt)
                except UnknownReceipt:
                    await ack(it, receipt)  # or the stop waits for it
                    continue
                return receipt


async def ack(it: Serving, receipt: str) -> int:
    return (await it.call("POST", "/v1/ack", {"receipt": receipt})).status


async def test_receipts_of_before_stay_valid_and_new_ones_follow(url: str) -> None:
    async with fleet(url) as it:
        await it.put()
        (task,) = await it.receive(visibility_s=60)
        key = await rotated(url)
        fresh = await sealed_with(it, key)
        assert await ack(it, str(task["receipt"])) < 300
        assert await ack(it, fresh) < 300


def test_only_the_tables_owner_rotates(cli: Cli) -> None:
    with made() as logins:
        for role in ("worker", "operator", "viewer", "enqueuer"):
            told = cli.refused("keys", "rotate", "--at-once", "--url", logins[role], code=1)
            assert "permission denied" in told
        with Control(logins["worker"]) as control:  # its rights hold for the new column too
            (key,) = control.tokens.peer_keys()
        assert key.number == 1
        assert key.value.hex() not in told


async def test_a_rotation_at_once_voids_what_was_given_out(url: str) -> None:
    async with fleet(url) as it:
        await it.put()
        (task,) = await it.receive(visibility_s=15)
        key = await rotated(url, at_once=True)
        fresh = await sealed_with(it, key)
        assert await ack(it, str(task["receipt"])) >= 400
        assert await ack(it, fresh) < 300
