"""The deployment as a whole: its state, its shards and its autoscalers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from late.api.errors import NotFound
from late.api.operator.operation import Ask, Nothing, Operation, operation
from late.api.operator.values import AsOf, Listed, Name, known
from late.control.analyze.reported import Conflicts
from late.control.autoscale_journal import ControllerView, DecisionView
from late.control.views import LaneView, Owners, Status
from late.model.access.rules import ADMIN_WHOLE, VIEW, WHOLE, check_queue
from late.web.access.rules import narrowed_status

COUNTED_MAX = 10_000
Counted = Annotated[int, Meta(ge=1, le=COUNTED_MAX)]


class AskStatus(msgspec.Struct, forbid_unknown_fields=True):
    """The state is asked for, of now or of `as_of`, a time or an age such as `2h`; each count of a
    group and shard stops at `limit`."""

    queue: Name | None = None
    limit: Counted = 1_000
    as_of: AsOf | None = None


class AskOwners(msgspec.Struct, forbid_unknown_fields=True):
    """The owners of shards are asked for, with up to `limit` settlements of each shard."""

    limit: Counted = 1_000


class Lanes(msgspec.Struct):
    """The named ranges of shards."""

    lanes: list[LaneView]


class Resize(msgspec.Struct, forbid_unknown_fields=True):
    """A lane gets another width."""

    shards: Annotated[int, Meta(ge=1, le=4_096)]


class Autoscalers(msgspec.Struct):
    """The autoscalers, by name."""

    autoscalers: list[ControllerView] = msgspec.field(name="controllers")


class ListDecisions(msgspec.Struct, forbid_unknown_fields=True):
    """The latest decisions are listed."""

    name: Name | None = None
    changes: bool = False
    limit: Listed = 50


class Decisions(msgspec.Struct):
    """Decisions, the latest first."""

    decisions: list[DecisionView]


@operation("GET", "/v1/status", VIEW, "status")
def show_status(ask: Ask[AskStatus]) -> Status:
    """Show queues, groups, shards and workers, as far as they are the caller's."""
    queue, sees_all = ask.value.queue, ask.caller.may_all("view")
    if queue is not None:
        check_queue(ask.caller, queue)
    found = ask.control.status.read(queue=queue, limit=ask.value.limit, as_of=ask.value.as_of)
    if not sees_all:
        found = msgspec.structs.replace(narrowed_status(found, ask.caller), workers=())
    return known(found)


@operation("GET", "/v1/owners", WHOLE, "status")
def show_owners(ask: Ask[AskOwners]) -> Owners:
    """Show each shard's owner, its former ones, and how often those were refused."""
    return ask.control.status.owners(limit=ask.value.limit)


@operation("GET", "/v1/conflicts", WHOLE, "analyze")
def show_conflicts(ask: Ask[Nothing]) -> Conflicts:
    """Show transactions in each other's way, as workers saw them in ten minutes.

    Rows and statements are for callers that may `operate` on all queues.
    """
    found = ask.control.reported_conflicts()
    return found if ask.caller.may_all("operate") else found.without_keys()


@operation("GET", "/v1/lanes", WHOLE, "shards")
def list_lanes(ask: Ask[Nothing]) -> Lanes:
    """List the lanes, which are named ranges of shards."""
    return Lanes(ask.control.lanes.all())


@operation("POST", "/v1/lanes/{lane}/resize", ADMIN_WHOLE, "shards")
def resize_lane(ask: Ask[Resize]) -> Lanes:
    """Give a lane more or fewer shards while it works."""
    name = ask.path["lane"]
    if name not in (lanes := [each.name for each in ask.control.lanes.all()]):
        raise NotFound(f"no lane {name[:128]!r}; known: {', '.join(lanes) or 'none'}")
    ask.control.lanes.resize(name, ask.value.shards)
    return Lanes(ask.control.lanes.all())


@operation("GET", "/v1/autoscalers", WHOLE, "autoscale status")
def list_autoscalers(ask: Ask[Nothing]) -> Autoscalers:
    """Show who controls what, and what the last look found."""
    return Autoscalers(ask.control.autoscalers.all())


@operation("GET", "/v1/autoscalers/decisions", WHOLE, "autoscale history")
def list_decisions(ask: Ask[ListDecisions]) -> Decisions:
    """Show what autoscalers decided and why, the latest first."""
    asked = ask.value
    return Decisions(
        ask.control.autoscalers.decisions(name=asked.name, limit=asked.limit, changes=asked.changes)
    )


OPERATIONS: tuple[Operation, ...] = (
    show_status, show_owners, show_conflicts, list_lanes, resize_lane, list_autoscalers,
    list_decisions,
)  # fmt: skip
