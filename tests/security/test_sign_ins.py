"""Wrong tokens: they are told to the operator, slowed down in a flood, and lock nobody out."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from late import events
from late.api.access.sign_ins import BURST, RATE, FailedSignIns, address_of
from late.api.errors import TooMany
from late.api.limits import _CALLERS_MAX
from late.model.access import tokens
from late.model.access.tokens import Token
from late.observability import logs, metrics
from late.v1 import queue_pb2, queue_pb2_grpc
from tests.unit.api_kit import served
from tests.unit.web_kit import page

HERE = "127.0.0.1"
WRONG = "late.ann.not-the-secret"


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The events of failed sign-ins."""
    found: list[tuple[str, dict[str, Any]]] = []
    end = events.default.subscribe(
        lambda event, values: found.append((event.name, dict(values))),
        [events.SIGN_IN_FAILED, events.SIGN_IN_SLOWED],
    )
    yield found
    end()


def failed(guard: FailedSignIns, address: str, count: int) -> int:
    """Fail so often from this address; return how many were slowed down."""
    slowed = 0
    for _ in range(count):
        try:
            guard.add("http", address, "")
        except TooMany:
            slowed += 1
    return slowed


def test_an_address_is_slowed_down_alone_and_for_a_bounded_time() -> None:
    clock = Clock()
    guard = FailedSignIns(clock=clock)
    assert failed(guard, "192.0.2.1", 1_000) == 1_000 - BURST
    with pytest.raises(TooMany) as caught:
        guard.check("192.0.2.1")
    assert 0 < caught.value.retry_after_s <= 1 / RATE
    guard.check("192.0.2.2")
    assert failed(guard, "192.0.2.2", BURST) == 0
    clock.now += 1 / RATE
    guard.check("192.0.2.1")
    assert failed(guard, "192.0.2.1", 2) == 1


def test_a_customer_of_ipv6_does_not_come_from_ever_new_addresses() -> None:
    guard = FailedSignIns(clock=Clock())
    slowed = sum(failed(guard, f"2001:db8::{n:x}", 1) for n in range(1, 101))
    assert slowed == 100 - BURST
    guard.check("2001:db8:0:1::1")
    assert failed(guard, "::ffff:192.0.2.1", BURST) == 0
    with pytest.raises(TooMany):
        guard.check("192.0.2.1")
    assert failed(guard, "not an address" * 100, BURST + 1) == 1
    assert failed(guard, "fe80::1%eth0", BURST + 1) == 1


def test_a_flood_of_addresses_takes_bounded_memory() -> None:
    guard = FailedSignIns(clock=Clock())
    for n in range(_CALLERS_MAX + 1_000):
        failed(guard, f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 1)
    assert len(guard._pace._level) == _CALLERS_MAX


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:5000", "192.0.2.1"),
        ("ipv6:[2001:db8::1]:5000", "2001:db8::1"),
        ("ipv6:%5B2001:db8::1%5D:5000", "2001:db8::1"),
        ("unix:/run/x", "unix:/run/x"),
    ],
)
def test_the_address_of_a_peer_of_grpc(peer: str, address: str) -> None:
    assert address_of(peer) == address


async def test_over_http_guesses_are_slowed_down_and_valid_tokens_are_not(
    tmp_path: Path, told: list[tuple[str, dict[str, Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    registry = metrics.Registry()
    end = metrics.follow(events.default, registry)
    async with served(tmp_path, auth=True) as it:
        good = it.token("ann", "view")
        await it.service.access.load()
        it.service.access.failures = FailedSignIns(clock=Clock())
        answers = []
        with caplog.at_level(logging.DEBUG):
            for n in range(BURST + 5):
                text = WRONG if n % 2 else f"late.nobody{n}.secret{n}"
                it.call.token = text
                answers.append(await it.call("GET", "/v1/queues"))
        assert [answer.status for answer in answers] == [401] * BURST + [429] * 5
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 1 / RATE
        it.call.token = good
        assert (await it.call("GET", "/v1/queues")).status == 200
        it.call.token = None  # Nothing was shown, so nothing has failed.
        assert (await it.call("GET", "/v1/queues")).status == 401
    end()
    assert [name for name, _ in told] == ["sign_in_failed"] * BURST + ["sign_in_slowed"] * 5
    values = {"interface": "http", "address": HERE}
    assert told[0][1] == {**values, "token_name": ""}
    assert told[1][1] == {**values, "token_name": "ann"}
    text = metrics.render(registry).decode()
    assert f'late_sign_ins_failed_total{{interface="http"}} {BURST}' in text
    assert 'late_sign_ins_slowed_total{interface="http"} 5' in text
    assert "secret" not in f"{told} {caplog.text}"


async def test_over_grpc_a_wrong_token_is_told_too(
    tmp_path: Path, told: list[tuple[str, dict[str, Any]]]
) -> None:
    async with served(tmp_path, auth=True) as it:
        it.token("ann", "view")
        await it.service.access.load()
        async with grpc.aio.insecure_channel(f"{HERE}:{it.rpc.port}") as channel:
            stub = queue_pb2_grpc.QueueStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Stats(
                    queue_pb2.StatsRequest(), metadata=(("authorization", f"Bearer {WRONG}"),)
                )
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert told == [
        ("sign_in_failed", {"interface": "grpc", "address": HERE, "token_name": "ann"}),
    ]
    # It is a name and no secret: a line of the log has it.
    assert "token_name" not in logs.MASKED
    assert logs.redact("token_name=ann") == "token_name=ann"


async def test_the_form_for_a_token_is_closed_for_a_while(
    tmp_path: Path, told: list[tuple[str, dict[str, Any]]]
) -> None:
    text, digest = tokens.make("ann")
    kept = Token("ann", digest, ("view",), ("*",))
    clock = Clock()
    async with page(tmp_path, tokens=[kept]) as it:
        access: Any = it.site._context.gate
        access._access.failures = FailedSignIns(clock=clock)

        async def sign_in(secret: str) -> int:
            token = (await it.get("login")).text.split('name="token" value="')[1].split('"')[0]
            return (await it.post("login", {"secret": secret}, token=token)).status_code

        assert [await sign_in(WRONG) for _ in range(BURST + 1)] == [401] * BURST + [429]
        assert await sign_in(text) == 429
        clock.now += 1 / RATE
        assert await sign_in(text) == 303
        # Who has signed in goes on, whatever comes from the same address.
        assert [await sign_in(WRONG) for _ in range(2)] == [401, 429]
        assert (await it.get("queues")).status_code == 200
    assert told[0] == (
        "sign_in_failed",
        {"interface": "page", "address": HERE, "token_name": "ann"},
    )
