"""Rules of the page: the role that each route asks of its visitor. Pure.

A route without a rule is not served: `OperatorPage.routes` looks each of them up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from late.errors import LateError
from late.model.queue_settings import QueueSettings
from late.model.rights import Caller, Role
from late.web.snapshot import Snapshot

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


LANE = Rule("view", "lane")
VIEW, OPERATE, ADMIN = Rule("view"), Rule("operate"), Rule("admin")
WHOLE, ADMIN_WHOLE = Rule("view", "all"), Rule("admin", "all")
RULES: Mapping[str, Rule] = {
    "": VIEW,
    "live": VIEW,
    "queues": VIEW,
    "queues/{name:text}": Rule("view", "queue"),
    "targets": WHOLE,
    "targets/{name:text}": WHOLE,
    "groups": WHOLE,
    "groups/{group:text}": WHOLE,
    "shards": LANE,
    "shards/{group:text}/{shard:shard}": LANE,
    "tasks": VIEW,
    "tasks/{task_id:text}": VIEW,
    "dead": VIEW,
    "timers": VIEW,
    "schedules": VIEW,
    "workers": WHOLE,
    "autoscaler": WHOLE,
    "cost": VIEW,
    "cost/report": WHOLE,
    "tasks/{task_id:text}/cancel": OPERATE,
    "tasks/{task_id:text}/redrive": OPERATE,
    "tasks/{task_id:text}/edit": OPERATE,
    "queues/{name:text}/knobs": Rule("operate", "queue"),
    "queues/{name:text}/undo": Rule("operate", "queue"),
    "targets/{name:text}/knobs": ADMIN_WHOLE,
    "targets/{name:text}/undo": ADMIN_WHOLE,
    "dead/redrive": OPERATE,
    "dead/purge": ADMIN,
    "groups/{group:text}/pause": ADMIN_WHOLE,
    "groups/{group:text}/resume": ADMIN_WHOLE,
    "groups/{group:text}/reset": ADMIN_WHOLE,
    "schedules/{schedule:text}/pause": OPERATE,
    "schedules/{schedule:text}/resume": OPERATE,
    "schedules/{schedule:text}/run": OPERATE,
}
"""The rule of each path below the page's root. `login`, `logout` and `static` are everybody's."""


def narrowed(seen: Snapshot, caller: Caller) -> Snapshot:
    """The part of a snapshot that is of the caller's queues; all of it for who may see all."""
    if caller.may_all("view"):
        return seen

    def ours(queue: str) -> bool:
        return caller.may("view", queue)

    paces = {key: pace for key, pace in seen.paces.items() if ours(key[1])}
    status = msgspec.structs.replace(
        seen.status,
        queues=tuple(each for each in seen.status.queues if ours(each.queue)),
        unhandled=tuple(each for each in seen.status.unhandled if ours(each.queue)),
        shards=(),
        groups=(),
    )
    return Snapshot(
        status=status,
        # The sums of groups are of all queues, so those of the queues take their place.
        signals={f"{group}/{queue}": pace for (group, queue), pace in paces.items()},
        groups=(),
        queues=_settings(seen.queues, caller),
        paces=paces,
    )


def _settings(found: Mapping[str, QueueSettings], caller: Caller) -> dict[str, QueueSettings]:
    return {name: each for name, each in found.items() if caller.may("view", name)}
