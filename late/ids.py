"""Task ids: UUIDv7 that carry their shard, known before the commit.

Layout (RFC 9562, section 5.7): 48 bits of Unix milliseconds, version 7, 12 bits `rand_a` that hold
the **shard number**, variant, 62 bits `rand_b`. An id therefore leads to its shard without an
index. `rand_b` begins with a counter of 22 bits that grows within one millisecond, so that ids
made by one process sort in the order in which they were made; 40 random bits keep processes apart.

The millisecond is the producer's wall clock and decides nothing: no order, no due time.
"""

from __future__ import annotations

import os
import re
import threading
import time

from late.errors import InvalidName
from late.task import TaskId

_COUNTER_BITS = 22
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")


class IdFactory:
    """Makes ids for one process. Thread-safe; a fork gets a state of its own by `os.urandom`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ms = 0
        self._counter = 0

    def make(self, shard_id: int) -> TaskId:
        """A new id for a task in `shard_id` (0..4095)."""
        noise = int.from_bytes(os.urandom(5), "big")
        with self._lock:
            now_ms = max(time.time_ns() // 1_000_000, self._last_ms)
            if now_ms == self._last_ms:
                self._counter += 1
                if self._counter >> _COUNTER_BITS:  # 4 million ids in one millisecond
                    now_ms, self._counter = now_ms + 1, 0
            else:
                self._counter = 0
            self._last_ms = now_ms
            counter = self._counter
        high = f"{now_ms:012x}"
        low = f"{(0b10 << 62) | (counter << 40) | noise:016x}"
        return TaskId(f"{high[:8]}-{high[8:]}-7{shard_id:03x}-{low[:4]}-{low[4:]}")


new_id = IdFactory().make
"""The process-wide factory: `new_id(shard_id)`."""


def shard_of(task_id: str) -> int:
    """The shard that the id names.

    Raises:
        InvalidName: not a canonical id of this kind.
    """
    if not _ID.match(task_id):
        raise InvalidName(f"not a task id: {task_id[:64]!r}")
    return int(task_id[15:18], 16)


def made_at_us(task_id: str) -> int:
    """When the producer's clock said it made the id: for people, not for decisions."""
    shard_of(task_id)
    return int(task_id[:8] + task_id[9:13], 16) * 1000
