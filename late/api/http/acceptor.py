"""Accept connections for uvicorn, within bounds.

asyncio's own server accepts whatever comes, and a handshake of TLS that nobody goes on with takes a
minute. Here a connection counts from its first moment on, also during the handshake.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol

from late.api.access.connections import Connection, Connections
from late.api.limits import HEADER_S

logger = logging.getLogger("late.api")

PAUSE_S = 0.1
"""The wait after an accept that failed, for example because no file could be opened."""


class Served(Protocol):
    """A protocol of asyncio that knows its entry in the table of connections."""

    def bind(self, connection: Connection, connections: Connections) -> asyncio.Protocol: ...


class Acceptor:
    """Accepts on `listener`, which the caller closes, until `stop`."""

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        make: Callable[[], Served],
        context: ssl.SSLContext | None,
        refused: Callable[[str], object],
    ) -> None:
        self._refused = refused
        self._listener = listener
        self._connections = connections
        self._make = make
        self._context = context
        self._shaking: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        self._accepting = asyncio.create_task(self._run(), name="late-accept")

    async def stop(self) -> None:
        """Accept no more, and end unfinished handshakes."""
        tasks = {self._accepting, *self._shaking}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                stream, address = await loop.sock_accept(self._listener)
                stream.setblocking(False)
            except OSError as error:
                logger.warning("no connection was accepted: %s", error.strerror or error)
                await asyncio.sleep(PAUSE_S)
                continue
            entry = self._connections.admit(address[0], lambda: None)
            if entry is None:
                stream.close()
                continue
            task = loop.create_task(self._serve(stream, entry))
            entry.close = task.cancel  # until its protocol has it
            self._shaking.add(task)
            task.add_done_callback(partial(self._shaken, stream, entry))
            await asyncio.sleep(0)  # an accept that succeeds at once gives nobody else a turn

    async def _serve(self, stream: socket.socket, entry: Connection) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self._make().bind(entry, self._connections),
            stream,
            ssl=self._context,
            ssl_handshake_timeout=None if self._context is None else HEADER_S,
        )

    def _shaken(self, stream: socket.socket, entry: Connection, task: asyncio.Task[None]) -> None:
        self._shaking.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self._connections.remove(entry)
            stream.close()
        if error is not None and self._context is not None:
            self._refused("handshake")
        if error is not None and not isinstance(error, OSError):  # of TLS is one, too
            logger.error("a connection failed: %s", type(error).__name__, exc_info=error)
