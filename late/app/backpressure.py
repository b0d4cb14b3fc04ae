"""Producers follow the knobs that concern them: queues that are closed, or hold too much.

Enqueue refuses before any SQL, by what was seen within the last seconds: it costs the caller's
transaction nothing, and is advisory by nature (many producers pass the bound together). Where
nobody follows, or the database does not answer, nothing is refused.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Collection
from types import TracebackType
from typing import TYPE_CHECKING

from late.concurrency import in_thread
from late.errors import LateError

if TYPE_CHECKING:
    from late.app.app import App
    from late.control import Control
    from late.control.queue_settings import Live

logger = logging.getLogger("late.following")

EVERY_S = 2.0
COUNT_MAX = 100_000
"""Tasks of a shard, of all queues, that a look counts at most: what lies behind is not seen."""


class Following:
    """A thread that looks every two seconds, from `with` to the end of the block, or `close`."""

    def __init__(self, app: App, *, every_s: float = EVERY_S) -> None:
        self._app = app
        self._every_s = every_s
        self._over = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="late-following", daemon=True)

    def __enter__(self) -> Following:
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
        """Follow no longer; what was seen fades within seconds. Twice is fine."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _run(self) -> None:
        from late.control import Control

        with Control(self._app.url) as control:
            while not self._over.is_set():
                try:
                    look(self._app, control)
                except LateError as error:
                    logger.warning("the knobs of queues could not be read: %s", error)
                self._looked.set()
                self._over.wait(self._every_s)


def look(app: App, control: Control) -> None:
    """Tell `app` once which of its queues are closed or have a bound, and how much they hold; and
    how wide the lane is.

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
    """How many tasks each of `queues` holds, in that of `groups` in which it holds most."""
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


class Publishing:
    """A worker's word on how much the bounded queues hold: producers in SQL refuse by it.

    They cannot count in the middle of an enqueue. One worker counts for all, and only where a queue
    has a bound; what it wrote counts for ten seconds. Where several do, the last word counts.

    Args:
        groups: those that the worker serves.
        mine: whether this is the worker that does it.
    """

    def __init__(
        self,
        url: str,
        groups: Collection[str],
        *,
        mine: Callable[[], bool],
        rng: random.Random,
        every_s: float = EVERY_S,
    ) -> None:
        self._url = url
        self._groups = groups
        self._mine = mine
        self._rng = rng
        self._every_s = every_s
        self._queues: set[str] = set()

    def follow(self, live: Live) -> None:
        """The knobs as they are now."""
        self._queues = _bounded(live)

    async def run(self) -> None:
        """Count and write, until cancelled."""
        while True:
            if self._queues and self._mine():
                try:
                    await in_thread(self._publish, frozenset(self._queues))
                except LateError as error:
                    logger.warning("what queues hold could not be published: %s", error)
            await asyncio.sleep(self._every_s * self._rng.uniform(0.8, 1.2))

    def _publish(self, queues: frozenset[str]) -> None:
        from late.control import Control

        with Control(self._url) as control:
            control.queues.publish_held(held_by(control, queues, self._groups))
