"""One finding. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

Level = Literal["bad", "warn", "ok"]


class Finding(msgspec.Struct, frozen=True):
    """One thing to look at."""

    level: Level
    what: str
    detail: str
    """The cause and its extent, in sentences."""
    href: str
    """A link, relative to the root of the page."""
    command: str = ""
    """The command that helps: to look closer, or to change it. None destroys anything."""
    since_us: int | None = None
    """The time since when it is so, where that is known."""
    groups: frozenset[str] | None = None
    """The groups that it holds up; None: it may be any."""
    queues: frozenset[str] | None = None
    """The queues that it holds up; None: it may be any."""

    def concerns(self, group: str, queues: Collection[str] | None) -> bool:
        """Return whether it may hold up a group that reads `queues`; None stands for all."""
        if self.groups is not None and group not in self.groups:
            return False
        return self.queues is None or queues is None or not self.queues.isdisjoint(queues)


def following(effect: Finding, cause: Finding, *, sure: bool = True) -> Finding:
    """Return an effect that names its cause, and whose command is that of the cause."""
    follows = "It follows from" if sure else "It may follow from"
    detail = f"{effect.detail} {follows}: {cause.what}."
    return msgspec.structs.replace(effect, detail=detail, command=cause.command or effect.command)


def before(now_us: int, seconds: float | None) -> int | None:
    """Return the time so many seconds before; None for None."""
    return None if seconds is None else now_us - round(seconds * 1e6)
