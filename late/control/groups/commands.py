"""What `Control` does with consumer groups, and with the log that is kept for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from late.control.groups import groups, lag, retention
from late.control.groups import reset as resets
from late.control.groups import wait as waiting
from late.control.views import GroupView, Reset, Status, Waited


class GroupControl:
    """A part of `Control`: see there for what all methods raise."""

    _engine: Engine
    _alarm_s: float

    if TYPE_CHECKING:

        def check(self) -> None: ...

    def retention(self) -> float:
        """For how many seconds the log keeps what every group has settled."""
        self.check()
        return retention.get(self._engine)

    def set_retention(self, keep_s: float) -> float:
        """Keep it for so long, for groups that are created or reset later; 0: not at all."""
        self.check()
        return retention.put(self._engine, keep_s)

    # --- consumer groups

    def groups(self, *, limit: int = lag.LIMIT, seen: Status | None = None) -> list[GroupView]:
        """The consumer groups, ascending by name, with how far behind they are; counting stops at
        `limit` records of one shard. With what was `seen` a moment ago, nothing is counted."""
        self.check()
        return lag.groups(self._engine, alarm_s=self._alarm_s, limit=limit, seen=seen)

    def group(self, name: str) -> GroupView:
        """One of them."""
        self.check()
        return lag.groups(self._engine, name=name, alarm_s=self._alarm_s)[0]

    def create_group(
        self, name: str, *, queues: Sequence[str] | None = None, start: str | int | None
    ) -> GroupView:
        """Register a group that begins at `beginning`, `now`, or a moment in microseconds."""
        self.check()
        groups.create(self._engine, name, queues=queues, start=start)
        return self.group(name)

    def pause_group(self, name: str) -> GroupView:
        """Its workers release its shards within seconds; what runs may finish."""
        self.check()
        groups.pause(self._engine, name, paused=True)
        return self.group(name)

    def resume_group(self, name: str) -> GroupView:
        """Its workers take its shards again within seconds."""
        self.check()
        groups.pause(self._engine, name, paused=False)
        return self.group(name)

    def delete_group(self, name: str) -> None:
        """Forget a group with its timers and dead letters; the log holds nothing back for it."""
        self.check()
        groups.remove(self._engine, name)

    def reset_group(self, name: str, to: str | int, *, dry_run: bool = False) -> Reset:
        """Let a group begin anew at `beginning`, `now`, or a moment in microseconds."""
        self.check()
        return resets.reset(self._engine, name, to, dry_run=dry_run)

    def known_groups(self, names: Sequence[str]) -> None:
        """Make sure that all of `names` are registered; for workers."""
        self.check()
        groups.check(self._engine, names)

    def wait(self, group: str, token: str, *, timeout_s: float | None = None) -> Waited:
        """Wait until the group has settled every task that was created no later than `token`."""
        self.check()
        return waiting.wait(self._engine, group, token, timeout_s=timeout_s)
