"""The liveness check: HTTP on a port of its own, answered from the heartbeat's thread.

| path | 200 | 503 |
|---|---|---|
| `/livez`, `/healthz` | the worker gets on with what it owes | it stalls: restart it |
| `/readyz` | its heartbeat is trusted: it can work | it starts, stops, stalls, or has no database |
| `/metrics` | always: what is counted, as Prometheus reads it | |

A worker without shards is live and ready: there may be nothing for it to own. When the database is
away it is not ready but live: a restart would not help. One whose settlements the database refuses
for now, as on a full disk, is both: a restart would repeat what is not recorded.

The answer is a JSON object, except for `/metrics`. Only the first line of a request is read; the
answer holds no secret; by default only this machine may ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import msgspec

from late.errors import ConfigError
from late.observability.metrics import CONTENT_TYPE
from late.worker.refusals import Refusals

PATIENCE_S = 5.0
REQUEST_BYTES = 8_192
CONNECTIONS_MAX = 128
"""The oldest one goes for one more: a probe is answered within milliseconds."""
ACCEPTED_AT_ONCE = 16
"""So few that a probe is answered before `CONNECTIONS_MAX` more have come."""
BACKLOG = 1_024

_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class State(msgspec.Struct, frozen=True):
    """The answer to a health check."""

    worker: str
    live: bool
    ready: bool
    stalled: tuple[str, ...] = ()
    """The duties that are left undone, see `progress.py`."""
    reason: str = ""
    """The reason why it is not ready."""


class Health:
    """Listens as soon as it is made, and answers while `run` does.

    Args:
        state: makes the answer.
        metrics: makes the page of metrics.
        fd: an open listening socket, which is taken over in place of `host` and `port`.

    Raises:
        ConfigError: the address cannot be listened on, or `fd` is no such socket.
    """

    def __init__(
        self,
        host: str,
        port: int,
        state: Callable[[], State],
        *,
        metrics: Callable[[], Awaitable[bytes]] | None = None,
        fd: int | None = None,
    ) -> None:
        self._state = state
        self._metrics = metrics
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._refusals = Refusals("health")
        if fd is not None:
            self._socket = _inherited(fd)
            return
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigError(
                f"health_host={host!r}, health_port={port}: {error.strerror or error}; choose a "
                "free port, or an address of this machine"
            ) from None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    async def run(self) -> None:
        """Answer until cancelled. It may be called again, also in another loop."""
        async with await asyncio.start_server(
            self._serve, sock=self._socket.dup(), limit=REQUEST_BYTES, backlog=ACCEPTED_AT_ONCE
        ) as server:
            self._socket.listen(BACKLOG)  # asyncio has set it to what it accepts at once
            await server.serve_forever()

    def close(self) -> None:
        """Stop listening. Twice is fine."""
        self._socket.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
            self._refusals.add("idle")
        try:
            async with asyncio.timeout(PATIENCE_S):
                line = await reader.readline()
                # The rest is read and forgotten: closing on unread bytes would reset the
                # connection and lose the answer.
                while (await reader.readline()).strip():
                    pass
                page = None
                if self._metrics is not None and path_of(line) == "/metrics":
                    page = await self._metrics()
                writer.write(answer(line, self._state(), page))
                await writer.drain()
        except (TimeoutError, OSError, ValueError):
            pass  # one that is too slow, too long or gone
        finally:
            self._open.pop(writer, None)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _inherited(fd: int) -> socket.socket:
    try:
        return socket.socket(fileno=fd)
    except OSError as error:
        raise ConfigError(
            f"health_fd={fd}: {error.strerror or error}; it must be an open socket of this process"
        ) from None


def path_of(line: bytes) -> str:
    """Return the path in the first line of a request."""
    return line.decode("latin-1").strip().partition(" ")[2].partition(" ")[0].partition("?")[0]


def answer(line: bytes, state: State, page: bytes | None = None) -> bytes:
    """Make the whole response to a request with this first line; `page` holds the metrics."""
    method, path = line.decode("latin-1").strip().partition(" ")[0], path_of(line)
    if path == "/metrics" and page is not None:
        status = 200
    elif path in ("/livez", "/healthz"):
        status = 200 if state.live else 503
    elif path == "/readyz":
        status = 200 if state.ready else 503
    else:
        status = 404
    if method not in ("GET", "HEAD"):
        status = 405
    kind, body = "application/json", b"{}"
    if status == 200 and path == "/metrics" and page is not None:
        kind, body = CONTENT_TYPE, page
    elif status in (200, 503):
        body = msgspec.json.encode(state)
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else body)
