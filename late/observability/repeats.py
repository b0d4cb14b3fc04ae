"""Say again and again only now and then what is wrong: a database that is away fails many calls.

The first line of a kind is written at once, the next ones 10, 30, 70 s after it and then once a
minute, each with the number of those left out. A kind that has not come for two minutes is a new
one. So an outage of half a minute is a dozen lines of a worker, and not several hundred.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable

import msgspec

from late.clock import Monotonic

FIRST_S, MOST_S = 10.0, 60.0
"""The shortest and the longest time between two lines of a kind."""
CALM_S = 120.0
KINDS_MAX = 1_000


class _Kind(msgspec.Struct):
    wait_s: float
    shown_s: float
    came_s: float
    left_out: int = 0


class Repeats:
    """The lines that have been written lately, by kind. Calls from any thread are safe: where two
    come at once, one line too many may be written."""

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kinds: dict[Hashable, _Kind] = {}

    def left_out(self, kind: Hashable) -> int | None:
        """Return the number of lines of this kind that were left out since the last one; None if
        this one is to be left out too."""
        now_s, had = self._monotonic(), self._kinds.get(kind)
        if had is None or now_s - had.came_s > CALM_S:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            self._kinds[kind] = _Kind(FIRST_S, now_s, now_s)
            return 0
        had.came_s = now_s
        if now_s - had.shown_s < had.wait_s:
            had.left_out += 1
            return None
        number, had.left_out = had.left_out, 0
        had.shown_s, had.wait_s = now_s, min(MOST_S, had.wait_s * 2)
        return number

    def log(
        self,
        logger: logging.Logger,
        message: str,
        *values: object,
        kind: Hashable = "",
        level: int = logging.WARNING,
    ) -> None:
        """Write a line, unless one of its kind has been written lately.

        Args:
            message: as `Logger.log` takes it, with `values`; lines of one message and `kind` are of
                one kind.
        """
        number = self.left_out((logger.name, message, kind))
        if number is not None:
            logger.log(level, message + more(number), *values)

    def forget(self) -> None:
        """Take each line as the first one."""
        self._kinds.clear()


def more(number: int) -> str:
    """Return what a line says of those that were left out before it."""
    return f" ({number} more like this since the last one)" if number else ""


default = Repeats()
