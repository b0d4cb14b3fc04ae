"""Task ids: UUIDv7 that contain the task's shard. An id is known before the commit.

Layout (RFC 9562, section 5.7): 48 bits of Unix milliseconds, version 7, 12 bits `rand_a` that hold
the **shard number**, variant, 62 bits `rand_b`. So the shard of an id is known without an index.
`rand_b` begins with a counter of 22 bits that grows within one millisecond, so that ids made by one
process sort in the order in which they were made. Its 40 random bits make the ids of different
processes distinct.

The millisecond is the producer's wall clock. It decides neither an order nor a due time.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

from late.errors import InvalidName
from late.model.task import TaskId

_COUNTER_BITS = 22
_NOISE_BYTES = 5
# The fields: time and version, shard, variant with 14 bits of the counter, its other 8 bits, random
# bytes. `%` takes two thirds of the time of an f-string.
_FORM = "%s%03x-%04x-%02x%s"
_LOW = tuple(f"{n:02x}" for n in range(256))
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")


class IdFactory:
    """Makes ids for one process. Thread-safe; after a fork `os.urandom` keeps the ids distinct."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ms = 0
        self._counter = 0

    def make(self, shard_id: int) -> TaskId:
        """Make a new id for a task in `shard_id` (0..4095)."""
        prefix, counter = self._take(1)
        noise = os.urandom(_NOISE_BYTES).hex()
        return TaskId(_FORM % (prefix, shard_id, 0x8000 | counter >> 8, counter & 0xFF, noise))

    def many(self, shard_ids: Sequence[int]) -> list[TaskId]:
        """Make a new id for each of `shard_ids`, in their order; the ids of one shard ascend.

        Clock, lock and random bits are used once for all ids: they are most of the cost of one.
        """
        count = len(shard_ids)
        prefix, first = self._take(count)
        # The head of each shard and of each 256 values of the counter is formatted once. So an id
        # needs three look-ups.
        heads = {shard_id: f"{prefix}{shard_id:03x}-" for shard_id in set(shard_ids)}
        blocks = range(first >> 8, (first + count >> 8) + 1)
        highs = {high: f"{0x8000 | high:04x}-" for high in blocks}
        noise = os.urandom(_NOISE_BYTES * count).hex("-", _NOISE_BYTES).split("-")
        made: list[Any] = [
            f"{heads[shard_id]}{highs[n >> 8]}{_LOW[n & 0xFF]}{tail}"
            for n, shard_id, tail in zip(range(first, first + count), shard_ids, noise)  # noqa: B905
        ]
        return made

    def _take(self, count: int) -> tuple[str, int]:
        """Reserve `count` ids; return their common beginning, and the counter of the first."""
        with self._lock:
            now_ms = max(time.time_ns() // 1_000_000, self._last_ms)
            first = self._counter + 1 if now_ms == self._last_ms else 0
            if first + count > 1 << _COUNTER_BITS:  # 4 million ids in one millisecond
                now_ms, first = now_ms + 1, 0
            self._last_ms, self._counter = now_ms, first + count - 1
        high = f"{now_ms:012x}"
        return f"{high[:8]}-{high[8:]}-7", first


def id_before(at_us: int) -> TaskId:
    """Return the lowest id of the time `at_us`: all ids that were made earlier are less."""
    text = f"{max(0, at_us) // 1_000:012x}"
    return TaskId(f"{text[:8]}-{text[8:]}-7000-8000-000000000000")


_factory = IdFactory()
new_id = _factory.make
"""Make one id by the factory of this process: `new_id(shard_id)`."""
new_ids = _factory.many
"""Make the ids of a batch by the factory of this process: `new_ids(shard_ids)`."""


def shard_of(task_id: str) -> int:
    """Return the shard that the id contains.

    Raises:
        InvalidName: the text is not a canonical id of this kind.
    """
    if not _ID.match(task_id):
        raise InvalidName(f"not a task id: {task_id[:64]!r}")
    return int(task_id[15:18], 16)


def made_at_us(task_id: str) -> int:
    """Return the producer's time at which it made the id: for display, not for decisions.

    Raises:
        InvalidName: the text is not a canonical id of this kind.
    """
    shard_of(task_id)
    return int(task_id[:8] + task_id[9:13], 16) * 1000
