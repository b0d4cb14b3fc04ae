"""Targets over TLS: who is believed, in both directions."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

import late
from late.errors import ConfigError
from tests.integration.push_kit import pool_of
from tests.unit.dispatcher_kit import attempt
from tests.unit.test_access import certificate


@pytest.fixture
def pem(tmp_path: Path) -> Any:
    """Paths by name: an authority, one of strangers, a server called `localhost`, a client."""
    certificate(tmp_path, "ca")
    certificate(tmp_path, "strangers")
    certificate(tmp_path, "localhost", by="ca")
    certificate(tmp_path, "worker", by="ca")
    certificate(tmp_path, "intruder", by="strangers")
    return lambda name: str(tmp_path / name)


def service() -> late.App:
    app = late.App("sqlite:///billing.db")

    @app.task
    async def charge() -> None: ...

    return app


async def outcome_of(target: Any) -> tuple[str, str | None]:
    async with pool_of(target) as pool:
        outcome = await pool.one(attempt("charge"))
        assert outcome.retryable
        return outcome.kind, outcome.reason


DONE, AWAY = ("done", None), ("failed", "unavailable")


async def test_grpc_believes_the_certificate_of_the_right_authority_and_name(pem: Any) -> None:
    tls = late.ServerTls(cert=pem("localhost.pem"), key=pem("localhost.key"))
    async with late.serve_handlers(service(), "127.0.0.1:0", tls=tls) as server:

        def target(host: str = "localhost", **settings: Any) -> late.GrpcTarget:
            where = (f"{host}:{server.port}",)
            return late.GrpcTarget("billing", where, connect_s=2, probe_s=0.5, **settings)

        assert await outcome_of(target(tls=late.Tls(ca=pem("ca.pem")))) == DONE
        by_name = late.Tls(ca=pem("ca.pem"), server_name="localhost")
        assert await outcome_of(target("127.0.0.1", tls=by_name)) == DONE
        for wrong in (
            target(tls=late.Tls(ca=pem("strangers.pem"))),
            target(tls=late.Tls(ca=pem("ca.pem"), server_name="elsewhere")),
            target("127.0.0.1", tls=late.Tls(ca=pem("ca.pem"))),
            target(tls=True),
            target(tls=False),
        ):
            assert await outcome_of(wrong) == AWAY


async def test_grpc_lets_in_who_has_a_certificate_of_its_authority(pem: Any) -> None:
    tls = late.ServerTls(cert=pem("localhost.pem"), key=pem("localhost.key"), ca=pem("ca.pem"))
    async with late.serve_handlers(service(), "127.0.0.1:0", tls=tls) as server:
        where = (f"localhost:{server.port}",)
        for name, expected in (("worker", DONE), ("intruder", AWAY), (None, AWAY)):
            mine = {} if name is None else {"cert": pem(f"{name}.pem"), "key": pem(f"{name}.key")}
            believed = late.Tls(ca=pem("ca.pem"), **mine)
            target = late.GrpcTarget("billing", where, tls=believed, connect_s=2, probe_s=0.5)
            assert await outcome_of(target) == expected, name


async def test_https_believes_the_certificate_of_the_right_authority_and_name(pem: Any) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        [length] = [line for line in head.lower().split(b"\r\n") if b"content-length" in line]
        await reader.readexactly(int(length.split(b":")[1]))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem("localhost.pem"), pem("localhost.key"))
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:

        def target(host: str = "localhost", **settings: Any) -> late.HttpTarget:
            return late.HttpTarget("mail", f"https://{host}:{port}/", **settings)

        assert await outcome_of(target(tls=late.Tls(ca=pem("ca.pem")))) == DONE
        by_name = late.Tls(ca=pem("ca.pem"), server_name="localhost")
        assert await outcome_of(target("127.0.0.1", tls=by_name)) == DONE
        for wrong in (
            target(),
            target(tls=late.Tls(ca=pem("strangers.pem"))),
            target("127.0.0.1", tls=late.Tls(ca=pem("ca.pem"))),
        ):
            assert await outcome_of(wrong) == AWAY
    finally:
        server.close()


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_a_certificate_that_is_not_there_stops_the_start(kind: str) -> None:
    tls = late.Tls(ca="no/such/file.pem")
    target: Any = (
        late.GrpcTarget("billing", ("localhost:1",), tls=tls)
        if kind == "grpc"
        else late.HttpTarget("billing", "https://localhost:1/", tls=tls)
    )
    with pytest.raises(ConfigError, match=r"no/such/file\.pem"):
        async with pool_of(target):
            pass
