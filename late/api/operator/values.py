"""Values that several operations take, and how they are read. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct

from late.api import limits
from late.api.errors import NotFound
from late.api.operator.operation import Ask
from late.control.past.moment import left_out
from late.errors import ConfigError, InvalidTask
from late.model import validation as validate
from late.model.access.rights import Role
from late.model.access.rules import Hidden, check_queue

T = TypeVar("T", bound=Struct)
NAME = r"^[A-Za-z0-9._:-]{1,128}$"
Name = Annotated[str, Meta(pattern=NAME)]
TaskIdText = Annotated[str, Meta(min_length=1, max_length=64)]
AsOf = Annotated[str, Meta(min_length=1, max_length=64)]
"""A past moment: a time with its zone, or an age such as `2h`."""
Moment = Annotated[datetime, Meta(tz=True)]
Place = Literal["beginning", "now"]
Listed = Annotated[int, Meta(ge=1, le=limits.LISTED_MAX)]
WaitS = Annotated[float, Meta(ge=0, le=limits.WAIT_S_MAX)]


def moment_us(moment: datetime) -> int:
    """Return a time in microseconds since the Unix epoch; before 1970 nothing was written.

    Raises:
        InvalidSchedule: the time is out of bounds.
    """
    return max(0, validate.instant_us(moment, "the time"))


def place_of(ask: Ask[Any], place: Place | None, at: datetime | None) -> str | int:
    """Return the place in the log at which a group begins.

    Raises:
        ConfigError: there is no place or there are two, or the moment has not come.
    """
    if (place is None) == (at is None):
        raise ConfigError("give one of place (beginning, now) and at")
    if at is None:
        assert place is not None
        return place
    moment = moment_us(at)
    if moment > ask.control.now():
        raise ConfigError("that time has not come: tasks that are not written cannot be left out")
    return moment


def known(answer: T) -> T:
    """Return an answer about the past without what is not known, for the encoder."""
    plain: T = left_out(answer)
    return plain


def check_asked(ask: Ask[Any], queue: str | None, role: Role) -> None:
    """Refuse a caller without the role for the queue that is asked for, or without one for all.

    Raises:
        Hidden, Denied: as `check_queue`.
    """
    try:
        check_queue(ask.caller, queue, role)
    except Hidden:
        if queue is None and ask.caller.may("view"):
            raise Hidden("give `queue`: you may see some queues, and not all of them") from None
        raise


def check_group(ask: Ask[Any], name: str) -> None:
    """Raise `NotFound` for a group that is not registered."""
    try:
        ask.control.groups.require([name])
    except (ConfigError, InvalidTask) as error:
        raise NotFound(str(error)) from None
