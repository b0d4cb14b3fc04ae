"""Idle connections lock nobody out: not of the same port, of another one, or of the probes."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import grpc
import pytest

from late.api.http import routes
from late.api.http.uvicorn_server import HttpServer, Tls
from late.v1 import queue_pb2
from tests.security.http2 import Http2
from tests.support import sqlite
from tests.unit.api_kit import Client, served
from tests.unit.test_access import certificate

STATS = "/late.v1.Queue/Stats"
CONSUME = "/late.v1.Queue/Consume"
MOST = 40
GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
FILES = 768
"""For the server of all floods: fewer than the connections that come."""


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("late.api.limits.connections_of", lambda files: MOST)
    monkeypatch.setattr("late.api.http.uvicorn_server.connections_of", lambda files: MOST)


@contextmanager
def flood(port: int, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open `count` connections, as far as the server takes them, and say `sent` on each."""
    with ExitStack() as open_now:
        made = []
        for _ in range(count):
            one = socket.socket()
            open_now.enter_context(closing(one))
            one.settimeout(5)
            try:
                one.connect(("127.0.0.1", port))
                one.sendall(sent)
            except OSError:
                continue
            made.append(one)
        yield made


def is_closed(one: socket.socket) -> bool:
    try:
        while one.recv(65_536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize("sent", [b"", GET, GET[:20]], ids=["silent", "kept", "half"])
async def test_http_has_room_beside_idle_connections(tmp_path: Path, sent: bytes) -> None:
    async with served(tmp_path) as it:
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, flood(it.call.port, 3 * MOST, sent))
            for _ in range(5):
                assert (await it.call("GET", "/livez")).status == 200


async def test_a_waiting_consumer_stays_in_a_flood_over_http(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        waiting = asyncio.create_task(it.call("POST", "/v1/queues/payments/receive", {"wait_s": 2}))
        await it.rig.room()
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, flood(it.call.port, 3 * MOST, GET))
            assert (await waiting).status == 200


async def test_a_silent_handshake_of_https_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.api.http.acceptor.HEADER_S", 0.3)
    certificate(tmp_path, "localhost")
    tls = Tls(str(tmp_path / "localhost.pem"), str(tmp_path / "localhost.key"))
    server = HttpServer(routes.make(None), "127.0.0.1", 0, tls=tls)
    await server.start()
    try:
        with ExitStack() as stack:
            made = await asyncio.to_thread(stack.enter_context, flood(server.port, 3))
            for one in made:
                one.settimeout(20)
                assert await asyncio.to_thread(is_closed, one)
    finally:
        await server.stop()


async def test_a_silent_handshake_of_grpc_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.api.limits.HEADER_S", 0.3)
    async with served(tmp_path) as it:
        with ExitStack() as stack:
            made = await asyncio.to_thread(stack.enter_context, flood(it.rpc.port, 3))
            for one in made:
                one.settimeout(20)
                assert await asyncio.to_thread(is_closed, one)


async def test_strangers_make_room_for_callers_of_grpc(tmp_path: Path) -> None:
    """A consumer keeps its stream, and new callers come in, while strangers hold connections."""
    async with served(tmp_path, auth=True) as it:
        token = {"metadata": (("authorization", f"Bearer {it.token('c', 'consume')}"),)}
        await it.service.access.load()
        at = f"127.0.0.1:{it.rpc.port}"
        own = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(at, options=own) as channel:
            consume = channel.stream_stream(
                CONSUME,
                queue_pb2.ConsumeRequest.SerializeToString,
                queue_pb2.ConsumeResponse.FromString,
            )
            stream = consume(**token)
            subscribe = queue_pb2.Subscribe(queues=["payments"])
            await stream.write(queue_pb2.ConsumeRequest(subscribe=subscribe))
            assert (await stream.read()).HasField("subscribed")

            def strangers() -> list[Http2]:
                made = []
                for _ in range(3 * MOST):
                    one = Http2(it.rpc.port)
                    one.call(STATS)  # it is refused: there is no token
                    made.append(one)
                return made

            held = await asyncio.to_thread(strangers)
            try:
                for _ in range(3):
                    async with grpc.aio.insecure_channel(at, options=own) as new:
                        stats = new.unary_unary(STATS, queue_pb2.StatsRequest.SerializeToString)
                        await stats(
                            queue_pb2.StatsRequest(), timeout=120, wait_for_ready=True, **token
                        )
                await stream.write(queue_pb2.ConsumeRequest(ack=queue_pb2.Ack(receipts=["r"])))
                assert (await stream.read()).HasField("receipts")
            finally:
                for one in held:
                    one.close()
            stream.cancel()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def status_of(port: int, path: str) -> int | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as reply:
            return int(reply.status)
    except OSError:
        return None


@contextmanager
def serving_with_few_files(folder: Path) -> Iterator[tuple[int, int, int]]:
    """Run `late serve` with `FILES` files; the ports of HTTP, gRPC and the health check."""
    url = sqlite.database(folder / "served.db")
    http, rpc, health = free_port(), free_port(), free_port()
    words = ["serve", "--url", url, "--pull", "payments", "--http-port", f"{http}"]
    server = subprocess.Popen(
        [sys.executable, "-m", "late", *words, "--grpc-port", f"{rpc}"],
        env={**os.environ, "LATE_HEALTH_PORT": f"{health}"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (status_of(health, "/readyz") == 200 and status_of(http, "/readyz") == 200):
            assert server.poll() is None
        yield http, rpc, health
    finally:
        server.terminate()
        server.wait(120)


def test_probes_and_callers_are_answered_under_all_floods(tmp_path: Path) -> None:
    with serving_with_few_files(tmp_path) as (http, rpc, health), ExitStack() as floods:
        for _ in range(2):
            floods.enter_context(flood(rpc, FILES // 2))
            floods.enter_context(flood(http, FILES // 2, GET))
            floods.enter_context(flood(health, 200, GET[:20]))
            for path in ("/livez", "/readyz") * 5:
                assert status_of(health, path) == 200
                assert status_of(http, path) == 200
        put = Client(http).now("POST", "/v1/queues/payments/tasks", {"name": "charge"})
        assert put.status == 201
