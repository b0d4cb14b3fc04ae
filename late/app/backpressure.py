"""Backpressure: producers refuse tasks for queues that are closed or hold too many.

A worker counts, and publishes what is full in `late_full`: every enqueue depends on that
(`late.outbox.admission`). A producer with a guard counts too, and refuses before any SQL. Both go
by a count that is some seconds old, so the bound is not exact: `docs/knobs.md` says how far off.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from late.concurrency import in_thread
from late.errors import LateError
from late.model.admission import Full, over, refusal
from late.model.lanes import Lane
from late.model.queue_settings import QueueSettings

if TYPE_CHECKING:
    from late.control import Control
    from late.control.queue_settings import Live

logger = logging.getLogger("late.app")

EVERY_S = 2.0
COUNT_MAX = 100_000
"""The most tasks of a shard that are counted, over all queues. Later tasks are not counted."""
STALE_S = 5.0
"""A published depth that is older than this is ignored."""


class Depth(NamedTuple):
    """The number of tasks that wait in a queue, as it was published."""

    tasks: int
    bound: int | None
    """The bound of the queue's knob, if it has one."""
    at_s: float
    """The value of `time.monotonic()` at that moment."""


def check_depths(
    queues: Iterable[str], depths: Mapping[str, Depth], max_backlog: int | Mapping[str, int] | None
) -> None:
    """Raise `QueueFull` if one of `queues` has reached the lower of its two bounds."""
    for queue in queues:
        depth = depths.get(queue)
        if depth is None or time.monotonic() - depth.at_s > STALE_S:
            continue
        own = max_backlog.get(queue) if isinstance(max_backlog, Mapping) else max_backlog
        bound = min([each for each in (own, depth.bound) if each is not None], default=None)
        if bound is not None and depth.tasks >= bound:
            raise refusal([Full(queue, depth.tasks, bound)])


class Producer(Protocol):
    """The app that receives the counts. `late.App` satisfies it."""

    url: str
    group: str

    def adopt(self, lane: Lane) -> None:
        """Place tasks by `lane` from now on."""

    def observe_backlog(self, queue: str, depth: int, *, bound: int | None = None) -> None:
        """Refuse tasks of `queue` while its `depth` has reached the `bound`."""


class BacklogGuard:
    """A thread that reads the settings every two seconds until the end of the block, or `close`."""

    def __init__(self, app: Producer, *, every_s: float = EVERY_S) -> None:
        self._app = app
        self._every_s = every_s
        self._closed = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="late-backlog-guard", daemon=True)

    def __enter__(self) -> BacklogGuard:
        self._thread.start()
        # The first read must apply to the first task already. The wait is bounded, so that the
        # producer also starts if the database does not answer.
        self._looked.wait(self._every_s)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread. The last counts expire within seconds. It may be called twice."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _run(self) -> None:
        from late.control import Control

        with Control(self._app.url) as control:
            while not self._closed.is_set():
                try:
                    look(self._app, control)
                except LateError as error:
                    logger.warning("the knobs of queues could not be read: %s", error)
                self._looked.set()
                self._closed.wait(self._every_s)


def look(app: Producer, control: Control) -> None:
    """Read the settings and the lanes once, and pass them to `app`.

    It gets the queues that are closed, the bounds of queues with their numbers of tasks, and the
    lanes.

    Raises:
        LateError: the database cannot be read.
    """
    for lane in control.lanes.layout().lanes:
        app.adopt(lane)
    live = control.queues.live()
    held = held_by(control, _bounds(live), [app.group])
    for name, settings in live.queues.items():
        if settings.closed:
            app.observe_backlog(name, 1, bound=0)
        elif settings.max_backlog is not None:
            app.observe_backlog(name, held[name], bound=settings.max_backlog)


def held_by(control: Control, queues: Collection[str], groups: Collection[str]) -> dict[str, int]:
    """Count the tasks of each of `queues`, in that one of `groups` which has the most of them."""
    if not queues:
        return {}
    held = dict.fromkeys(queues, 0)
    # The limit cannot be the bound of a queue, because the tasks of other queues count towards it.
    for found in control.status.read(limit=COUNT_MAX).queues:
        if found.group in groups and found.queue in held:
            holds = found.depth.n + found.in_flight.n + found.parked.n
            held[found.queue] = max(held[found.queue], holds)
    return held


def _bounds(live: Live) -> dict[str, int]:
    found = {name: settings.max_backlog for name, settings in live.queues.items()}
    return {name: bound for name, bound in found.items() if bound is not None}


class BacklogPublisher:
    """Publishes what is full: queues and limit keys that have reached their bound.

    One worker counts for all producers, and only while something has a bound or is closed. What it
    has published counts for ten seconds. Several may count, where workers serve different groups;
    so each counts for all groups that have a worker, and the last count is as good as the others.

    Args:
        control: returns the `Control` to use; it is called in a thread.
        groups: the groups that the worker serves. They count even while nobody sees it alive.
        mine: returns True if this worker is the one that counts.
    """

    def __init__(
        self,
        control: Callable[[], Control],
        groups: Collection[str],
        *,
        mine: Callable[[], bool],
    ) -> None:
        self._control = control
        self._groups = groups
        self._mine = mine
        self._live: Live | None = None
        self._changed = False
        """The knobs are not published as they are now."""

    def follow(self, live: Live) -> None:
        """Use these settings from now on."""
        self._live, self._changed = live, True

    def due(self) -> bool:
        """Tell whether this worker is the one that counts, and there is something to publish."""
        if self._live is None or not self._mine():
            return False
        return self._changed or any(map(_refuses, self._live.queues.values()))

    async def publish(self) -> None:
        """Count and write once.

        Raises:
            LateError: the database does not answer.
        """
        live, self._changed = self._live, False
        try:
            if live is not None:
                await in_thread(publish, self._control(), live, self._groups)
        except BaseException:
            self._changed = True
            raise


def publish(control: Control, live: Live, groups: Collection[str]) -> None:
    """Count what has a bound in `groups` and in all that have a worker, and publish what is full.

    Raises:
        LateError: the database does not answer.
    """
    bounds, groups = _bounds(live), {*groups, *control.groups.served()}
    found = over(held_by(control, bounds, groups), bounds)
    of_keys = {n: s.key_backlog for n, s in live.queues.items() if s.key_backlog is not None}
    held = control.queues.held_by_keys(of_keys, groups, limit=COUNT_MAX)
    found |= over(held, {name: of_keys[name.partition(" ")[0]] for name in held})
    closed = [name for name, settings in live.queues.items() if settings.closed]
    control.queues.publish_full(found, closed)


def _refuses(settings: QueueSettings) -> bool:
    return bool(settings.closed or settings.max_backlog or settings.key_backlog)
