"""The entries of the page: six sections, and the screens of each below it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from late.model.access.rights import Caller
from late.model.access.rules import Denied, Hidden
from late.web.access.rules import RULES


class Screen(msgspec.Struct, frozen=True):
    """One screen that has an entry."""

    path: str
    """The path below the page's root, which may have a query."""
    name: str
    key: str
    """The keyboard key that leads there, after `g`."""


class Section(msgspec.Struct, frozen=True):
    """One entry of the first row, and its screens, which are the second row."""

    screens: tuple[Screen, ...]
    is_current: bool = False

    @property
    def first(self) -> Screen:
        """The screen that the entry leads to."""
        return self.screens[0]


SECTIONS = (
    Section((Screen("", "Overview", "o"),)),
    Section(
        (
            Screen("queues", "Queues", "q"),
            Screen("groups", "Groups", "g"),
            Screen("targets", "Targets", "r"),
            Screen("celery", "From Celery", "y"),
        )
    ),
    Section(
        (
            Screen("tasks", "Tasks", "t"),
            Screen("tasks?state=parked", "Parked", "p"),
            Screen("workflows", "Workflows", "f"),
            Screen("dead", "Dead letters", "d"),
            Screen("conflicts", "Conflicts", "x"),
        )
    ),
    Section((Screen("schedules", "Schedules", "c"),)),
    Section(
        (
            Screen("workers", "Workers", "w"),
            Screen("shards", "Shards", "s"),
            Screen("autoscaler", "Autoscaler", "a"),
        )
    ),
    Section((Screen("cost", "Cost", "u"),)),
)


def here(path: str, state: str = "") -> str:
    """Return the path of the screen that an address belongs to.

    Args:
        path: the address below the page's root.
        state: the state of tasks that it asks for.
    """
    first, _, rest = path.partition("/")
    return "tasks?state=parked" if first == "tasks" and not rest and state == "parked" else first


def sections(caller: Caller, current: str, hidden: Sequence[str] = ()) -> list[Section]:
    """List the sections with the screens that the caller may open, the current one marked.

    An entry leads to the first of its screens that the caller may open, and has the name of that.
    """
    found = []
    for section in SECTIONS:
        ours = tuple(
            each
            for each in section.screens
            if each.path not in hidden and _may_open(each.path, caller)
        )
        if ours:
            found.append(Section(ours, any(each.path == current for each in ours)))
    return found


def _may_open(path: str, caller: Caller) -> bool:
    try:
        RULES[path.partition("?")[0]].check(caller, {})
    except (Denied, Hidden):
        return False
    return True
