"""Recurring tasks."""

from __future__ import annotations

from typing import Any

import msgspec

from late.api.errors import NotFound
from late.api.operator.operation import Ask, Nothing, Operation, operation
from late.api.operator.values import Moment, moment_us
from late.control.backfill import Backfill
from late.control.schedule_view import ScheduleView
from late.model.access.rights import Role
from late.model.access.rules import ADMIN, OPERATE, VIEW, check_queue

SCHEDULE = "/v1/schedules/{schedule}"


class Schedules(msgspec.Struct):
    """Recurring tasks, by name."""

    schedules: list[ScheduleView]


class Ran(msgspec.Struct):
    """The task of a schedule was enqueued."""

    schedule: str
    task_id: str


class Removed(msgspec.Struct):
    """A schedule is forgotten."""

    removed: str


class BackfillSchedule(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The ticks from `since` until before `until`, or now, are enqueued."""

    since: Moment
    until: Moment | None = None
    dry_run: bool = False


def _name(ask: Ask[Any], role: Role) -> str:
    """Return the schedule in the path, for whose queue the caller has the role.

    Raises:
        Hidden, Denied: see `check_queue`.
        NotFound: there is no such schedule.
    """
    name = ask.path["schedule"]
    queues = {each.name: each.queue for each in ask.control.schedules.all()}
    check_queue(ask.caller, queues.get(name), role)
    if name not in queues:
        raise NotFound(f"no schedule {name!r}")
    return name


@operation("GET", "/v1/schedules", VIEW, "schedule list")
def list_schedules(ask: Ask[Nothing]) -> Schedules:
    """List the recurring tasks and when each is due next."""
    found = ask.control.schedules.all()
    return Schedules(
        [ScheduleView.of(each) for each in found if ask.caller.may("view", each.queue)]
    )


@operation("POST", f"{SCHEDULE}/pause", OPERATE, "schedule pause")
def pause_schedule(ask: Ask[Nothing]) -> ScheduleView:
    """Fire no more ticks until it is resumed."""
    return ScheduleView.of(ask.control.schedules.pause(_name(ask, "operate")))


@operation("POST", f"{SCHEDULE}/resume", OPERATE, "schedule resume")
def resume_schedule(ask: Ask[Nothing]) -> ScheduleView:
    """Fire again; what came due during the pause is left out."""
    return ScheduleView.of(ask.control.schedules.resume(_name(ask, "operate")))


@operation("POST", f"{SCHEDULE}/run", OPERATE, "schedule run")
def run_schedule(ask: Ask[Nothing]) -> Ran:
    """Enqueue its task now, besides its ticks."""
    name = _name(ask, "operate")
    return Ran(name, ask.control.schedules.run(name))


@operation("POST", f"{SCHEDULE}/backfill", OPERATE, "schedule backfill")
def backfill_schedule(ask: Ask[BackfillSchedule]) -> Backfill:
    """Enqueue the ticks of a past time that were not enqueued."""
    asked = ask.value
    until_us = None if asked.until is None else moment_us(asked.until)
    return ask.control.schedules.backfill(
        _name(ask, "operate"), moment_us(asked.since), until_us, dry_run=asked.dry_run
    )


@operation("DELETE", SCHEDULE, ADMIN, "schedule remove")
def remove_schedule(ask: Ask[Nothing]) -> Removed:
    """Forget a recurring task; a worker whose code still has it declares it again."""
    name = _name(ask, "admin")
    ask.control.schedules.remove(name)
    return Removed(name)


OPERATIONS: tuple[Operation, ...] = (
    list_schedules, pause_schedule, resume_schedule, run_schedule, backfill_schedule,
    remove_schedule,
)  # fmt: skip
