"""A fixed loop, timed beside every figure: processors of a shared host change their speed."""

from __future__ import annotations

import os
import time
from statistics import median
from typing import Any

LENGTH = 300_000
TIMES = 5


def fixed_loop_ms() -> float:
    """Time the loop on the thread's own clock, which waits for nobody; the median of some."""
    taken = []
    for _ in range(TIMES):
        began = time.thread_time()
        sum(range(LENGTH))
        taken.append((time.thread_time() - began) * 1e3)
    return median(taken)


class Beside:
    """The loop before and after a block of work, and the load of the machine."""

    def __enter__(self) -> Beside:
        self._before_ms = fixed_loop_ms()
        self._load = os.getloadavg()[0]
        return self

    def __exit__(self, *_: object) -> None:
        self._after_ms = fixed_loop_ms()

    def figures(self) -> dict[str, Any]:
        return {
            "loop_ms": round((self._before_ms + self._after_ms) / 2, 3),
            "load": round(self._load, 2),
        }
