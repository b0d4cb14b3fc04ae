"""The share of each task's calls that goes to `late`: knobs of the row `celery:TASK`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from zlib import crc32

from late.control import Control
from late.control.status.celery_shares import PREFIX
from late.errors import LateError
from late.model.queue_settings import QueueSettings

logger = logging.getLogger("late.celery")

EVERY_S = 2.0
"""The age from which a call reads the shares anew. A change is live within this time."""
_PARTS = 10_000


def takes(share: float, call_id: str) -> bool:
    """Tell whether `late` takes the call. What it takes of a share, it takes of a higher one."""
    return crc32(call_id.encode()) % _PARTS < round(share * _PARTS)


def in_force(settings: QueueSettings) -> float:
    """Return the share that applies: 0 if none is set, or if it is switched off."""
    return 0.0 if settings.closed else settings.late_share or 0.0


class Shares:
    """The shares as the database had them at most two seconds before. Thread-safe.

    A call reads them in its own thread, so there is no thread that a fork would lose. If they
    cannot be read, the last ones apply; before the first read everything stays on Celery.
    """

    def __init__(self, url: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        self._shares: Mapping[str, float] = {}
        self._off: frozenset[str] = frozenset()
        self._read_at: float | None = None
        self._lock = threading.Lock()

    def of(self, task: str) -> float:
        """Return the share of a task, 0..1."""
        # The first read is waited for. Later ones hold up only the thread that makes them.
        if self._old() and self._lock.acquire(blocking=self._read_at is None):
            try:
                if self._old():  # No other thread has just read them.
                    self._read()
            finally:
                self._lock.release()
        return self._shares.get(task, 0.0)

    def is_off(self, task: str) -> bool:
        """Tell whether the last read had the task switched off."""
        return task in self._off

    def _old(self) -> bool:
        return self._read_at is None or self._clock() - self._read_at >= EVERY_S

    def _read(self) -> None:
        now = self._clock()
        try:
            with Control(self._url()) as control:
                queues = control.queues.live().queues
        except LateError as error:
            logger.warning("the shares of Celery's tasks could not be read: %s", error)
        else:
            ours = {
                name.removeprefix(PREFIX): settings
                for name, settings in queues.items()
                if name.startswith(PREFIX)
            }
            self._off = frozenset(name for name, settings in ours.items() if settings.closed)
            self._shares = {name: in_force(settings) for name, settings in ours.items()}
        self._read_at = now
