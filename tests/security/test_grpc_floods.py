"""Floods over gRPC: a stranger's messages are not taken in, and each call has its end."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import late
from late.api import limits
from late.api.access.peer_keys import Keyring
from late.api.fleet import peers
from late.api.grpc.server import RpcServer
from late.api.limits import LOOKAHEAD_BYTES, STREAMS
from late.v1 import queue_pb2
from tests.security.http2 import Http2
from tests.unit.api_kit import KEY, served

UNARY = ("/late.v1.Queue/Enqueue", "/late.v1.Queue/Stats")
METHODS = (*UNARY, "/late.v1.Queue/Consume", f"/{peers.SERVICE}/Take", "/late.v1.Handler/Execute")
OK, CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED = 0, 1, 3, 4
RESOURCE_EXHAUSTED, UNAUTHENTICATED = 8, 16
BEGUN = b"\0" + (3 * 1024 * 1024).to_bytes(4, "big") + b"\x0a" * 2 * 1024 * 1024
"""A message of 3 MiB, two of which come."""
PEER = {"late-peer": peers.password(KEY)}


def message(body: bytes) -> bytes:
    return b"\0" + len(body).to_bytes(4, "big") + body


@asynccontextmanager
async def ports(folder: Path, *, auth: bool) -> AsyncIterator[Callable[[str], int]]:
    """Serve all methods; the port of each."""
    async with served(folder, auth=auth) as it:
        handler = partial(peers.handler, it.service._source, Keyring.of(KEY))
        fleet = RpcServer(None, "127.0.0.1", 0, peers=handler)
        await fleet.start()
        token = "a-token-of-24-characters" if auth else None
        async with late.serve_handlers(it.app, "127.0.0.1:0", token=token) as handlers:
            by_service = {
                "late.v1.Queue": it.rpc.port,
                peers.SERVICE: fleet.port,
                "late.v1.Handler": handlers.port,
            }
            try:
                yield lambda path: by_service[path.split("/")[1]]
            finally:
                await fleet.stop()


@contextmanager
def connection(port: int, quiet_s: float = 120.0) -> Any:
    client = Http2(port, quiet_s)
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("path", METHODS)
async def test_a_stranger_is_refused_before_its_message(tmp_path: Path, path: str) -> None:
    def ask(port: int) -> int | None:
        with connection(port) as client:
            return client.status(client.call(path))

    async with ports(tmp_path, auth=True) as port:
        assert await asyncio.to_thread(ask, port(path)) == UNAUTHENTICATED


@pytest.mark.parametrize("path", METHODS)
async def test_no_message_is_taken_in_before_its_caller_is_admitted(
    tmp_path: Path, path: str
) -> None:
    """The server's loop is held up, as by a flood, so that nobody is refused meanwhile."""
    calls = 8
    async with ports(tmp_path, auth=True) as port:
        with connection(port(path), quiet_s=0.5) as client:
            streams = [client.call(path) for _ in range(calls)]
            sent = sum(client.send(stream, BEGUN) for stream in streams)
        assert sent <= calls * 2 * LOOKAHEAD_BYTES


