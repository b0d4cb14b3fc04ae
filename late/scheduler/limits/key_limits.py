"""Limit the tasks of each key of a queue (a tenant, a shop) in one shard. Pure.

All tasks of a limit key are in one shard, because producers choose the shard by the key. A shard
has one owner, so what the owner counts here is the count of the fleet: no share, no message. It is
thrown away with the shard's core. See `docs/design/0078`.
"""

from __future__ import annotations

from typing import NamedTuple

from late.clock import was_set_back
from late.model.queue_settings import QueueSettings
from late.model.task import TaskId
from late.scheduler.limits.limiter import TokenBucket

SWEEP_MIN = 64
"""With fewer keys than this nobody looks for those that can be forgotten."""


class QueueKey(NamedTuple):
    """A limit key of a queue."""

    queue: str
    key: str


def limits_keys(settings: QueueSettings) -> bool:
    """Return whether the settings limit what has the same limit key."""
    return settings.key_concurrency is not None or settings.key_rate is not None


class _Key:
    __slots__ = ("bucket", "running")

    def __init__(self) -> None:
        self.running = 0
        self.bucket: TokenBucket | None = None

    def is_idle(self, now_us: int) -> bool:
        """Return whether a new object would be the same."""
        bucket = self.bucket
        return not self.running and (bucket is None or bucket.left(now_us) >= bucket.burst)


class KeyLimits:
    """Count what runs of each limit key, and say when more of it may start. Keys come and go."""

    def __init__(self) -> None:
        self.counted: dict[TaskId, QueueKey] = {}
        """The key of each task that runs under a limit."""
        self._keys: dict[QueueKey, _Key] = {}
        self._since_us: int | None = None
        self._sweep_at = SWEEP_MIN

    def __len__(self) -> int:
        return len(self._keys)

    def begin(self, now_us: int) -> None:
        """Begin a round of starts.

        The first one is the beginning of the term: the former owner may have used up its rate just
        before, so every bucket is empty then.
        """
        if self._since_us is None or was_set_back(now_us, self._since_us):
            self._since_us = now_us
        if len(self._keys) >= self._sweep_at:
            self._keys = {n: key for n, key in self._keys.items() if not key.is_idle(now_us)}
            self._sweep_at = max(SWEEP_MIN, 2 * len(self._keys))

    def running(self, name: QueueKey) -> int:
        """Return how many tasks of a key run."""
        key = self._keys.get(name)
        return 0 if key is None else key.running

    def opens_at_us(self, name: QueueKey, settings: QueueSettings, now_us: int) -> int | None:
        """Return `now_us` if one more of the key may start, the time from which the rate lets it,
        or None: a task of the key has to end."""
        most = settings.key_concurrency
        if most is not None and self.running(name) >= most:
            return None
        bucket = self._bucket(name, settings, now_us)
        return now_us if bucket is None or bucket.has(now_us) else bucket.next_at_us(now_us)

    def look_again_us(
        self, name: QueueKey, settings: QueueSettings, ahead: int, now_us: int
    ) -> int:
        """Return when a task with `ahead` others of its key before it may start, by the rate."""
        bucket = self._bucket(name, settings, now_us)
        return now_us if bucket is None else bucket.next_at_us(now_us, ahead)

    def start(self, task_id: TaskId, name: QueueKey) -> None:
        """Count a start, after `opens_at_us` has returned the present."""
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = _Key()
        key.running += 1
        if key.bucket is not None:
            key.bucket.take()
        self.counted[task_id] = name

    def ended(self, task_id: TaskId) -> None:
        """Note that an attempt has ended; one that was not counted is passed over."""
        self._less(task_id)

    def undo(self, task_id: TaskId) -> None:
        """Take back a start that did not happen."""
        key = self._less(task_id)
        if key is not None and key.bucket is not None:
            key.bucket.give_back()

    def _less(self, task_id: TaskId) -> _Key | None:
        name = self.counted.pop(task_id, None)
        if name is None:
            return None
        key = self._keys[name]
        key.running -= 1
        if not key.running and key.bucket is None:
            del self._keys[name]
        return key

    def _bucket(self, name: QueueKey, settings: QueueSettings, now_us: int) -> TokenBucket | None:
        rate, key = settings.key_rate, self._keys.get(name)
        if rate is None:
            if key is not None:
                key.bucket = None
            return None
        if key is None:
            key = self._keys[name] = _Key()
        if key.bucket is None:
            key.bucket = TokenBucket(rate, rate, now_us, since_us=self._since_us)
        elif key.bucket.rate != rate:
            key.bucket.resize(rate, rate, now_us)
        return key.bucket
