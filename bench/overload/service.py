"""A service under load, as services are: it works on everything that reaches it.

It has a number of hands; what comes while they are busy waits in line. A caller that gives up does
not take its request out of the line: the work is done for nobody. That is what keeps a service down
after its trouble is over, if its callers come back at once and with more (metastable failure).

Source: Bronson et al., "Metastable Failures in Distributed Systems" (HotOS 2021).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Literal

Mood = Literal["well", "slow", "dead"]


class Service:
    """An HTTP service on loopback, in a thread of its own, from `with` to the end of the block.

    Args:
        hands: requests that it works on at the same time.
        takes_s: per request; ten times that while it is `slow`.
    """

    def __init__(self, hands: int = 20, takes_s: float = 0.1) -> None:
        self.mood: Mood = "well"
        self.port = 0
        self.calls: Counter[int] = Counter()
        """Requests that arrived, per second since the start."""
        self.good: Counter[int] = Counter()
        """Answers that were given in time to somebody, per second since the start."""
        self.seen: set[str] = set()
        """Tasks that were done at least once."""
        self._hands = hands
        self._takes_s = takes_s
        self._began = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="overloaded-service", daemon=True)

    def __enter__(self) -> Service:
        self._thread.start()
        assert self._ready.wait(10.0)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10.0)

    @property
    def now_s(self) -> int:
        """Whole seconds since the start."""
        return int(time.monotonic() - self._began)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        self._free = asyncio.Semaphore(self._hands)
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0, backlog=4_096)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(
                    line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:] if line
                )
                await reader.readexactly(int(fields.get("content-length", "0")))
                self.calls[self.now_s] += 1
                if self.mood == "dead":
                    break
                # The line: nobody looks whether the caller is still there.
                async with self._free:
                    slow = 10.0 if self.mood == "slow" else 1.0
                    await asyncio.sleep(self._takes_s * slow)
                self.seen.add(fields.get("webhook-id", ""))
                if reader.at_eof():
                    break  # it was done for nobody
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
                self.good[self.now_s] += 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
