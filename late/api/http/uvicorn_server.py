"""The HTTP server: uvicorn on the worker's event loop, with bounds of our own.

A server with threads of its own was rejected, because the pools that requests wait in belong to
this loop. uvicorn bounds neither connections nor requests: `acceptor.py` and `protocol.py` do.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from late.api.access.connections import Connections, bound_of
from late.api.http.acceptor import Acceptor
from late.api.http.protocol import HttpProtocol
from late.api.limits import connections_of, loopback
from late.errors import ConfigError
from late.worker.file_limit import file_limit
from late.worker.refusals import Refusals

KEEP_ALIVE_S = 75
ANOTHERS = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's reasons for a key that can be read and belongs to another certificate. The last one
means that one of the two is RSA and the other uses elliptic curves."""

HSTS = ("Strict-Transport-Security", "max-age=31536000")
"""A browser that has been here over TLS asks in no other way for a year, on any port of this name.
So it is not sent where only this machine is served: the name is `localhost` then."""


class Tls:
    """The server's certificate and key, and the authority of its clients' certificates.

    Args:
        ca: certificates by which those of clients are checked; None asks clients for none.

    Raises:
        ConfigError: a file is missing or has the wrong contents, or the key belongs to another
            certificate. The message names that file.
    """

    def __init__(self, cert: str, key: str, ca: str | None = None) -> None:
        self.cert, self.key, self.ca = cert, key, ca
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        for path in (cert, key, *([] if ca is None else [ca])):
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise ConfigError(f"TLS: {path}: {error.strerror or error}") from None
        self._certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), cert)
        try:
            # Without this password OpenSSL would ask the terminal for one.
            self.context.load_cert_chain(cert, key, password=lambda: "")
        except ssl.SSLError as error:
            if error.reason in ANOTHERS:
                raise ConfigError(f"TLS: {key} is not the key of {cert}") from None
            if self._is_weak(cert, key):
                raise ConfigError(f"TLS: {cert}: refused by OpenSSL, {error.reason}") from None
            raise ConfigError(f"TLS: {key}: no private key in PEM, without a password") from None
        if ca is not None:
            self._certificates(self.context, ca)
            self.context.verify_mode = ssl.CERT_OPTIONAL

    @staticmethod
    def _is_weak(cert: str, key: str) -> bool:
        """Return True if both can be read, and OpenSSL refused a key or a signature as too weak.

        OpenSSL has many such reasons, and they do not name the file.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            context.load_cert_chain(cert, key, password=lambda: "")
        except ssl.SSLError as error:
            return error.reason in ANOTHERS
        return True

    @staticmethod
    def _certificates(context: ssl.SSLContext, path: str) -> None:
        try:
            context.load_verify_locations(path)
            found = context.cert_store_stats()["x509"]
        except ssl.SSLError:
            found = 0  # a list of revoked certificates does not count either
        if not found:
            raise ConfigError(f"TLS: {path}: no certificate in PEM")


class HttpServer:
    """A server that listens as soon as it is made, and answers from `start` on.

    Raises:
        ConfigError: the address is taken, or is not one of this machine.
    """

    def __init__(self, app: Any, host: str, port: int, *, tls: Tls | None = None) -> None:
        self._socket = listen(host, port)
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            headers=[HSTS] if tls is not None and not loopback(host) else [],
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=2,
        )
        config.load()
        if tls is not None:
            config.ssl = tls.context
        self._server = _Server(config, self._socket)
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve(sockets=[]), name="late-http")

    async def stop(self) -> None:
        """Close every connection; those with a running request are closed after two seconds."""
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.wait({self._serving})
        self._socket.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises `ConfigError`."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), port), family=family, backlog=1_024)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host[:64]!r}, port {port}: {error.strerror or error}"
        ) from None


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        super().__init__(config)
        self._listener = listener
        self._acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections within bounds, in place of uvicorn, which has none."""
        await super().startup(sockets)
        most = connections_of(file_limit())

        def make() -> HttpProtocol:
            return HttpProtocol(self.config, self.server_state, self.lifespan.state)

        refused = Refusals("http").add
        connections = Connections(most, partial(bound_of, most=most), refused)
        self._acceptor = Acceptor(self._listener, connections, make, self.config.ssl, refused)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor is not None:
            await self._acceptor.stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the worker."""
        yield
