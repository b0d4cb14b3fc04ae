"""The alarm for consumer groups that are behind, raised by one worker for all, or a few.

What a group has not read stays in the log, for as long as it takes: nothing is dropped and nothing
has a cap. So the log grows, and someone must hear of it while it is small. The groups that nobody
works are the ones that matter most, and have no worker of their own to say so: whoever keeps house
for the default group speaks for them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from late import events
from late.errors import LateError
from late.events import Emitter
from late.model.task import DEFAULT_GROUP

if TYPE_CHECKING:
    from late.control.views import GroupView

logger = logging.getLogger("late.lagging")

EVERY_S = 30.0


class Alarm:
    """Remembers who was behind. Pure, but for what it emits."""

    def __init__(self, groups: Sequence[str], emitter: Emitter = events.default) -> None:
        """
        Args:
            groups: those that this worker serves. With the default one among them, it speaks for
                every group that has no worker, too.
        """
        self._groups = groups
        self._emitter = emitter
        self._behind: set[str] = set()

    def take(self, views: Sequence[GroupView]) -> None:
        """Say who is behind, each time, and who has caught up, once."""
        for view in views:
            orphan = view.workers == 0 and DEFAULT_GROUP in self._groups
            if not (orphan or view.name in self._groups):
                self._behind.discard(view.name)
            elif view.lagging:
                self._behind.add(view.name)
                self._emitter.emit(
                    events.GROUP_LAGGING,
                    group=view.name,
                    lag_s=view.lag_s or 0.0,
                    unread=view.lag.n,
                    state=view.state,
                )
            elif view.name in self._behind:
                self._behind.discard(view.name)
                self._emitter.emit(events.GROUP_CAUGHT_UP, group=view.name)


async def watch(
    url: str,
    alarm: Alarm,
    alarm_s: float,
    *,
    mine: Callable[[], bool],
    rng: random.Random,
    every_s: float = EVERY_S,
) -> None:
    """Look every `every_s` while it is `mine` to do, until cancelled; not if `alarm_s` is 0."""
    while alarm_s:
        await asyncio.sleep(every_s * rng.uniform(0.8, 1.2))
        if not mine():
            continue
        try:
            alarm.take(await asyncio.to_thread(_read, url, alarm_s))
        except LateError as error:
            logger.warning("the groups could not be read: %s", error)
    await asyncio.Event().wait()


def _read(url: str, alarm_s: float) -> list[GroupView]:
    from late.control import Control  # SQLAlchemy takes as long to load as all the rest

    with Control(url, alarm_s=alarm_s) as control:
        return control.groups.all()
