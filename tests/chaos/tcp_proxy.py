"""A bad network before PostgreSQL, on loopback: one listener per client process, all in a thread.

Bytes go through as they are, so whatever the client and the server agree on works; only a COMMIT
or a settlement is looked for in what the client sends, to cut the link before it arrives or after
its answer has left. That needs `sslmode=disable` or a server without TLS.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Literal

CHUNK = 65536
SETTLEMENT = b"insert into late_settlement"
MARKED = {b"chaos-cut-before": "before", b"chaos-cut-after": "after"}
_ENDED = b"Z\x00\x00\x00\x05I"
"""ReadyForQuery, outside of a transaction: what was sent is committed, or never will be."""
_OVERLAP = 64
"""Bytes of one chunk that are looked at again with the next: a word may be cut in two."""

When = Literal["before", "after"]


class Loop:
    """An event loop in a thread of its own, for all proxies of a storm. A context manager."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _end(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class _Link:
    """One connection of the client, with its own to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter | None) -> None:
        self.client = client
        self.server = server
        self.deaf = False
        """What either side sends is read and dropped."""
        self.cutting = False
        """The next answer that ends a transaction is the last thing that happens."""
        self.answer = b""

    def cut(self) -> None:
        """RST to both."""
        for writer in (self.client, self.server):
            if writer is not None:
                writer.transport.abort()


class TcpProxy:
    """One listener before the server at `port`. Its methods may be called from any thread."""

    def __init__(self, loop: Loop, port: int) -> None:
        self._loop = loop
        self._upstream = port
        self._links: set[_Link] = set()
        self._deaf = False
        self._delay_s = 0.0
        self._cuts: deque[When] = deque()
        self.cuts = 0
        """How many links were cut within a settlement or a COMMIT."""
        self._server = loop.run(self._listen())
        self.port = int(self._server.sockets[0].getsockname()[1])

    # ------------------------------------------------------------------ faults

    def reset(self) -> None:
        """Break every link."""
        self._do(lambda: [link.cut() for link in self._links])

    def blackhole(self, on: bool) -> None:
        """Swallow everything, also of new links; at the end all of them break."""

        def switch() -> None:
            self._deaf = on
            for link in list(self._links):
                if on:
                    link.deaf = True
                elif link.deaf:
                    link.cut()

        self._do(switch)

    def half_open(self, on: bool) -> None:
        """The server sees the links end, the client does not; at the end it does."""

        def switch() -> None:
            for link in list(self._links):
                if on:
                    link.deaf = True
                    if link.server is not None:
                        link.server.transport.abort()
                elif link.deaf:
                    link.cut()

        self._do(switch)

    def delay(self, seconds: float) -> None:
        """Hold every chunk for so long, in either direction."""

        def switch() -> None:
            self._delay_s = seconds

        self._do(switch)

    def cut_settlement(self, when: When) -> None:
        """Cut the next link that writes a settlement: before it arrives, or after it is done."""
        self._do(lambda: self._cuts.append(when))

    def close(self) -> None:
        """Take no more connections."""
        self._do(self._server.close)

    # ------------------------------------------------------------------ in the thread

    def _do(self, change: Callable[[], object]) -> None:
        async def carry_out() -> None:
            change()

        self._loop.run(carry_out())

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer, None)
        self._links.add(link)
        try:
            if self._deaf:
                link.deaf = True
                await self._forward(link, reader)
                return
            from_server, link.server = await asyncio.open_connection("127.0.0.1", self._upstream)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(link, reader))
                both.create_task(self._back(link, from_server))
        except* (OSError, _Over):
            pass  # either side is gone
        finally:
            self._links.discard(link)
            link.cut()

    async def _forward(self, link: _Link, reader: asyncio.StreamReader) -> None:
        """From the client. Raises when the link is over, which ends the other direction too."""
        seen = b""
        while data := await reader.read(CHUNK):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            if link.deaf or link.server is None:
                continue
            seen = seen[-_OVERLAP:] + data
            when = self._wanted(seen)
            if when is not None:
                seen = b""
                self.cuts += 1
                if when == "before":
                    break
                link.cutting = True
            link.server.write(data)
            await link.server.drain()
        raise _Over

    async def _back(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            if link.cutting:
                # Answers within the transaction go through: the client may wait for them.
                link.answer = (link.answer + data)[-_OVERLAP:]
                if link.answer.endswith(_ENDED):
                    break
            if link.deaf:
                continue
            link.client.write(data)
            await link.client.drain()
        if link.deaf:
            return  # the client is not to see the end
        raise _Over

    def _wanted(self, seen: bytes) -> str | None:
        """Whether the link is to be cut at this, and when."""
        for mark, when in MARKED.items():
            if mark in seen:
                return when
        if self._cuts and SETTLEMENT in seen:
            return self._cuts.popleft()
        return None


class _Over(Exception):
    """One side has ended."""
