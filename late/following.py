"""A producer follows the knobs that concern it: queues that are closed, or hold too much.

Enqueue refuses before any SQL, by what was seen within the last seconds: it costs the caller's
transaction nothing, and is advisory by nature (many producers pass the bound together). Where
nobody follows, or the database does not answer, nothing is refused.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from late.errors import LateError

if TYPE_CHECKING:
    from late.app import App
    from late.control import Control

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
    if (lane := control.layout().lane("default")) is not None:
        app.adopt(lane)
    for name, knobs in control.live_knobs().queues.items():
        if knobs.closed:
            app.observe_backlog(name, 1, bound=0)
        elif knobs.max_backlog is not None:
            # The bound itself would be too low a limit: other queues' tasks are counted with it.
            found = control.status(queue=name, limit=COUNT_MAX).queues
            held = [q.depth.n + q.in_flight.n + q.parked.n for q in found if q.group == app.group]
            app.observe_backlog(name, sum(held), bound=knobs.max_backlog)
