"""Consumer groups, and the log that is kept for them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from late.api.operator.operation import Ask, Nothing, Operation, Poll, operation
from late.api.operator.values import (
    Moment,
    Name,
    Place,
    TaskIdText,
    WaitS,
    check_group,
    moment_us,
    place_of,
)
from late.control.groups.comparison import Comparison
from late.control.groups.retention import MOST_S
from late.control.groups.window import WindowReplay
from late.control.views import GroupView, Reset, Waited
from late.model.access.rules import ADMIN_WHOLE, WHOLE
from late.model.replay import WindowState
from late.model.shadow import (
    KEEP_MAX_S,
    KEEP_S,
    RATE_MAX,
    RATE_MIN,
    SPEED_MAX,
    SPEED_MIN,
)

GROUP = "/v1/groups/{group}"


class Groups(msgspec.Struct):
    """The groups, by name."""

    groups: list[GroupView]


class CreateGroup(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A group is registered; it begins at one of `place` and `at`."""

    name: Name
    queues: Annotated[list[Name], Meta(min_length=1, max_length=1_000)] | None = None
    place: Place | None = None
    at: Moment | None = None
    max_age_s: Annotated[float, Meta(ge=1, le=366 * 86_400)] | None = None
    """A task that is older when it would begin ends as expired."""


class ResetGroup(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A group begins anew at one of `place` and `at`."""

    place: Place | None = None
    at: Moment | None = None
    dry_run: bool = False
    rate: Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)] | None = None
    """Replayed tasks that begin in a second, at most, in all workers."""


class ReplayWindow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Tasks of a window run again: those created at `since` or later, and before `until`."""

    since: Moment
    until: Moment
    rate: Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)]
    """Tasks that fall due in a second."""
    again: bool = False
    """The last replay of a window is forgotten. Only for the first call."""
    dry_run: bool = False


class CreateShadow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A shadow of the group `of` is registered; it begins at one of `place` and `at`, or now."""

    name: Name
    of: Name
    queues: Annotated[list[Name], Meta(min_length=1, max_length=1_000)] | None = None
    place: Place | None = None
    at: Moment | None = None
    rate: Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)] | None = None
    """Tasks that it begins in a second, at most."""
    speed: Annotated[float, Meta(ge=SPEED_MIN, le=SPEED_MAX)] | None = None
    """It takes tasks at so many times their own pace; only with `at`."""
    keep_s: Annotated[float, Meta(ge=1, le=KEEP_MAX_S)] = KEEP_S
    """It is forgotten after so many seconds."""


class SetGroup(msgspec.Struct, forbid_unknown_fields=True):
    """Settings get values; null takes one back."""

    settings: Annotated[
        dict[str, int | float | bool | str | None], Meta(min_length=1, max_length=20)
    ]


class Deleted(msgspec.Struct):
    """A group is forgotten."""

    deleted: str


class WaitForGroup(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A group is waited for until it has settled all up to a token."""

    until: TaskIdText
    wait_s: WaitS = 20.0


class Retention(msgspec.Struct, forbid_unknown_fields=True):
    """The time for which the log keeps what every group has settled."""

    retention_s: Annotated[float, Meta(ge=0, le=MOST_S)]


def _name(ask: Ask[Any]) -> str:
    """Return the group in the path, which is registered."""
    name = ask.path["group"]
    check_group(ask, name)
    return name


@operation("GET", "/v1/groups", WHOLE, "groups", "group list")
def list_groups(ask: Ask[Nothing]) -> Groups:
    """List the consumer groups and how far behind they are."""
    return Groups(ask.control.groups.all())


@operation("POST", "/v1/groups", ADMIN_WHOLE, "group create")
def create_group(ask: Ask[CreateGroup]) -> GroupView:
    """Create a group: from then on the log keeps each task until it has settled it."""
    asked = ask.value
    start = None
    if asked.place is not None or asked.at is not None:
        start = place_of(ask, asked.place, asked.at)
    return ask.control.groups.create(
        asked.name, queues=asked.queues, start=start, max_age_s=asked.max_age_s
    )


