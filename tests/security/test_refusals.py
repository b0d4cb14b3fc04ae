"""Refused connections are counted by port and reason, and told in few lines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from late import events
from late.api.access.connections import bound_of
from late.api.http import routes
from late.api.http.uvicorn_server import HttpServer, Tls
from late.events import Emitter
from late.observability import metrics
from late.worker.refusals import TOLD_EVERY_S, Refusals
from late.worker.watch.health import CONNECTIONS_MAX, Health, State
from tests.security.test_idle_connections import GET, MOST, flood
from tests.unit.api_kit import served
from tests.unit.test_access import certificate

RECEIVE = (
    b"POST /v1/queues/payments/receive HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 13\r\n\r\n"
    b'{"wait_s": 9}'
)


@pytest.fixture
def refused() -> Iterator[Counter[tuple[str, str]]]:
    """The refusals by port and reason."""
    found: Counter[tuple[str, str]] = Counter()

    def add(_: events.Event, values: object) -> None:
        assert isinstance(values, dict)
        found[values["port"], values["reason"]] += values["count"]

    end = events.default.subscribe(add, [events.CONNECTION_REFUSED])
    yield found
    end()


async def until(found: Counter[tuple[str, str]], port: str, reason: str, count: int) -> None:
    async with asyncio.timeout(120):
        while found[port, reason] < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_flood_of_refusals_is_one_line_a_minute_and_reason() -> None:
    emitter, now, lines = Emitter(), [0.0], []
    registry = metrics.Registry()
    metrics.follow(emitter, registry)
    emitter.subscribe(lambda _, values: lines.append(dict(values)), [events.REFUSALS])
    refusals = Refusals("http", clock=lambda: now[0], emitter=emitter)
    for _ in range(1_000):
        refusals.add("total")
    refusals.add("idle")
    now[0] = TOLD_EVERY_S
    refusals.add("total", 2)
    tags = {"port": "http", "reason": "total"}
    assert lines == [
        {**tags, "count": 1},
        {"port": "http", "reason": "idle", "count": 1},
        {**tags, "count": 1_001},
    ]
    text = metrics.render(registry).decode()
    assert 'late_connections_refused_total{port="http",reason="total"} 1002' in text


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("late.api.grpc.server.limits.connections_of", lambda files: MOST)
    monkeypatch.setattr("late.api.http.uvicorn_server.connections_of", lambda files: MOST)


@pytest.mark.usefixtures("few")
async def test_http_counts_those_of_one_address_and_the_idle_ones(
    tmp_path: Path, refused: Counter[tuple[str, str]]
) -> None:
    async with served(tmp_path) as it:
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, flood(it.call.port, MOST, GET))
            await until(refused, "http", "idle", MOST - bound_of("127.0.0.1", MOST))
        with ExitStack() as stack:  # each waits for tasks, so none of them makes room
            async with asyncio.timeout(120):
                while not refused["http", "address"]:
                    one = flood(it.call.port, 1, RECEIVE)
                    await asyncio.to_thread(stack.enter_context, one)


@pytest.mark.usefixtures("few")
async def test_grpc_counts_the_strangers_that_it_ends(
    tmp_path: Path, refused: Counter[tuple[str, str]]
) -> None:
    async with served(tmp_path) as it:
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, flood(it.rpc.port, MOST // 2))
            await until(refused, "grpc", "address", MOST // 4)


async def test_a_handshake_that_does_not_end_is_counted(
    tmp_path: Path, refused: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.api.http.acceptor.HEADER_S", 0.2)
    certificate(tmp_path, "localhost")
    tls = Tls(str(tmp_path / "localhost.pem"), str(tmp_path / "localhost.key"))
    server = HttpServer(routes.make(None), "127.0.0.1", 0, tls=tls)
    await server.start()
    try:
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, flood(server.port, 3))
            await until(refused, "http", "handshake", 3)
    finally:
        await server.stop()


async def test_the_health_port_counts_those_that_wait_for_nothing(
    refused: Counter[tuple[str, str]],
) -> None:
    health = Health("127.0.0.1", 0, lambda: State("w", live=True, ready=True))
    answering = asyncio.create_task(health.run())
    try:
        with ExitStack() as stack:
            many = flood(health.port, CONNECTIONS_MAX + 5, GET[:10])
            await asyncio.to_thread(stack.enter_context, many)
            await until(refused, "health", "idle", 5)
    finally:
        answering.cancel()
        await asyncio.wait({answering})
        health.close()
