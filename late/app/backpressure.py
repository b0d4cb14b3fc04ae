"""Backpressure: producers refuse tasks for queues that are closed or hold too many.

Enqueue refuses before any SQL, by a count that is some seconds old. So it costs the caller's
transaction nothing, and the bound is not exact: many producers may pass it together. If no guard
runs, or if the database does not answer, nothing is refused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from late.concurrency import in_thread
from late.errors import LateError, QueueFull
from late.model.lanes import Lane

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
        if bound is None or depth.tasks < bound:
            continue
        if bound == 0:
            raise QueueFull(f"queue {queue!r} is closed: it takes no new tasks")
        raise QueueFull(f"queue {queue!r} holds {depth.tasks} tasks, its bound is {bound}")


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
    """Read the settings and the lane once, and pass them to `app`.

    It gets the queues that are closed, the bounds of queues with their numbers of tasks, and the
    current lane.

    Raises:
        LateError: the database cannot be read.
    """
    if (lane := control.lanes.layout().lane("default")) is not None:
        app.adopt(lane)
    live = control.queues.live()
    held = held_by(control, _bounded(live), [app.group])
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


def _bounded(live: Live) -> set[str]:
    return {name for name, settings in live.queues.items() if settings.max_backlog is not None}


class BacklogPublisher:
    """Writes the number of tasks of queues with a bound for producers that use SQL.

    Such producers refuse tasks by this number, and cannot count during an enqueue. One worker
    counts for all, and only if a queue has a bound. A count is valid for ten seconds. If several
    workers write, the last count is valid.

    Args:
        control: returns the `Control` to use; it is called in a thread.
        groups: the groups that the worker serves.
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
        self._queues: set[str] = set()

    def follow(self, live: Live) -> None:
        """Use these settings from now on."""
        self._queues = _bounded(live)

    def due(self) -> bool:
        """Tell whether a queue has a bound and this worker is the one that counts."""
        return bool(self._queues) and self._mine()

    async def publish(self) -> None:
        """Count and write once.

        Raises:
            LateError: the database does not answer.
        """
        await in_thread(self._publish, frozenset(self._queues))

    def _publish(self, queues: frozenset[str]) -> None:
        control = self._control()
        control.queues.publish_held(held_by(control, queues, self._groups))
