"""Backpressure: producers learn which queues are closed, or hold too much.

Enqueue refuses before any SQL, by a count that is some seconds old: it costs the caller's
transaction nothing, and is advisory by nature (many producers pass the bound together). Where
no guard runs, or the database does not answer, nothing is refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from late.concurrency import in_thread
from late.errors import LateError
from late.model.lanes import Lane

if TYPE_CHECKING:
    from late.control import Control
    from late.control.queue_settings import Live

logger = logging.getLogger("late.app")

EVERY_S = 2.0
COUNT_MAX = 100_000
"""Tasks of a shard, of all queues, that are counted at most; those behind are not seen."""


class Producer(Protocol):
    """The app that is told. `late.App` satisfies it."""

    url: str
    group: str

    def adopt(self, lane: Lane) -> None:
        """Place tasks by `lane` from now on."""

    def observe_backlog(self, queue: str, depth: int, *, bound: int | None = None) -> None:
        """Refuse tasks of `queue` while its `depth` is at the `bound`."""


class BacklogGuard:
    """A thread that looks every two seconds, from `with` to the end of the block, or `close`."""

    def __init__(self, app: Producer, *, every_s: float = EVERY_S) -> None:
        self._app = app
        self._every_s = every_s
        self._closed = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="late-backlog-guard", daemon=True)

    def __enter__(self) -> BacklogGuard:
        self._thread.start()
        # What is refused now must be refused from the first task on; a database that does not
        # answer must not keep the producer from starting.
        self._looked.wait(self._every_s)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop looking; the counts lose their effect within seconds. Calling it twice is fine."""
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
    """Tell `app` once which queues are closed or have a bound, how many tasks these hold, and how
    wide the lane is.

    Raises:
        LateError: the database cannot be read.
    """
    if (lane := control.lanes.layout().lane("default")) is not None:
        app.adopt(lane)
    live = control.queues.live()
    held = held_by(control, _bounded(live), [app.group])
    for name, knobs in live.queues.items():
        if knobs.closed:
            app.observe_backlog(name, 1, bound=0)
        elif knobs.max_backlog is not None:
            app.observe_backlog(name, held[name], bound=knobs.max_backlog)


def held_by(control: Control, queues: Collection[str], groups: Collection[str]) -> dict[str, int]:
    """Count the tasks of each of `queues`, in the one of `groups` in which it holds most."""
    if not queues:
        return {}
    held = dict.fromkeys(queues, 0)
    # A queue's bound would be too low a limit: other queues' tasks are counted with its own.
    for found in control.status.read(limit=COUNT_MAX).queues:
        if found.group in groups and found.queue in held:
            holds = found.depth.n + found.in_flight.n + found.parked.n
            held[found.queue] = max(held[found.queue], holds)
    return held


def _bounded(live: Live) -> set[str]:
    return {name for name, knobs in live.queues.items() if knobs.max_backlog is not None}


class BacklogPublisher:
    """Tells producers in SQL how many tasks the bounded queues hold: they refuse by it.

    Such producers cannot count in the middle of an enqueue. One worker counts for all, and only
    where a queue has a bound; its count is valid for ten seconds. Where several write, the last
    count is valid.

    Args:
        control: returns the `Control` to use; it is called in a thread.
        groups: those that the worker serves.
        mine: says whether this is the worker that counts.
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
        """Take the knobs as they are now."""
        self._queues = _bounded(live)

    def due(self) -> bool:
        """True if a queue has a bound and this worker is the one that counts."""
        return bool(self._queues) and self._mine()

    async def publish(self) -> None:
        """Count and write, once.

        Raises:
            LateError: the database does not answer.
        """
        await in_thread(self._publish, frozenset(self._queues))

    def _publish(self, queues: frozenset[str]) -> None:
        control = self._control()
        control.queues.publish_held(held_by(control, queues, self._groups))