@pytest.mark.parametrize("path", METHODS)
async def test_an_unfinished_message_has_a_time_limit(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.api.limits.MESSAGE_S", 0.2)
    monkeypatch.setattr("late.api.limits.HEADER_S", 0.2)

    def ask(port: int) -> int | None:
        with connection(port) as client:
            stream = client.call(path, **PEER)
            client.send(stream, BEGUN[:1_000])
            return client.status(stream)

    async with ports(tmp_path, auth=False) as port:
        assert await asyncio.to_thread(ask, port(path)) == DEADLINE_EXCEEDED


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (message(b"\xff\xff\xff\xff\xff"), INVALID_ARGUMENT),
        (b"", INVALID_ARGUMENT),
        (b"\0" + (1 << 30).to_bytes(4, "big") + b"x", RESOURCE_EXHAUSTED),
        (b"\1\0\0\0\4aaaa", None),
        (b"\0\0\0\0\4aa", None),
    ],
    ids=["undecodable", "none", "too large", "compressed by nothing", "torn"],
)
async def test_garbage_gets_a_status_and_no_traceback(
    tmp_path: Path,
    path: str,
    sent: bytes,
    expected: int | None,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.WARNING)

    def ask(port: int) -> tuple[bool, int | None]:
        with connection(port) as client:
            stream = client.call(path, **PEER)
            client.send(stream, sent, end=True)
            status = client.status(stream)
            return stream in client.answers, status

    async with ports(tmp_path, auth=False) as port:
        answered, status = await asyncio.to_thread(ask, port(path))
        assert answered
        assert status != OK
        assert expected in (None, status)
    assert not caplog.records
    assert "Traceback" not in capfd.readouterr().err


async def test_garbage_within_a_stream_ends_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    subscribe = queue_pb2.ConsumeRequest(subscribe=queue_pb2.Subscribe(queues=["payments"]))

    def ask(port: int) -> int | None:
        with connection(port) as client:
            stream = client.call("/late.v1.Queue/Consume")
            client.send(stream, message(subscribe.SerializeToString()) + message(b"\xff\xff"))
            return client.status(stream)

    async with served(tmp_path) as it:
        assert await asyncio.to_thread(ask, it.rpc.port) == INVALID_ARGUMENT
    assert not caplog.records


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"\0" * 65_536])
async def test_another_protocol_is_cut_off(tmp_path: Path, sent: bytes) -> None:
    async with served(tmp_path) as it:
        with socket.create_connection(("127.0.0.1", it.rpc.port)) as stranger:
            stranger.sendall(sent)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{it.rpc.port}") as channel:
                stats = channel.unary_unary(UNARY[1], queue_pb2.StatsRequest.SerializeToString)
                await stats(queue_pb2.StatsRequest(), timeout=120)


async def test_waiting_calls_of_strangers_do_not_cancel_those_of_others(tmp_path: Path) -> None:
    """The server's loop is held up, as by a flood, so that all calls wait in gRPC."""
    async with served(tmp_path, auth=True) as it:
        token = it.token("v", "view")
        await it.service.access.load()
        with ExitStack() as strangers, connection(it.rpc.port) as caller:
            for _ in range(31):
                one = strangers.enter_context(connection(it.rpc.port))
                for _ in range(STREAMS):
                    one.call(UNARY[1])
            streams = [caller.call(UNARY[1], authorization=f"Bearer {token}") for _ in range(12)]
            for stream in streams:
                caller.send(stream, message(b""), end=True)

            def answers() -> list[int | None]:
                return [caller.status(each) for each in streams]

            assert CANCELLED not in await asyncio.to_thread(answers)


def hold_up(seconds: float) -> None:
    """Keep the loop from seeing anything."""
    time.sleep(seconds)


@pytest.mark.parametrize(("unseen_s", "cancels"), [(limits.UNSEEN_S, False), (1.0, True)])
async def test_a_call_that_waits_unseen_has_the_time_of_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unseen_s: float, cancels: bool
) -> None:
    """gRPC would cancel it after 30 s, while its client still waits."""
    assert limits.UNSEEN_S >= 2 * limits.RPC_S_MAX
    monkeypatch.setattr("late.api.limits.UNSEEN_S", unseen_s)
    async with served(tmp_path, auth=True) as it:
        token = it.token("v", "view")
        await it.service.access.load()
        with connection(it.rpc.port) as caller:
            streams = [caller.call(UNARY[1], authorization=f"Bearer {token}") for _ in range(12)]
            for stream in streams:
                caller.send(stream, message(b""), end=True)
            hold_up(3)

            def answers() -> list[int | None]:
                return [caller.status(each) for each in streams]

            assert (CANCELLED in await asyncio.to_thread(answers)) == cancels
