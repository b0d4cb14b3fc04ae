"""Rules of routes: the role that each one asks of its caller. Pure.

The page and the routes for operators over HTTP have one each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol, TypeVar, cast

import msgspec

from late.errors import LateError
from late.model.access.rights import Caller, Role

NOTHING_HERE = "There is nothing at this address that you may see."


class Denied(LateError):
    """The caller is known and may not do that."""


class Hidden(LateError):
    """There is no such thing, or none that this caller may know of."""


class Rule(msgspec.Struct, frozen=True):
    """A role, and what it must be for."""

    role: Role
    reach: Literal["some", "all", "queue", "lane"] = "some"
    """`some`: any queue; the screen leaves out those of others, and an action on a task or a
    schedule looks at its queue itself. `all`: what is not of one queue. `queue`: the one in the
    path. `lane`: any lane; the screen looks at which."""

    def check(self, caller: Caller, path: Mapping[str, Any]) -> None:
        """Refuse a caller without the role.

        Raises:
            Hidden: the caller may not even know of it.
            Denied: the caller may look, but lacks the role.
        """
        if self.reach == "all":
            seen, allowed = caller.may_all("view"), caller.may_all(self.role)
        elif self.reach == "queue":
            name = path["name"]
            seen, allowed = caller.may("view", name), caller.may(self.role, name)
        elif self.reach == "lane":
            seen = allowed = caller.may_all("view") or bool(caller.lanes)
        else:
            seen, allowed = caller.may("view"), caller.may(self.role)
        _refuse(seen, allowed, self.role)


def _refuse(seen: bool, allowed: bool, role: Role) -> None:
    if not seen:
        raise Hidden(NOTHING_HERE)
    if not allowed:
        raise Denied(
            f"you may look and may not change anything here: that needs the role {role!r}"
            + (", which a token has with 'operate' for all queues" if role == "admin" else "")
        )


def check_queue(caller: Caller, queue: str | None, role: Role = "view") -> None:
    """Refuse a thing of a queue; of an unknown queue (None) it may be anybody's.

    Raises:
        Hidden, Denied: as for `Rule.check`.
    """
    if queue is None:
        _refuse(caller.may_all("view"), caller.may_all(role), role)
    else:
        _refuse(caller.may("view", queue), caller.may(role, queue), role)


class HasWorkflow(Protocol):
    """A task and the stages of its workflow: `late.control.views.TaskView`."""

    @property
    def workflow(self) -> tuple[HasQueue, ...]: ...


class HasQueue(Protocol):
    """A stage of a workflow."""

    @property
    def queue(self) -> str: ...


def check_workflow(caller: Caller, stages: Iterable[HasQueue], role: Role = "operate") -> None:
    """Refuse what is done to a whole workflow that has tasks of queues without this role.

    Raises:
        Hidden, Denied: as for `Rule.check`.
    """
    for stage in stages:
        check_queue(caller, stage.queue, role)


View = TypeVar("View", bound=HasWorkflow)


def seen_by(caller: Caller, task: View) -> View:
    """Return the task without the stages of queues that the caller may not see."""
    stages = tuple(stage for stage in task.workflow if caller.may("view", stage.queue))
    if len(stages) == len(task.workflow):
        return task
    without: Any = task
    return cast(View, msgspec.structs.replace(without, workflow=stages))


LANE = Rule("view", "lane")
VIEW, OPERATE, ADMIN = Rule("view"), Rule("operate"), Rule("admin")
WHOLE, ADMIN_WHOLE = Rule("view", "all"), Rule("admin", "all")
