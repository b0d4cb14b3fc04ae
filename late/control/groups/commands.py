"""`Control.groups`: consumer groups, and the log that is kept for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from late.control.database import Database, Part, on_engine
from late.control.groups import compare as comparisons
from late.control.groups import groups, lag
from late.control.groups import replay as replays
from late.control.groups import reset as resets
from late.control.groups import retention as retentions
from late.control.groups import settings as group_settings
from late.control.groups import shadow as shadows
from late.control.groups import wait as waits
from late.control.groups import window as windows
from late.control.groups import window_state as window_states
from late.control.sql import positions
from late.control.views import GroupView, Status
from late.model.shadow import KEEP_S


class GroupControl(Part):
    """Consumer groups. See `Control` for what all methods raise.

    Args:
        alarm_s: a group whose oldest unread record is older is `lagging`.
    """

    def __init__(self, database: Database, *, alarm_s: float) -> None:
        super().__init__(database)
        self.set_alarm(alarm_s)

    def set_alarm(self, alarm_s: float) -> None:
        """Change the age from which a group is `lagging`; with 0 none is."""
        self.alarm_s = alarm_s or math.inf

    def all(self, *, limit: int = lag.LIMIT, seen: Status | None = None) -> list[GroupView]:
        """Return the consumer groups with their lag, ascending by name.

        Args:
            limit: counting stops at so many records of one shard.
            seen: a status that was just read. Its counts are used, and nothing is counted.
        """
        return lag.groups(self._database.engine, alarm_s=self.alarm_s, limit=limit, seen=seen)

    def get(self, name: str) -> GroupView:
        """Return one consumer group with its lag."""
        return lag.groups(self._database.engine, name=name, alarm_s=self.alarm_s)[0]

    def create(
        self,
        name: str,
        *,
        queues: Sequence[str] | None = None,
        start: str | int | None,
        max_age_s: float | None = None,
    ) -> GroupView:
        """Register a group that begins at `beginning`, at `now`, or at a time in microseconds.

        Args:
            max_age_s: a task that is older when it would begin ends as expired.
        """
        chosen = group_settings.checked({"max_age_s": max_age_s})

        def register(connection: Connection, now: int) -> Mapping[str, Any]:
            group_settings.put(connection, name, chosen)
            return {}

        engine = self._database.engine
        groups.create(engine, name, queues=queues, start=start, register=register)
        return self.get(name)

    def shadow(
        self,
        name: str,
        *,
        of: str,
        start: str | int = positions.NOW,
        queues: Sequence[str] | None = None,
        rate: float | None = None,
        speed: float | None = None,
        keep_s: float = KEEP_S,
    ) -> GroupView:
        """Register a shadow of the group `of`; see `late.control.groups.shadow.create`."""
        shadows.create(
            self._database.engine, name, of=of, start=start, queues=queues, rate=rate,
            speed=speed, keep_s=keep_s,
        )  # fmt: skip
        return self.get(name)

    def pause(self, name: str) -> GroupView:
        """Pause a group. Its workers release its shards in seconds; running tasks may finish."""
        groups.pause(self._database.engine, name, paused=True)
        return self.get(name)

    def resume(self, name: str) -> GroupView:
        """End a group's pause. Its workers take its shards again within seconds."""
        groups.pause(self._database.engine, name, paused=False)
        return self.get(name)

    def change(self, name: str, changes: Mapping[str, Any]) -> GroupView:
        """Change settings of a group; see `late.control.groups.settings.change`."""
        group_settings.change(self._database.engine, name, changes)
        return self.get(name)

    served = on_engine(groups.served)
    delete = on_engine(groups.remove)
    reset = on_engine(resets.reset)
    replays = on_engine(replays.all_of)
    replay_window = on_engine(windows.replay_window)
    window_state = on_engine(window_states.window_state)
    cancel_window = on_engine(window_states.cancel_window)
    begin_shadows = on_engine(shadows.begin)
    shadows = on_engine(shadows.names)
    compare = on_engine(comparisons.compare)
    require = on_engine(groups.check)
    wait = on_engine(waits.wait)
    waiting = on_engine(waits.Waiting)
    retention = on_engine(retentions.get)
    set_retention = on_engine(retentions.put)
