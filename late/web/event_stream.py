"""The stream of events: it only says *that* there is a newer look, and sends no contents.

The browser then fetches the live part of its page, with the same rights, through the same
templates. A lost event costs two seconds. A slow browser costs nothing, because nothing is queued
for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from late.errors import StoreError
from late.web.snapshot import EVERY_S, SnapshotReader

STREAMS = 200
"""Streams at once, in one process."""
BEAT = b": beat\n\n"
END = b"event: end\ndata: \n\n"
RETRY = b"retry: 3000\n\n"


class Streams:
    """The streams of one page.

    Args:
        admitted: called at every beat; raises when the caller of a stream may no longer look.
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
        """No more streams are taken; further visitors reload the page by hand."""
        return self.open >= STREAMS

    async def run(self, admitted: Callable[[], object]) -> AsyncIterator[bytes]:
        """Send one stream, until its caller's right ends or the process stops."""
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
