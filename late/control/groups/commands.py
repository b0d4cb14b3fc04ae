"""`Control.groups`: consumer groups, and the log that is kept for them."""

from __future__ import annotations

from collections.abc import Sequence

from late.control.database import Database, Part
from late.control.groups import groups, lag, retention
from late.control.groups import reset as resets
from late.control.groups import wait as waits
from late.control.views import GroupView, Reset, Status, Waited


class GroupControl(Part):
    """Consumer groups. See `Control` for what all methods raise.

    Args:
        alarm_s: a group whose oldest unread record is older is `lagging`.
    """

    def __init__(self, database: Database, *, alarm_s: float) -> None:
        super().__init__(database)
        self._alarm_s = alarm_s

    def all(self, *, limit: int = lag.LIMIT, seen: Status | None = None) -> list[GroupView]:
        """Return the consumer groups with their lag, ascending by name.

        Args:
            limit: counting stops at so many records of one shard.
            seen: a status that was just read. Its counts are used, and nothing is counted.
        """
        return lag.groups(self._database.engine, alarm_s=self._alarm_s, limit=limit, seen=seen)

    def get(self, name: str) -> GroupView:
        """Return one consumer group with its lag."""
        return lag.groups(self._database.engine, name=name, alarm_s=self._alarm_s)[0]

    def create(
        self, name: str, *, queues: Sequence[str] | None = None, start: str | int | None
    ) -> GroupView:
        """Register a group that begins at `beginning`, at `now`, or at a time in microseconds."""
        groups.create(self._database.engine, name, queues=queues, start=start)
        return self.get(name)

    def pause(self, name: str) -> GroupView:
        """Pause a group. Its workers release its shards in seconds; running tasks may finish."""
        groups.pause(self._database.engine, name, paused=True)
        return self.get(name)

    def resume(self, name: str) -> GroupView:
        """End a group's pause. Its workers take its shards again within seconds."""
        groups.pause(self._database.engine, name, paused=False)
        return self.get(name)

    def delete(self, name: str) -> None:
        """Remove a group with its timers and dead letters. The log then keeps nothing for it."""
        groups.remove(self._database.engine, name)

    def reset(self, name: str, to: str | int, *, dry_run: bool = False) -> Reset:
        """Let a group read from `beginning`, from `now`, or from a time in microseconds."""
        return resets.reset(self._database.engine, name, to, dry_run=dry_run)

    def require(self, names: Sequence[str]) -> None:
        """Check that all of `names` are registered; workers call this."""
        groups.check(self._database.engine, names)

    def wait(self, group: str, token: str, *, timeout_s: float | None = None) -> Waited:
        """Wait until the group has settled every task that was created no later than `token`."""
        return waits.wait(self._database.engine, group, token, timeout_s=timeout_s)

    def retention(self) -> float:
        """Return the seconds for which the log keeps tasks that every group has settled."""
        return retention.get(self._database.engine)

    def set_retention(self, keep_s: float) -> float:
        """Keep settled tasks for so many seconds, for later creations and resets; 0 keeps none."""
        return retention.put(self._database.engine, keep_s)