@operation("POST", "/v1/shadows", ADMIN_WHOLE, "group shadow")
def create_shadow(ask: Ask[CreateShadow]) -> GroupView:
    """Create a shadow: a group that tries code on real tasks, without effects."""
    asked = ask.value
    start: str | int = "now"
    if asked.place is not None or asked.at is not None:
        start = place_of(ask, asked.place, asked.at)
    return ask.control.groups.shadow(
        asked.name, of=asked.of, start=start, queues=asked.queues, rate=asked.rate,
        speed=asked.speed, keep_s=asked.keep_s,
    )  # fmt: skip


@operation("GET", f"{GROUP}/compare", WHOLE, "group compare")
def compare_group(ask: Ask[Nothing]) -> Comparison:
    """Compare a shadow with the real group: ends, errors and run times, by task name."""
    return ask.control.groups.compare(_name(ask))


@operation("GET", GROUP, WHOLE, "group show")
def show_group(ask: Ask[Nothing]) -> GroupView:
    """Show one group."""
    return ask.control.groups.get(_name(ask))


@operation("PATCH", GROUP, ADMIN_WHOLE, "group set")
def set_group(ask: Ask[SetGroup]) -> GroupView:
    """Set what a group promises or skips: `objective_s`, `max_age_s`."""
    return ask.control.groups.change(_name(ask), ask.value.settings)


@operation("POST", f"{GROUP}/pause", ADMIN_WHOLE, "group pause")
def pause_group(ask: Ask[Nothing]) -> GroupView:
    """Let its workers release its shards; what runs may finish."""
    return ask.control.groups.pause(_name(ask))


@operation("POST", f"{GROUP}/resume", ADMIN_WHOLE, "group resume")
def resume_group(ask: Ask[Nothing]) -> GroupView:
    """Let its workers take its shards again."""
    return ask.control.groups.resume(_name(ask))


@operation("POST", f"{GROUP}/reset", ADMIN_WHOLE, "group reset")
def reset_group(ask: Ask[ResetGroup]) -> Reset:
    """Let a group begin anew: read the log again from a place, or leave out what waits."""
    name = _name(ask)
    place = place_of(ask, ask.value.place, ask.value.at)
    asked = ask.value
    return ask.control.groups.reset(name, place, rate=asked.rate, dry_run=asked.dry_run)


@operation("POST", f"{GROUP}/replay", ADMIN_WHOLE, "group reset")
def replay_group(ask: Ask[ReplayWindow]) -> WindowReplay:
    """Run tasks of a window again: each call puts some back. Call it until `finished`."""
    asked = ask.value
    since, until = moment_us(asked.since), moment_us(asked.until)
    return ask.control.groups.replay_window(
        _name(ask), since, until, rate=asked.rate, again=asked.again, dry_run=asked.dry_run
    )


@operation("POST", f"{GROUP}/replay/cancel", ADMIN_WHOLE, "group cancel-replay")
def cancel_replay(ask: Ask[Nothing]) -> WindowState:
    """End the replay of a window that is under way, whoever carries it on."""
    return ask.control.groups.cancel_window(_name(ask))


@operation("DELETE", GROUP, ADMIN_WHOLE, "group delete")
def delete_group(ask: Ask[Nothing]) -> Deleted:
    """Forget a group with its parked tasks and dead letters."""
    name = _name(ask)
    ask.control.groups.delete(name)
    return Deleted(name)


@operation("GET", f"{GROUP}/wait", WHOLE, "wait")
def wait_for_group(ask: Ask[WaitForGroup]) -> Poll[Waited]:
    """Wait until a group has settled every task enqueued no later than the token's."""
    waiting = ask.control.groups.waiting(_name(ask), ask.value.until)
    return Poll(waiting.look, lambda found: found.over, ask.value.wait_s)


@operation("GET", "/v1/retention", WHOLE, "retention")
def show_retention(ask: Ask[Nothing]) -> Retention:
    """Tell how long the log keeps what every group has settled."""
    return Retention(ask.control.groups.retention())


@operation("PUT", "/v1/retention", ADMIN_WHOLE, "retention")
def set_retention(ask: Ask[Retention]) -> Retention:
    """Set how long the log keeps what every group has settled."""
    return Retention(ask.control.groups.set_retention(ask.value.retention_s))


OPERATIONS: tuple[Operation, ...] = (
    list_groups, create_group, create_shadow, compare_group, show_group, set_group, pause_group,
    resume_group, reset_group, replay_group, cancel_replay, delete_group, wait_for_group,
    show_retention, set_retention,
)  # fmt: skip
