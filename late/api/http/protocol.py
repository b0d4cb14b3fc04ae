"""One connection of HTTP: uvicorn's protocol, with bounds on what a stranger can make it keep.

uvicorn bounds neither the size of a request's head and trailers, nor the time of a request, nor the
requests that wait on a connection. This does, so that none of these costs more than one connection
for ten seconds, and some kilobytes.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from late.api.access.certificates import names_of
from late.api.access.connections import Connection, Connections
from late.api.limits import BODY_S, HEADER_S

HEAD_BYTES = 32 * 1024
HEADER_LINES = 100
PIPELINED = 16
"""Requests that may wait on a connection for the one before to be answered. uvicorn keeps each
that it has read, and reads more after each answer: some kilobytes for 18 bytes of a request."""
LINGER_S = 5.0
"""The rest of a refused body is read and dropped for this time, so that its sender can read the
answer. To close at once would reset the connection, and the answer would be lost."""
_ERROR_HEADERS = (
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"connection", b"close"),
)


class HttpProtocol(HttpToolsProtocol):
    _late_timer: asyncio.TimerHandle | None = None
    _late_bytes = 0
    _late_in_head = True
    _late_in_body = False
    _late_in_trailers = False
    """The last chunk has begun, or one of which no byte has come."""
    _late_names: tuple[str, ...] = ()
    _late_refusal: str | None = None
    """The reason why this did not go on to read what the parser had."""
    _late_entry: Connection
    _late_table: Connections

    def bind(self, connection: Connection, connections: Connections) -> HttpProtocol:
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
        if len(self.pipeline) >= PIPELINED:
            self._refuse("Too many requests wait on this connection.")
        super().on_message_begin()

    def _refuse(self, reason: str) -> NoReturn:
        """Stop the parser within a piece of data; its error leads to the answer 400."""
        self._late_refusal = reason
        raise ValueError(reason)

    def _refuse_trailers(self) -> None:
        """End the connection, with an answer if none was begun."""
        if self.cycle.response_started:
            self.transport.close()
        else:
            self.send_400_response("The trailers of the request are too large.")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._late_in_head:  # trailers are read by nobody, so they are not kept
            if len(self.headers) >= HEADER_LINES:
                self._refuse("The head of the request has too many lines.")
            super().on_header(name, value)

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
        said = {"error": "bad_request", "message": self._late_refusal or msg}
        body = msgspec.json.encode(said)
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
