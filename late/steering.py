"""What operators change, carried into a running worker: recurring tasks, knobs and
how wide the lanes are.

The control plane is synchronous and off the path of a task, so it is read in a thread every two
seconds. What cannot be read changes nothing: the worker goes on with what it knew.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from late.errors import LateError
from late.threads import in_thread

if TYPE_CHECKING:
    from late.control import Control
    from late.control.knobs import Live
    from late.lanes import Layout
    from late.task import Schedule

logger = logging.getLogger("late.steering")

EVERY_S = 2.0
"""How soon a change, made by an operator or a deploy, is seen."""
DRAINING_S = 0.25
"""The same of a lane that was resized, until it is drained."""
T = TypeVar("T")


class Steering:
    """See the module. `open` once, then `run` until cancelled.

    Args:
        on_schedules: None where this worker fires none.
    """

    def __init__(
        self,
        url: str,
        *,
        on_knobs: Callable[[Live], None],
        on_lanes: Callable[[Layout], None],
        on_schedules: Callable[[Sequence[Schedule]], None] | None,
        rng: random.Random,
        every_s: float = EVERY_S,
    ) -> None:
        self._url = url
        self._on_knobs = on_knobs
        self._on_lanes = on_lanes
        self._draining = False
        self._on_schedules = on_schedules
        self._rng = rng
        self._every_s = every_s
        self._control: Control | None = None

    async def open(self, declared: Sequence[Schedule], groups: Sequence[str]) -> None:
        """Make sure that there are such `groups` (one that nobody has created would read the log
        from a place that nobody chose), declare the code's recurring tasks and take the knobs over:
        a queue that is paused stays so through a restart.

        Raises:
            ConfigError: one of the groups is not registered.
            LateError: the database cannot be read, or has knobs that this version does not know.
        """
        self._control = control = await in_thread(lambda: _control(self._url))
        try:
            await in_thread(lambda: control.known_groups(groups))
            if declared and self._on_schedules is not None:
                await in_thread(lambda: control.sync_schedules(declared))
            self._on_knobs(await in_thread(control.live_knobs))
            self._lanes(await in_thread(control.layout))
        except BaseException:
            control.close()
            raise

    async def run(self) -> None:
        """Read and hand over, until cancelled."""
        control = self._control
        assert control is not None, "open comes first"
        try:
            while True:
                if self._on_schedules is not None:
                    await _told(control.schedules, self._on_schedules, "schedules")
                await self._follow_lanes(control, self._every_s * self._rng.uniform(0.8, 1.2))
                await _told(control.live_knobs, self._on_knobs, "knobs")
        finally:
            control.close()

    async def _follow_lanes(self, control: Control, for_s: float) -> None:
        """For so long: one look, and while a lane drains a few, because keys wait for it."""
        until = asyncio.get_running_loop().time() + for_s
        while (left_s := until - asyncio.get_running_loop().time()) > 0:
            if self._draining:
                await _told(control.keep_lanes, lambda _: None, "lanes")
            await asyncio.sleep(min(left_s, DRAINING_S if self._draining else left_s))
            await _told(control.layout, self._lanes, "lanes")

    def _lanes(self, layout: Layout) -> None:
        self._draining = bool(layout.extents)
        self._on_lanes(layout)


async def _told(read: Callable[[], T], tell: Callable[[T], None], what: str) -> None:
    try:
        found = await in_thread(read)
    except LateError as error:
        logger.warning("%s could not be read: %s", what, error)
        return
    tell(found)


def _control(url: str) -> Control:
    # SQLAlchemy takes as long to load as all the rest.
    from late.control import Control

    return Control(url)
