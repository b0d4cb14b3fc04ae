"""Dead letters: the tasks that will not run again by themselves."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from late.api import limits
from late.api.operator.operation import Ask, Operation, operation
from late.api.operator.values import (
    Listed,
    Moment,
    Name,
    TaskIdText,
    check_asked,
    check_group,
    moment_us,
)
from late.control import Filter
from late.control.dead_letters.commands import RATE_MAX, RATE_MIN
from late.control.views import DeadView, Moved
from late.errors import ConfigError
from late.model.access.rights import Role
from late.model.access.rules import ADMIN, OPERATE, VIEW

Most = Annotated[int, Meta(ge=1, le=limits.MOVED_MAX)]


class Which(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Dead letters that all of the given fields match."""

    queue: Name | None = None
    name: Name | None = None
    reason: Name | None = None
    group: Name | None = None
    task_id: TaskIdText | None = None
    since: Moment | None = None
    until: Moment | None = None
    error: Annotated[str, Meta(min_length=1, max_length=1_024)] | None = None
    workflow: TaskIdText | None = None
    """The id of any of its tasks."""


class ListDead(Which, kw_only=True):
    """The latest dead letters are listed."""

    limit: Listed = 50


class Purge(Which, kw_only=True):
    """Dead letters are deleted: a filter, or `all`."""

    all: bool = False
    limit: Most = limits.MOVED_MAX
    dry_run: bool = False


class Redrive(Purge, kw_only=True):
    """Dead letters are redriven: a filter, or `all`."""

    rate: Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)] | None = None


class DeadLetters(msgspec.Struct):
    """Dead letters, the latest first."""

    dead: list[DeadView]


def _filter(ask: Ask[Any], role: Role) -> Filter:
    """Return the filter, for whose queue the caller has the role; without a queue, for all.

    Raises:
        Hidden, Denied: see `check_asked`.
        NotFound: there is no such group.
        ConfigError, InvalidName: nothing can match.
    """
    asked: Which = ask.value
    check_asked(ask, asked.queue, role)
    if asked.group is not None:
        check_group(ask, asked.group)
    made = Filter(
        queue=asked.queue,
        name=asked.name,
        reason=asked.reason,
        group=asked.group,
        task_id=asked.task_id,
        error=asked.error,
        workflow=asked.workflow,
        since_us=None if asked.since is None else moment_us(asked.since),
        until_us=None if asked.until is None else moment_us(asked.until),
    )
    made.check()
    return made


def _chosen(ask: Ask[Any], role: Role) -> Filter:
    """Return the filter of what is moved; nobody means all by leaving the filter out."""
    which = _filter(ask, role)
    if (which == Filter()) != ask.value.all:
        raise ConfigError('give a filter, or "all": true, and not both')
    return which


@operation("GET", "/v1/dead", VIEW, "dead list", "dead show")
def list_dead(ask: Ask[ListDead]) -> DeadLetters:
    """List dead letters with their attempts' errors, the latest first."""
    return DeadLetters(ask.control.dead_letters.find(_filter(ask, "view"), limit=ask.value.limit))


@operation("POST", "/v1/dead/redrive", OPERATE, "dead redrive")
def redrive_dead(ask: Ask[Redrive]) -> Moved:
    """Send dead letters back to run again, the oldest first."""
    asked, which = ask.value, _chosen(ask, "operate")
    return ask.control.dead_letters.redrive(
        which, limit=asked.limit, dry_run=asked.dry_run, rate=asked.rate
    )


@operation("POST", "/v1/dead/purge", ADMIN, "dead purge")
def purge_dead(ask: Ask[Purge]) -> Moved:
    """Delete dead letters for good, the oldest first."""
    which = _chosen(ask, "admin")
    return ask.control.dead_letters.purge(which, limit=ask.value.limit, dry_run=ask.value.dry_run)


OPERATIONS: tuple[Operation, ...] = (list_dead, redrive_dead, purge_dead)
