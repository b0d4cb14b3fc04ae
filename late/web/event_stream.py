"""The stream of events: it only says *that* there is a newer look, and sends no contents.

The browser then fetches the live part of its page, with the same rights, through the same
templates. A lost event costs two seconds. A slow browser costs nothing, because nothing is queued
for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any

from late.concurrency import run_until
from late.errors import StoreError
from late.web.snapshot import EVERY_S, SnapshotReader

STREAMS = 200
"""Streams at once, in one process."""
BEAT = b": beat\n\n"
END = b"event: end\ndata: \n\n"
RETRY = b"retry: 3000\n\n"


class Streams:
    """The streams of one page."""

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

    async def run(self, over: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[bytes]:
        """Send one stream, until its caller's right ends or the process stops.

        Args:
            over: waits until the caller's right ends.
        """
        self.open += 1
        ending = asyncio.ensure_future(run_until(self._stopping.wait(), over()))
        try:
            yield RETRY
            told = self._look.version
            while not (await asyncio.wait({ending}, timeout=self._every_s))[0]:
                with suppress(StoreError):
                    await run_until(asyncio.wait({ending}), self._look.seen())
                if self._look.version != told:
                    told = self._look.version
                    yield b"event: look\ndata: %d\n\n" % told
                else:
                    yield BEAT
            yield END
        finally:
            ending.cancel()
            self.open -= 1
