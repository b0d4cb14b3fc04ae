"""Connections that a port refused or ended for its bounds: each is counted, and few lines tell it.

| reason | the connection |
|---|---|
| `address` | was one too many of its address |
| `total` | was one too many of the port |
| `handshake` | did not end its TLS handshake, or not in time |
| `idle` | had no running request, and another one needed its place |
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from late import events
from late.events import Emitter

TOLD_EVERY_S = 60.0
"""The least time between two lines of one port and reason."""


class Refusals:
    """The refusals of one port, called `port` in metrics and lines. For one thread at a time."""

    def __init__(
        self,
        port: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        emitter: Emitter = events.default,
    ) -> None:
        self._port = port
        self._clock = clock
        self._emitter = emitter
        self._untold: Counter[str] = Counter()
        self._told_s: dict[str, float] = {}

    def add(self, reason: str, count: int = 1) -> None:
        """Count connections; the first of a minute are told with those since the last line."""
        tags = {"port": self._port, "reason": reason}
        self._emitter.emit(events.CONNECTION_REFUSED, **tags, count=count)
        self._untold[reason] += count
        now = self._clock()
        if now - self._told_s.get(reason, float("-inf")) >= TOLD_EVERY_S:
            self._told_s[reason] = now
            self._emitter.emit(events.REFUSALS, **tags, count=self._untold.pop(reason))
