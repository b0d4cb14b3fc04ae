"""A pooler and a bad network in one: every transaction goes to another backend, links break.

The backends are connections that libpq has opened and authenticated; the proxy then speaks the
protocol on their sockets itself. A client is let in without a question: loopback, and one test.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from types import TracebackType
from urllib.parse import urlsplit

import psycopg

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102


class Backend:
    """One real session."""

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        self.connection = connection
        self.owed = 0
        """Requests that it has not answered yet."""

    async def streams(self) -> None:
        sock = socket.socket(fileno=os.dup(self.connection.pgconn.socket))
        sock.setblocking(False)
        self.reader, self.writer = await asyncio.open_connection(sock=sock)


class Proxy:
    """Listens on loopback; `url` is the way in. An async context manager."""

    def __init__(self, url: str, *, backends: int) -> None:
        self._upstream = url
        self._count = backends
        self._free: asyncio.Queue[Backend] = asyncio.Queue()
        self._clients: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._passing = asyncio.Event()
        self._passing.set()
        self.url = ""
        self.switches = 0
        self.statements: set[str] = set()
        """Names of prepared statements that a client has made."""
        self.swallow_answers = False
        """Let requests through, and cut the link instead of answering."""

    async def __aenter__(self) -> Proxy:
        for _ in range(self._count):
            await self._open_backend()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        parts = urlsplit(self._upstream)
        self.url = f"postgresql://nobody@127.0.0.1:{port}{parts.path}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing = True
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._free.empty():
            backend = self._free.get_nowait()
            backend.writer.close()
            backend.connection.close()

    def cut(self) -> None:
        """Break every link to a client."""
        for writer in self._clients:
            writer.transport.abort()

    def stall(self, stalled: bool) -> None:
        """Pass no request on; or go on."""
        if stalled:
            self._passing.clear()
        else:
            self._passing.set()

    async def _open_backend(self) -> None:
        backend = Backend(psycopg.connect(self._upstream))
        await backend.streams()
        self._free.put_nowait(backend)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._clients.add(writer)
        try:
            if await self._greet(reader, writer):
                await self._transactions(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._clients.discard(writer)
            writer.transport.abort()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        while True:
            (length,) = struct.unpack("!i", await reader.readexactly(4))
            (code,) = struct.unpack("!i", (await reader.readexactly(length - 4))[:4])
            if code in (_SSL, _GSS):
                writer.write(b"N")
            elif code == _CANCEL:
                return False
            else:
                break
        writer.write(_message(b"R", struct.pack("!i", 0)))
        backend = await self._free.get()
        for name in ("server_version", "client_encoding", "standard_conforming_strings"):
            value = backend.connection.pgconn.parameter_status(name.encode()) or b""
            writer.write(_message(b"S", name.encode() + b"\0" + value + b"\0"))
        self._free.put_nowait(backend)
        writer.write(_message(b"K", struct.pack("!ii", 1, 1)) + _message(b"Z", b"I"))
        await writer.drain()
        return True

    async def _transactions(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Each transaction on the backend that has waited longest: never the last one."""
        while True:
            kind, body = await _read(reader)
            backend = await self._free.get()
            self.switches += 1
            try:
                while True:
                    if not await self._request(kind, body, backend):
                        return
                    if not await self._answers(backend, writer, reader):
                        break
                    kind, body = await _read(reader)
            except BaseException:
                # What the session was in the middle of is nobody's any more.
                backend.writer.close()
                backend.connection.close()
                if not self._closing:
                    await self._open_backend()
                raise
            self._free.put_nowait(backend)

    async def _request(self, kind: bytes, body: bytes, backend: Backend) -> bool:
        await self._passing.wait()
        if kind == b"X":
            self._free.put_nowait(backend)
            return False
        if kind == b"P" and (name := body.split(b"\0", 1)[0]):
            self.statements.add(name.decode())
        backend.writer.write(_message(kind, body))
        await backend.writer.drain()
        if kind in (b"Q", b"S"):
            backend.owed += 1
        return True

    async def _answers(
        self, backend: Backend, writer: asyncio.StreamWriter, reader: asyncio.StreamReader
    ) -> bool:
        """Pass answers on until the client is to speak again; whether the transaction goes on."""
        if not backend.owed:
            return True
        while True:
            kind, body = await _read(backend.reader)
            if self.swallow_answers and kind == b"Z":
                raise ConnectionResetError
            if not self.swallow_answers:
                writer.write(_message(kind, body))
            if kind == b"Z":
                backend.owed -= 1
                await writer.drain()
                return body != b"I" or backend.owed > 0


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!i", head[1:])
    return head[:1], await reader.readexactly(length - 4)
