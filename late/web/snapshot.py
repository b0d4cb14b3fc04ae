"""One look at the database for all visitors.

A hundred open pages must cost the database no more than one, so they share the last snapshot. A
look begins when a page asks and the last look is older than `EVERY_S`. Without visitors nothing is
read. While the database does not answer, the last snapshot is shown together with its age.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from late.concurrency import in_thread
from late.control import Control
from late.control.replica import ReplicaReads
from late.control.status.celery_shares import is_routed
from late.control.status.snapshot import Snapshot, look
from late.errors import LateError

__all__ = ["Point", "Snapshot", "SnapshotReader", "kept", "point_of"]

T = TypeVar("T")
logger = logging.getLogger("late.web")

EVERY_S = 2.0
GLANCE_S = 0.1
"""Seconds that a page waits for a newer look when it could show the last one. A quick look is done
in that time. If looks are slow, the last one is shown at once: a few seconds change little."""
LATER_S = 0.3
"""Seconds that a slow look lets pass first, so that the page is sent and drawn before it."""
PATIENCE_S = 1.0
"""The same after a visitor has changed something, or if the last look is old."""
OLD_S = 60.0
"""A look is old from this age on, unless looks are less frequent than that."""
NEWS_S = 10.0
"""A look of this age is shown with its age: in an incident much may have changed since."""
POINTS = 300
"""Points of the chart: ten minutes of looks."""
SHARE = 0.1
"""The part of all time that looks may take: if a look takes long, looks are less frequent."""


GAP_S = 15.0
"""Between points that are farther apart, and than three looks, the chart has a gap: nobody
watched."""
Point = tuple[float, int | None, float | None]
"""Seconds since the Unix epoch, backlog, attempts per second; over all groups. Without figures it
is a gap."""


class SnapshotReader:
    """The reader of snapshots; shared by all requests, on one event loop."""

    def __init__(
        self, control: Control, *, every_s: float = EVERY_S, reads: ReplicaReads | None = None
    ) -> None:
        self._control = control
        self._reads = reads
        self._fresh_until = 0.0
        self._every_s = every_s
        self._seen: Snapshot | None = None
        self._at = self._took_s = 0.0
        self._changed = False
        self._looking: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self.points: deque[Point] = deque(maxlen=POINTS)
        self._hurry = asyncio.Event()
        self.from_celery = False
        """Tasks were on their way from Celery at the last look."""
        self.version = 0
        """A counter: one more for every look that succeeded or was the first to fail."""

    @property
    def trouble(self) -> str:
        """The reason why there is no newer look; empty when all is well.

        It does not repeat the database's message, which may name hosts and users.
        """
        if self._failure is None and self._seen is not None and self._seen.partial:
            return "The tables cannot be read: the overview says who holds them."
        if self._failure is None:
            if self._old:
                return "The database is slow to answer."
            return "A newer look is under way." if self._is_older_than(NEWS_S) else ""
        if isinstance(self._failure, LateError):
            return "The database does not answer."
        return "The database cannot be looked at: the server's log says why."

    @property
    def age_s(self) -> float:
        """The age of the last look in seconds; 0 if there was none."""
        return 0.0 if self._seen is None else max(0.0, time.monotonic() - self._at)

    @property
    def freshness(self) -> str:
        """By what the last look was answered, if a replica was asked for it; else empty."""
        told = None if self._seen is None else self._seen.freshness
        return "" if told is None else f", {told}"

    async def seen(self) -> Snapshot:
        """The last look, or a new one if that does not take long.

        Raises:
            StoreError: the database was never seen.
        """
        wanted = self._changed or self._old
        patience_s = PATIENCE_S if wanted else GLANCE_S
        slow = not wanted and self._took_s > GLANCE_S
        # Twice, because a look that ran while something changed may not contain the change.
        for _ in range(2):
            if not self._due:
                break
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(
                    self._look(LATER_S if slow else 0.0), name="late-look"
                )
            if slow:
                break
            self._hurry.set()  # Somebody waits for it.
            waited = None if self._seen is None else patience_s
            await asyncio.wait({self._looking}, timeout=waited)
        if self._seen is None:
            assert self._failure is not None
            raise self._failure
        return self._seen

    @property
    def _due(self) -> bool:
        return self._seen is None or self._changed or self.age_s > self._rest_s

    @property
    def _rest_s(self) -> float:
        return max(self._every_s, self._took_s / SHARE)

    @property
    def _old(self) -> bool:
        return self._is_older_than(OLD_S)

    def _is_older_than(self, age_s: float) -> bool:
        return self.age_s > max(age_s, 2 * self._rest_s)

    def forget(self) -> None:
        """Note that something has changed: the next page gets a new look that has the change."""
        self._changed = True
        if self._reads is not None:
            self._fresh_until = time.monotonic() + self._reads.max_lag_s

    async def close(self) -> None:
        """Wait for a running look, which holds a connection."""
        if self._looking is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.wait({self._looking})

    async def _look(self, later_s: float) -> None:
        self._hurry.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), later_s)
        began = time.monotonic()
        self._changed = False
        try:
            seen = await in_thread(self._read)
        except Exception as error:
            # For any error, the last snapshot stays and is shown with its age.
            if self._failure is None:
                self.version += 1
                trace = None if isinstance(error, LateError) else error
                text = "the database could not be looked at for the page: %s"
                logger.warning(text, error, exc_info=trace)
            self._failure = error
            return
        self._seen, self._at, self._failure = seen, began, None
        self._took_s = time.monotonic() - began
        self.from_celery = any(
            map(is_routed, {*seen.queues, *(q.queue for q in seen.status.queues)})
        )
        self.version += 1
        if not seen.partial:
            self._add(point_of(seen))

    def _add(self, point: Point) -> None:
        """Add a point to the chart, behind a gap if nobody has looked for long."""
        if self.points and point[0] - self.points[-1][0] > max(GAP_S, 3 * self._rest_s):
            self.points.append(((point[0] + self.points[-1][0]) / 2, None, None))
        self.points.append(point)

    def _read(self) -> Snapshot:
        fresh = time.monotonic() < self._fresh_until
        return look(self._control, reads=self._reads, fresh=fresh)


def kept(make: Callable[[Snapshot], T]) -> Callable[[Snapshot], T]:
    """Return `make` with a memory of one: the visitors of one look share what it makes."""
    last: tuple[Snapshot, T] | None = None

    def value(seen: Snapshot) -> T:
        nonlocal last
        if last is None or last[0] is not seen:
            last = seen, make(seen)
        return last[1]

    return value


def point_of(seen: Snapshot) -> Point:
    """Make one point of the chart."""
    backlog = sum(each.backlog for each in seen.signals.values())
    rate = sum(each.rate for each in seen.signals.values())
    return seen.status.now_us / 1e6, backlog, round(rate, 2)
