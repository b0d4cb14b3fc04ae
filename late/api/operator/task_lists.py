"""Tasks by their state, and what is done to all that match."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from late.api.operator.operation import Ask, Operation, operation
from late.api.operator.values import Listed, Moment, Name, check_asked, check_group, moment_us
from late.control.task_list.commands import COMMANDS_MAX, RATE_MAX, RATE_MIN
from late.control.task_list.model import Commanded, ListedTask, State, TaskFilter, cursor_of, key_of
from late.control.views import Moved
from late.errors import ConfigError
from late.model import validation as validate
from late.model.access.rights import Role
from late.model.access.rules import OPERATE, VIEW, check_queue
from late.model.task import DEFAULT_GROUP

Text = Annotated[str, Meta(min_length=1, max_length=1_024)]
Most = Annotated[int, Meta(ge=1, le=COMMANDS_MAX)]


class WhichTasks(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Tasks that all of the given fields match."""

    group: Name = DEFAULT_GROUP
    queue: Name | None = None
    name: Name | None = None
    reason: Name | None = None
    key: Text | None = None
    tenant: Text | None = None
    header: Text | None = None
    """NAME=VALUE."""
    older_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    since: Moment | None = None
    until: Moment | None = None


class ListTasks(WhichTasks, kw_only=True):
    """Tasks are listed."""

    state: State
    limit: Listed = 50
    after: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class CancelTasks(WhichTasks, kw_only=True):
    """Tasks are cancelled: a filter, or `all`."""

    state: Commanded
    """`unfinished`: logged, open and parked."""
    all: bool = False
    limit: Most = COMMANDS_MAX
    dry_run: bool = False


class RescheduleTasks(CancelTasks, kw_only=True):
    """Tasks get another due time: one of `at` and `delay_s`."""

    at: Moment | None = None
    delay_s: float | None = None
    rate: Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)] | None = None


class ListedTasks(msgspec.Struct, kw_only=True):
    """One page of tasks in one state."""

    state: str
    now_us: int
    looked: int
    """The rows that were looked at."""
    stopped: bool
    """The look ended at its bound: there may be more on further pages."""
    after: str | None = None
    """The next page begins here; none after the last one."""
    tasks: list[ListedTask]


def _filter(ask: Ask[Any], role: Role) -> TaskFilter:
    """Return the filter, for whose queue the caller has the role; without a queue, for all.

    Raises:
        Hidden, Denied: see `check_asked`.
        NotFound: there is no such group.
        ConfigError: a header is not NAME=VALUE.
    """
    asked: WhichTasks = ask.value
    check_asked(ask, asked.queue, role)
    check_group(ask, asked.group)
    name, equals, value = (asked.header or "").partition("=")
    if asked.header is not None and not (name and equals):
        raise ConfigError("header: expected NAME=VALUE")
    return TaskFilter(
        group=asked.group, queue=asked.queue, name=asked.name, reason=asked.reason, key=asked.key,
        tenant=asked.tenant, header=(name, value) if asked.header else None,
        older_us=round(asked.older_s * 1_000_000),
        since_us=None if asked.since is None else moment_us(asked.since),
        until_us=None if asked.until is None else moment_us(asked.until),
    )  # fmt: skip


def _chosen(ask: Ask[Any]) -> TaskFilter:
    """Return the filter of what is commanded; nobody means all by leaving the filter out."""
    which = _filter(ask, "operate")
    if (which == TaskFilter(group=which.group)) != ask.value.all:
        raise ConfigError('give a filter, or "all": true, and not both')
    return which


@operation("GET", "/v1/tasks", VIEW, "tasks list")
def list_tasks(ask: Ask[ListTasks]) -> ListedTasks:
    """List tasks in one state, a page at a time, without their payloads."""
    asked = ask.value
    page = ask.control.tasks.find(
        asked.state, _filter(ask, "view"), after=key_of(asked.after), limit=asked.limit
    )
    return ListedTasks(
        state=page.state, now_us=page.now_us, looked=page.looked, stopped=page.stopped,
        after=cursor_of(page.after), tasks=list(page.tasks),
    )  # fmt: skip


@operation("POST", "/v1/tasks/cancel", OPERATE, "tasks cancel")
def cancel_tasks(ask: Ask[CancelTasks]) -> Moved:
    """Cancel all tasks that match, in one state or `unfinished`."""
    asked, which = ask.value, _chosen(ask)
    # The cancel of a stage takes all of its workflow, whichever queues that is in.
    check_queue(ask.caller, None, "operate")
    return ask.control.tasks.cancel_all(
        asked.state, which, limit=asked.limit, dry_run=asked.dry_run
    )


@operation("POST", "/v1/tasks/reschedule", OPERATE, "tasks reschedule")
def reschedule_tasks(ask: Ask[RescheduleTasks]) -> Moved:
    """Give all tasks that match another due time, in one state or `unfinished`."""
    asked, which = ask.value, _chosen(ask)
    if (asked.at is None) == (asked.delay_s is None):
        raise ConfigError("give one of at and delay_s")
    wait_us = 0 if asked.delay_s is None else validate.delay_us(asked.delay_s, "delay_s")
    due_us = ask.control.now() + wait_us if asked.at is None else moment_us(asked.at)
    return ask.control.tasks.reschedule_all(
        asked.state, which, due_us, rate=asked.rate, limit=asked.limit, dry_run=asked.dry_run
    )


OPERATIONS: tuple[Operation, ...] = (list_tasks, cancel_tasks, reschedule_tasks)
