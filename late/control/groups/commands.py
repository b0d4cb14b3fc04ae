"""`Control.groups`: consumer groups, and the log that is kept for them."""

from __future__ import annotations

from collections.abc import Sequence

from late.control.database import Database, Part
from late.control.groups import groups, lag, retention
from late.control.groups import reset as resets
from late.control.groups import wait as waiting
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
        """The consumer groups, ascending by name, with how far behind they are; counting stops at
        `limit` records of one shard. With what was `seen` a moment ago, nothing is counted."""
        return lag.groups(self._database.engine, alarm_s=self._alarm_s, limit=limit, seen=seen)

    def get(self, name: str) -> GroupView:
        """One of them."""
        return lag.groups(self._database.engine, name=name, alarm_s=self._alarm_s)[0]

    def create(
        self, name: str, *, queues: Sequence[str] | None = None, start: str | int | None
    ) -> GroupView:
        """Register a group that begins at `beginning`, `now`, or a moment in microseconds."""
        groups.create(self._database.engine, name, queues=queues, start=start)
        return self.get(name)

    def pause(self, name: str) -> GroupView:
        """Its workers release its shards within seconds; what runs may finish."""
        groups.pause(self._database.engine, name, paused=True)
        return self.get(name)

    def resume(self, name: str) -> GroupView:
        """Its workers take its shards again within seconds."""
        groups.pause(self._database.engine, name, paused=False)
        return self.get(name)

    def delete(self, name: str) -> None:
        """Forget a group with its timers and dead letters; the log holds nothing back for it."""
        groups.remove(self._database.engine, name)

    def reset(self, name: str, to: str | int, *, dry_run: bool = False) -> Reset:
        """Let a group begin anew at `beginning`, `now`, or a moment in microseconds."""
        return resets.reset(self._database.engine, name, to, dry_run=dry_run)

    def require(self, names: Sequence[str]) -> None:
        """Make sure that all of `names` are registered; for workers."""
        groups.check(self._database.engine, names)

    def wait(self, group: str, token: str, *, timeout_s: float | None = None) -> Waited:
        """Wait until the group has settled every task that was created no later than `token`."""
        return waiting.wait(self._database.engine, group, token, timeout_s=timeout_s)

    def retention(self) -> float:
        """Return the seconds for which the log keeps what every group has settled."""
        return retention.get(self._database.engine)

    def set_retention(self, keep_s: float) -> float:
        """Keep it for so long, for groups that are created or reset later; 0: not at all."""
        return retention.put(self._database.engine, keep_s)
