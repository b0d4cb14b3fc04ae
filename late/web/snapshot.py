"""One look at the database for everybody who watches.

A hundred open pages must cost the database no more than one, so they share what was last seen, and
a look begins when somebody asks and the last is older than `EVERY_S`. Nobody watches: nothing is
asked. While the database does not answer, what was last seen stays, and says how old it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from late.autoscaler.keda.demand import Signals
from late.concurrency import in_thread
from late.control import Control
from late.control.views import GroupView, Status
from late.errors import LateError
from late.model.queue_settings import Knobs

logger = logging.getLogger("late.web")

EVERY_S = 2.0
GLANCE_S = 0.1
"""How long a page waits for a newer look when it could show the last one: enough for a quick one,
and where they are slow nobody waits for what some seconds more would change."""
PATIENCE_S = 1.0
"""The same where somebody has changed something, or the last look is old."""
OLD_S = 60.0
"""From which age on a look is old, where looks are no rarer than that."""
LIMIT = 1_000
"""Where counting the depth of one group and shard stops."""
POINTS = 300
"""Of the chart: ten minutes of looks."""
SHARE = 0.1
"""Of the time that may go into looking: where a look takes long, they are fewer."""


class Snapshot(msgspec.Struct, frozen=True):
    """What one look has found."""

    status: Status
    signals: Mapping[str, Signals]
    """By group."""
    groups: tuple[GroupView, ...]
    queues: Mapping[str, Knobs]
    """Knobs of the queues that have any."""
    targets: Mapping[str, Knobs] = {}
    """The same of targets."""
    paces: Mapping[tuple[str, str], Signals] = {}
    """By (group, queue), of those that have tasks."""


Point = tuple[float, int, float]
"""Seconds since the Unix epoch, backlog, attempts a second: over all groups."""


class SnapshotReader:
    """Shared by all requests, on one event loop."""

    def __init__(self, control: Control, *, every_s: float = EVERY_S) -> None:
        self._control = control
        self._every_s = every_s
        self._seen: Snapshot | None = None
        self._at = self._took_s = 0.0
        self._changed = False
        self._looking: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self.points: deque[Point] = deque(maxlen=POINTS)
        self.version = 0
        """One more with every look that succeeded or began to fail."""

    @property
    def trouble(self) -> str:
        """Why there is nothing newer; empty when all is well. Not the database's own words: they
        may name hosts and users."""
        if self._failure is None:
            return "The database is slow to answer." if self._old else ""
        if isinstance(self._failure, LateError):
            return "The database does not answer."
        return "The database cannot be looked at: the server's log says why."

    @property
    def age_s(self) -> float:
        """Of what `seen` returns."""
        return 0.0 if self._seen is None else max(0.0, time.monotonic() - self._at)

    async def seen(self) -> Snapshot:
        """The last look, of this moment if that does not take long.

        Raises:
            StoreError: the database was never seen.
        """
        patience_s = PATIENCE_S if self._changed or self._old else GLANCE_S
        # Twice, as a look that was under way when something changed does not know of it.
        for _ in range(2):
            if not self._due:
                break
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look(), name="late-look")
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
        return self.age_s > max(OLD_S, 2 * self._rest_s)

    def forget(self) -> None:
        """Somebody has changed something: the next to ask gets a new look."""
        self._changed = True

    async def close(self) -> None:
        """Wait for a look under way: it holds a connection."""
        if self._looking is not None:
            with suppress(asyncio.CancelledError):
                await asyncio.wait({self._looking})

    async def _look(self) -> None:
        began = time.monotonic()
        self._changed = False
        try:
            seen = await in_thread(self._read)
        except Exception as error:
            # Whatever it is: what was seen stays, and says how old it is.
            if self._failure is None:
                self.version += 1
                trace = None if isinstance(error, LateError) else error
                text = "the database could not be looked at for the page: %s"
                logger.warning(text, error, exc_info=trace)
            self._failure = error
            return
        self._seen, self._at, self._failure = seen, began, None
        self._took_s = time.monotonic() - began
        self.version += 1
        self.points.append(point_of(seen))

    def _read(self) -> Snapshot:
        status, signals, paces = self._control.status.detailed(limit=LIMIT)
        groups = tuple(
            msgspec.structs.replace(each, stale_s=status.stale_s(each.name))
            for each in self._control.groups.all(seen=status)
        )
        knobs = self._control.queues.live()
        return Snapshot(status, signals, groups, knobs.queues, knobs.targets, paces)


def point_of(seen: Snapshot) -> Point:
    """One point of the chart."""
    backlog = sum(each.backlog for each in seen.signals.values())
    rate = sum(each.rate for each in seen.signals.values())
    return seen.status.now_us / 1e6, backlog, round(rate, 2)
