"""The HTTP server: uvicorn on the worker's event loop, with bounds of our own.

A server with threads of its own was rejected, because the pools that requests wait in belong to
this loop. uvicorn bounds neither the size of a request's head and trailers nor the time of a
request. `_Protocol` does, so that an idle or endless head costs one connection for ten seconds, and
no memory.
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

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from late.api.certificates import names_of
from late.api.connections import Connection, Connections, bound_of
from late.api.http.acceptor import Acceptor
from late.api.limits import BODY_S, HEADER_S, connections_of, loopback
from late.errors import ConfigError
from late.worker.file_limit import file_limit
from late.worker.refusals import Refusals

HEAD_BYTES = 32 * 1024
KEEP_ALIVE_S = 75
LINGER_S = 5.0
"""The rest of a refused body is read and dropped for this time, so that its sender can read the
answer. To close at once would reset the connection, and the answer would be lost."""
ANOTHERS = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's reasons for a key that can be read and belongs to another certificate. The last one
means that one of the two is RSA and the other uses elliptic curves."""


HSTS = ("Strict-Transport-Security", "max-age=31536000")
"""A browser that has been here over TLS asks in no other way for a year, on any port of this name.
So it is not sent where only this machine is served: the name is `localhost` then."""
_ERROR_HEADERS = (
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"connection", b"close"),
)


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
            http=_Protocol,
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

        def make() -> _Protocol:
            return _Protocol(self.config, self.server_state, self.lifespan.state)

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


class _Protocol(HttpToolsProtocol):
    _late_timer: asyncio.TimerHandle | None = None
    _late_bytes = 0
    _late_in_head = True
    _late_in_body = False
    _late_in_trailers = False
    """The last chunk has begun, or one of which no byte has come."""
    _late_names: tuple[str, ...] = ()
    _late_entry: Connection
    _late_table: Connections

    def bind(self, connection: Connection, connections: Connections) -> _Protocol:
        """Take an entry in the table of connections, until the connection is lost."""
        self._late_entry, self._late_table = connection, connections
        connection.is_idle = self._is_idle
        return self

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late_entry.close = transport.abort
        self._late_names = names_of(transport.get_extra_info("peercert"))
        self._close_in(HEADER_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close_in(None)
        self._late_table.remove(self._late_entry)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._late_in_head and not self._late_in_body:
            self._begin_head()  # the next request of a connection that was kept
        if self._late_in_head or self._late_in_trailers:
            self._late_bytes += len(data)
        super().data_received(data)
        if self._late_bytes > HEAD_BYTES:
            if self._late_in_head:
                self.send_400_response("The head of the request is too large.")
            elif self._late_in_trailers:
                self._refuse_trailers()
        if self._late_in_body and self._late_timer is None:
            self._close_in(BODY_S + LINGER_S)

    def _begin_head(self) -> None:
        self._late_in_head, self._late_bytes = True, 0
        self._close_in(HEADER_S)

    def on_message_begin(self) -> None:
        if not self._late_in_head:
            self._begin_head()  # it came together with the end of the one before
        super().on_message_begin()

    def _refuse_trailers(self) -> None:
        """End the connection, with an answer if none was begun."""
        if self.cycle.response_started:
            self.transport.close()
        else:
            self.send_400_response("The trailers of the request are too large.")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._late_in_head:
            super().on_header(name, value)  # trailers are read by nobody, so they are not kept

    def on_chunk_header(self) -> None:
        self._late_in_trailers, self._late_bytes = True, 0

    def on_body(self, body: bytes) -> None:
        self._late_in_trailers, self._late_bytes = False, 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._late_in_head, self._late_in_body, self._late_bytes = False, True, 0
        self._close_in(None)
        self.scope["late.certificate"] = self._late_names  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._late_in_body = self._late_in_trailers = False
        self._close_in(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._late_table.touch(self._late_entry)
        if self._late_in_body:
            self._close_in(LINGER_S)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, in the form of all other errors, and close."""
        body = msgspec.json.encode({"error": "bad_request", "message": msg})
        headers = [*self.server_state.default_headers, *_ERROR_HEADERS]
        headers.append((b"content-length", str(len(body)).encode()))
        lines = [b"HTTP/1.1 400 Bad Request", *(b"%b: %b" % pair for pair in headers), b"", body]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()

    def _close_in(self, seconds: float | None) -> None:
        if self._late_timer is not None:
            self._late_timer.cancel()
            self._late_timer = None
        if seconds is not None:
            self._late_timer = self.loop.call_later(seconds, self.transport.close)
