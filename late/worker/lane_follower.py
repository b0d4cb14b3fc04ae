"""Take in the lanes of the database, and warn of those that it does not have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from late.app.app import App
from late.model.lanes import Layout

logger = logging.getLogger("late.worker")
NAMED = 5
"""The most tasks that a warning names."""


class LaneFollower:
    """Passes each layout of the lanes on, to the tasks that are enqueued here and to the scheduler.

    A lane that its tasks or the worker itself name and that is not there is told of once, and again
    if it has come and has gone again.

    Args:
        serves: the lanes that the worker keeps to; empty: all.
        resized: what holds keys back during a resize.
    """

    def __init__(
        self, app: App, serves: Iterable[str], resized: Callable[[Layout], object]
    ) -> None:
        self._app = app
        self._serves = frozenset(serves)
        self._resized = resized
        self._missing: frozenset[str] = frozenset()

    def take(self, layout: Layout) -> None:
        """Take in the lanes that the database has now."""
        self._resized(layout)
        for lane in layout.lanes:
            self._app.adopt(lane)
        named: dict[str, list[str]] = {name: [] for name in self._serves}
        for task in self._app.tasks.values():
            if task.lane is not None:
                named.setdefault(task.lane, []).append(task.name)
        missing = frozenset(named) - {lane.name for lane in layout.lanes}
        for name in sorted(missing - self._missing):
            self._warn(name, named[name])
        self._missing = missing

    def _warn(self, lane: str, tasks: list[str]) -> None:
        if lane in self._serves:
            logger.warning(
                "there is no lane %s any more: this worker serves it, and runs nothing of it until"
                " the lane is made again", lane,
            )  # fmt: skip
        if tasks:
            logger.warning(
                "there is no lane %s, so %s cannot be enqueued: late shards --lane %s --create N",
                lane, ", ".join(sorted(tasks)[:NAMED]), lane,
            )  # fmt: skip
