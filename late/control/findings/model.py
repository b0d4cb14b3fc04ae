"""One finding. Pure."""

from __future__ import annotations

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
