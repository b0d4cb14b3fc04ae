"""The alarm for consumer groups that are behind, raised by one worker for all, or a few.

What a group has not read stays in the log, for as long as it takes: nothing is dropped and nothing
has a cap. So the log grows, and someone must hear of it while it is small. The groups without a
worker matter most, and nobody of their own can report them: the worker that does the maintenance
for the default group does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from late import events
from late.concurrency import in_thread
from late.events import Emitter
from late.model.task import DEFAULT_GROUP
from late.worker.background import BackgroundJob

if TYPE_CHECKING:
    from late.control import Control
    from late.control.views import GroupView

EVERY_S = 30.0


class LagAlarm:
    """Remembers which groups were behind. Pure, but for the events it emits."""

    def __init__(self, groups: Sequence[str], emitter: Emitter = events.default) -> None:
        """
        Args:
            groups: the groups that this worker serves. With the default one among them, it also
                reports every group that has no worker.
        """
        self._groups = groups
        self._emitter = emitter
        self._behind: set[str] = set()

    def update(self, views: Sequence[GroupView]) -> None:
        """Emit each group that is behind, every time, and each that has caught up, once."""
        for view in views:
            if view.shadow_of is not None:
                continue  # it may be behind: it has an end, and nobody waits for it
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


def lag_alarm_job(
    alarm: LagAlarm,
    control: Callable[[], Control],
    *,
    is_maintainer: Callable[[], bool],
    every_s: float = EVERY_S,
) -> BackgroundJob:
    """Read how far the groups are and tell the alarm."""

    async def look() -> None:
        alarm.update(await in_thread(lambda: control().groups.all()))

    return BackgroundJob(name="lag alarm", run=look, period_s=every_s, condition=is_maintainer)
