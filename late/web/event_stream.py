"""The stream of events: it only says *that* there is something newer, never what.

The browser then fetches the part of its page that is live, with the same rights, through the same
templates. A lost event costs two seconds; a slow browser costs nothing, as nothing is kept for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from late.errors import StoreError
from late.web.snapshot import EVERY_S, SnapshotReader

STREAMS = 200
"""At once, in one process."""
BEAT = b": beat\n\n"
END = b"event: end\ndata: \n\n"
RETRY = b"retry: 3000\n\n"


class Streams:
    """All streams of one page.

    Args:
        admitted: raises when the caller of a stream may look no longer; asked at every beat.
    """

    def __init__(
        self, look: SnapshotReader, stopping: asyncio.Event, *, every_s: float = EVERY_S
    ) -> None:
        self._look = look
        self._stopping = stopping
        self._every_s = every_s
        self.open = 0

    @property
    def full(self) -> bool:
        """Whether no more are taken: the page is then loaded by hand."""
        return self.open >= STREAMS

    async def run(self, admitted: Callable[[], object]) -> AsyncIterator[bytes]:
        """One stream, until its caller's right ends or the process stops."""
        self.open += 1
        try:
            yield RETRY
            told = self._look.version
            while not self._stopping.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._every_s):
                        await self._stopping.wait()
                try:
                    admitted()
                except Exception:
                    break
                with suppress(StoreError):
                    await self._look.seen()
                if self._look.version != told:
                    told = self._look.version
                    yield b"event: look\ndata: %d\n\n" % told
                else:
                    yield BEAT
            yield END
        finally:
            self.open -= 1
