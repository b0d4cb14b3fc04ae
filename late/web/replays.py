"""The replays of windows that this process carries on, as the command `late group reset` does.

A replay is a row of the database with its progress. Whoever calls for the next slice carries it on,
so one that this process leaves ends within seconds, and the page offers to go on with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from late.concurrency import in_thread
from late.control import Control, audit
from late.control.groups.window import WindowReplay
from late.control.views import Count
from late.errors import LateError, StoreError

logger = logging.getLogger("late.web")

RETRY_S = 2.0
"""The wait after an error of the database."""


class Replays:
    """The replays that this process carries on; on one event loop."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._totals: dict[str, Count] = {}

    def total(self, group: str) -> Count | None:
        """Return the tasks of the replay of a group that this process carries on, as they were
        counted at its beginning; None if it carries on none."""
        task = self._tasks.get(group)
        return None if task is None or task.done() else self._totals[group]

    async def begin(
        self, group: str, since_us: int, until_us: int, rate: float, *, again: bool, actor: str,
        total: Count,
    ) -> None:  # fmt: skip
        """Make the first slice, or go on with one that was left; the others follow by themselves.

        Args:
            actor: the audit has this name.
            total: the tasks that were put back already, and those that will be.

        Raises:
            ConfigError, Conflict: see `replay_window`.
        """

        def make(again: bool = False) -> WindowReplay:
            with audit.acting(actor):
                return self._control.groups.replay_window(
                    group, since_us, until_us, rate=rate, again=again
                )

        first = await in_thread(make, again)
        self.leave(group)
        if not first.finished:
            self._totals[group] = total
            self._tasks[group] = asyncio.create_task(_carry_on(make, first.wait_s))

    def leave(self, group: str) -> None:
        """Carry on no replay of a group any more."""
        if task := self._tasks.pop(group, None):
            task.cancel()

    async def close(self) -> None:
        """Leave all replays."""
        left = list(self._tasks.values())
        for group in list(self._tasks):
            self.leave(group)
        for task in left:
            with suppress(asyncio.CancelledError):
                await task


async def _carry_on(make: Callable[[], WindowReplay], wait_s: float) -> None:
    """Make slice after slice until the replay ends, or somebody has cancelled it."""
    while True:
        await asyncio.sleep(wait_s)
        try:
            found = await in_thread(make)
        except StoreError as error:
            logger.warning("a replay of a window waits for the database: %s", error)
            wait_s = RETRY_S
            continue
        except LateError as error:
            logger.info("a replay of a window has ended: %s", error)
            return
        if found.finished:
            return
        wait_s = found.wait_s
