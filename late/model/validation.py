"""Checks of the values that producers pass in. They are plain functions without state.

They run before any SQL, so that bad input never breaks the caller's transaction. The bounds are
those of `reliability` 3.1 and 3.2.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from late.errors import (
    InvalidName,
    InvalidPayload,
    InvalidPolicy,
    InvalidSchedule,
    InvalidTask,
    PayloadTooLarge,
)

Duration = float | int | timedelta
"""Seconds, or a `timedelta`."""

DAY_S = 86_400.0
DELAY_S_MAX = 366 * DAY_S
DELAY_US_MAX = 366 * 86_400_000_000
HEADERS_BYTES_MAX = 8 * 1024
PRIORITY_MAX = 100
BATCH_TASKS_MAX = 1_000
BATCH_BYTES_MAX = 8 * 1024 * 1024

RESERVED = "late."
"""The beginning of names of tasks and queues that only the library's own records may have."""

DOTS = (".", "..")
"""Names of queues that earlier versions took."""

NAME_RULE = "names match [A-Za-z0-9._:-]{1,128}"
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_encode = msgspec.json.Encoder().encode


def shown(value: object) -> str:
    """Return `value` for a message: at most 80 characters, on one line. It never raises."""
    try:
        if isinstance(value, str | bytes):
            value = value[:100]
        text = repr(value)
    except Exception:  # an int of 5,000 digits, a broken __repr__
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def seconds(
    value: Any,
    what: str,
    *,
    least: float,
    most: float,
    error: type[InvalidTask] = InvalidPolicy,
    note: str = "",
) -> float:
    """Return `value`, a number or a `timedelta`, in seconds.

    Raises:
        `error`: it is not a finite number (or `timedelta`) within `least`..`most`. The message has
            `what`, `note` and the value.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    # This form also refuses NaN, which compares false with everything. An int is compared before it
    # is converted, because a very large one does not fit into a float.
    if (
        not isinstance(number, int | float)
        or isinstance(number, bool)
        or not (least <= number <= most)
    ):
        raise error(f"{what} must be {bounds(least, most)} seconds{note}, got {shown(value)}")
    return float(number)


def bounds(least: float, most: float) -> str:
    """Return a range for a message, such as `0..31622400`: without an exponent, as people type."""
    return f"{least:.15g}..{most:.15g}"


def name(value: Any, what: str) -> str:
    """Return `value` if it is a valid name of a queue, task, group or key.

    Raises:
        InvalidName: it does not match `[A-Za-z0-9._:-]{1,128}`.
    """
    if isinstance(value, str) and is_name(value):
        return value
    raise InvalidName(f"{what} must match [A-Za-z0-9._:-]{{1,128}}, got {shown(value)}")


def queue(value: Any) -> str:
    """Return `value` if a producer may put tasks into a queue of this name.

    Raises:
        InvalidName: it is not a name, or it begins with `late.`, as the queue of commands does; or
            it is `.` or `..`, which clients take out of the path of a URL.
    """
    if old_queue(value) in DOTS:
        raise InvalidName(f"queue {value!r}: no queue has this name, as no URL can name it")
    return str(value)


def old_queue(value: Any) -> str:
    """Return `value` if a queue of this name may have tasks, also of an earlier version.

    Raises:
        InvalidName: it is not a name, or it begins with `late.`.
    """
    if name(value, "queue").startswith(RESERVED):
        raise InvalidName(f"queue {value!r}: names that begin with {RESERVED!r} are reserved")
    return str(value)


@functools.lru_cache(1024)
def is_name(value: str) -> bool:
    """Tell whether `value` matches the pattern. It is cached: there are few queues and tasks."""
    return _NAME.fullmatch(value) is not None


def priority(value: Any) -> int:
    """Return `value` if it is a valid priority.

    Raises:
        InvalidPolicy: it is not an int of -100..100.
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= PRIORITY_MAX:
        return int(value)
    raise InvalidPolicy(f"priority must be -100..100, got {shown(value)}")


def delay_us(value: Any, what: str, note: str = "") -> int:
    """Return a delay in microseconds. A negative delay becomes 0: the task is due now.

    Raises:
        InvalidSchedule: `value` is not a number, is NaN or infinite, or is above 366 days.
    """
    try:
        number = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(number, int | float) and number < 0 and number != float("-inf"):
            return 0
    except OverflowError:
        pass
    amount = seconds(value, what, least=0, most=DELAY_S_MAX, error=InvalidSchedule, note=note)
    return round(amount * 1_000_000)


def instant_us(value: Any, what: str) -> int:
    """Return an aware `datetime` as microseconds since the Unix epoch, exactly.

    Raises:
        InvalidSchedule: `value` is not a datetime, is naive, or is more than 366 days ahead.
    """
    if not isinstance(value, datetime):
        raise InvalidSchedule(f"{what} must be a datetime, got {shown(value)}")
    try:
        if value.utcoffset() is None:
            raise InvalidSchedule(f"{what} must carry a time zone, got naive {shown(value)}")
        moment = (value - _EPOCH) // _MICROSECOND
    except InvalidSchedule:
        raise
    except Exception as cause:  # tzinfo is the caller's code
        raise InvalidSchedule(f"{what} has no instant: {shown(value)}") from cause
    if is_too_far_ahead(moment):
        raise InvalidSchedule(f"{what} is more than 366 days ahead: {shown(value)}")
    return max(moment, 0)


def is_too_far_ahead(at_us: int) -> bool:
    """Return whether a due time is more than 366 days ahead.

    The bound uses this process's clock. It only finds mistakes: the database's clock alone decides
    when a task is due.
    """
    return at_us > time.time_ns() // 1000 + DELAY_US_MAX


def headers(value: Any) -> str | None:
    """Return a mapping of strings as the JSON text that is stored; None if it is empty.

    Raises:
        InvalidPayload: `value` is not a mapping of strings, or has a NUL or a lone surrogate.
        PayloadTooLarge: the text is longer than 8 KiB.
    """
    if not value and (value is None or isinstance(value, Mapping)):
        return None
    if not isinstance(value, Mapping):
        raise InvalidPayload(f"headers must be a mapping of strings, got {shown(value)}")
    pairs: dict[str, str] = {}
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str) or not key:
            raise InvalidPayload(f"headers must map strings to strings: {shown(key)}")
        if "\0" in key or "\0" in text:
            raise InvalidPayload(f"header {shown(key)} holds a NUL character")
        pairs[key] = text
    try:
        encoded = _encode(pairs)
    except UnicodeEncodeError as cause:
        raise InvalidPayload("headers hold a lone surrogate") from cause
    if len(encoded) > HEADERS_BYTES_MAX:
        size = len(encoded)
        raise PayloadTooLarge(f"headers take {size} bytes, the limit is {HEADERS_BYTES_MAX}")
    return encoded.decode()
