"""The options of an enqueue with their checks, and the settings of a registered task. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, get_args

import msgspec

from late.app.mistakes import unknown_option
from late.errors import InvalidPolicy, InvalidSchedule
from late.handler.outcomes import Retry
from late.model import validation as validate
from late.model.lanes import DEFAULT_LANE
from late.model.task import LIMIT_KEY, OnConflict, Options
from late.payload.codec import JSON, Codec, owners
from late.payload.subject_keys import subject_id
from late.payload.values import Format

_encode_options = msgspec.json.Encoder().encode


class CommonSettings(TypedDict, total=False):
    """The settings of any registered task."""

    queue: str
    """The group of tasks in settings and reports; `default` if none is given."""
    retry: Retry | None
    """The retry policy; None for the default one."""
    timeout_s: float | None
    """Seconds that an attempt may run without a heartbeat; 300 if none are given."""
    aliases: Sequence[str]
    """Former names of the task: what waits under them runs here."""
    priority: int
    """-100..100, for calls without a priority."""
    lane: str
    """The lane of its tasks; see `docs/lanes.md`."""
    codec: Codec | Format | None
    """The encoding of arguments, instead of the app's."""
    history: bool
    """Keep each step of its tasks for `late show`: one more row per attempt."""


class RemoteSettings(CommonSettings, total=False):
    """The settings of `app.remote`."""

    result_ttl: validate.Duration | None
    """Keep the result (JSON, at most 256 KiB) for so long, for `app.handle(task_id).result()`;
    None keeps nothing."""


class BatchSettings(CommonSettings, total=False):
    """The settings of `app.task(batch=...)`."""

    name: str | None
    """The task's name in rows, unique in the app; by default the function's name."""


class TaskSettings(BatchSettings, RemoteSettings, total=False):
    """The settings of `app.task`."""

    process: bool
    """Run in a child process (`def` at module level only)."""
    soft_timeout_s: float | None
    """Raise `late.SoftTimeLimit` in the handler after so many seconds without a heartbeat; it has
    until `timeout_s` to clean up. None raises nothing."""
    transaction: bool
    """Give the handler a transaction, `ctx.tx`, that commits with the record of the task's end, and
    that tasks which start together share. On PostgreSQL and SQLite, for handlers with a context."""
    overlap_on_timeout: bool
    """Let a repeat start while a run that cannot be ended goes on after its time-out."""


class RouteSettings(TypedDict, total=False):
    """The settings of `app.route`; `App.route` says what they mean."""

    retry: Retry | None
    result_ttl: validate.Duration | None
    history: bool


class ScheduleSettings(TypedDict, total=False):
    """The settings of `app.schedule`; `App.schedule` says what they mean."""

    every: timedelta | float | None
    tz: str
    catch_up: Literal["skip", "latest", "all"]
    catch_up_max: int
    overlap: Literal["allow", "skip", "queue"]
    jitter: timedelta | float | str | None
    name: str | None
    args: Mapping[str, object] | None


class TaskOptions(TypedDict, total=False):
    """The options of one enqueue, besides the arguments."""

    delay: validate.Duration
    """Do not start before this many seconds (or `timedelta`) after the insert, by the database's
    clock."""
    at: datetime
    """Do not start before this time, which must have a time zone. One in the past means now."""
    expires: validate.Duration | datetime
    """Do not start at or after this time: the task ends as `expired` instead. Seconds and
    `timedelta` count from the insert, by the database's clock."""
    priority: int
    """-100..100; higher ones start first; below 0 is background work."""
    lane: str
    """The named range of shards to which the task goes: what waits in one lane holds up no other.
    It must exist (`late shards --lane NAME --create N`). Without one: `default`."""
    ordering_key: str
    """Tasks of one key and lane run one at a time, in order. The others wait for one that fails."""
    limit_key: str
    """The tenant, customer or shop for whose tasks `key_concurrency` and `key_rate` of the queue
    hold. It is stored as the header `limit_key`."""
    unique_key: str
    """There is at most one unfinished task per key."""
    unique_for: validate.Duration
    """The key stays taken for at least this long from the enqueue, even if its task ends sooner."""
    on_conflict: OnConflict
    """The treatment of a key that is taken. `existing` (the default) returns the id of the first
    task, or raises `KeyConflict` if that has other arguments; `reject` raises `KeyConflict`;
    `replace` cancels the first task if it has not started and takes its place."""
    max_wait: validate.Duration
    """With `on_conflict="replace"` and a delay: the new task is due at the latest so many seconds
    (or `timedelta`) after the first call of the key that has not run yet."""
    subject: str
    """The tenant or person to whom the task belongs. Its arguments are encrypted with a key of the
    subject; after `late keys drop SUBJECT` nobody can read them. It needs `late.Encrypted`."""
    headers: Mapping[str, str]
    """Strings that are stored with the task and are not arguments, such as a trace id."""
    autocommit: bool
    """Let the task commit by itself if `tx` is in autocommit mode and no transaction is open.
    Otherwise that is refused: nothing would tie the task to what the caller writes."""


class Settings(msgspec.Struct, frozen=True):
    """Checked `TaskOptions`, in the form in which they are stored."""

    options: Options
    options_json: str | None
    headers_json: str | None
    unique_for_us: int | None = None
    on_conflict: OnConflict = "existing"
    autocommit: bool = False
    max_wait_us: int | None = None
    place_key: str | None = None
    """The key that chooses the shard: the ordering key, or else the limit key."""
    limit_key: str | None = None
    lane: str | None = None
    """None: the lane `default`."""


def settings(
    asked: TaskOptions, base: Options, codec: Codec = JSON, lane: str | None = None
) -> Settings:
    """Check `asked`, and return `base` with its values. `codec` and `lane` are those of the task.

    Raises:
        InvalidSchedule, InvalidPolicy, InvalidName, InvalidPayload, PayloadTooLarge: the value of
            an option is wrong.
        TypeError: an option does not exist.
    """
    unknown = asked.keys() - TaskOptions.__annotations__.keys()
    if unknown:
        raise unknown_option(unknown, TaskOptions.__annotations__)
    given = {key: value for key, value in asked.items() if value is not None}
    fields: dict[str, Any] = {}
    if "delay" in given and "at" in given:
        raise InvalidSchedule("give delay or at, not both")
    if "delay" in given:
        if isinstance(given["delay"], datetime):
            raise InvalidSchedule("delay is a number of seconds or a timedelta: give a time as at=")
        delay_us = validate.delay_us(given["delay"], "delay", " (below 0 is now)")
        fields |= {"delay_us": delay_us, "at_us": None}
    if "at" in given:
        if isinstance(given["at"], int | float | timedelta):
            raise InvalidSchedule(
                f"at is a datetime, got {validate.shown(given['at'])}: give seconds or a timedelta"
                " as delay="
            )
        fields |= {"at_us": validate.instant_us(given["at"], "at"), "delay_us": 0}
    if "expires" in given:
        fields |= _expiry(given["expires"])
    if "priority" in given:
        fields["priority"] = validate.priority(given["priority"])
    for key in ("ordering_key", "unique_key"):
        if key in given:
            fields[key] = validate.name(given[key], key)
    if "subject" in given:
        if owners(codec) is None:
            raise InvalidPolicy(
                f"subject needs the codec late.Encrypted, the task has {codec.name}"
            )
        fields["subject"] = subject_id(validate.name(given["subject"], "subject"))
    options = msgspec.structs.replace(base, **fields)
    _check_window(options)
    encoded = _encode_options(options).decode()
    headers, limit_key = _limited(given, options)
    return Settings(
        options=options,
        options_json=None if encoded == "{}" else encoded,
        headers_json=headers,
        unique_for_us=_unique_for_us(given),
        on_conflict=asked.get("on_conflict") or "existing",
        autocommit=bool(given.get("autocommit")),
        max_wait_us=_max_wait_us(given, options),
        place_key=options.ordering_key or limit_key,
        limit_key=limit_key,
        lane=lane_name(given["lane"]) if "lane" in given else lane,
    )


def lane_name(value: Any) -> str | None:
    """Return a lane as settings have it, which is None for `default`.

    Raises:
        InvalidName: it is no name.
    """
    name = validate.name(value, "lane")
    return None if name == DEFAULT_LANE else name


def _limited(given: Mapping[str, Any], options: Options) -> tuple[str | None, str | None]:
    """Return the headers as they are stored, and the limit key, which is one of them."""
    headers: Any = given.get("headers")
    if "limit_key" in given:
        encoded = validate.headers(headers)  # before it is taken for a mapping
        headers = {**(headers if encoded else {}), LIMIT_KEY: given["limit_key"]}
    encoded = validate.headers(headers)
    if encoded is None or LIMIT_KEY not in headers:
        return encoded, None
    key = validate.name(headers[LIMIT_KEY], "limit_key")
    if options.ordering_key not in (None, key):
        raise InvalidPolicy(
            "limit_key and ordering_key must be the same: each of them has its tasks in one shard,"
            " and a task cannot be in two"
        )
    return encoded, key


def _unique_for_us(given: Mapping[str, Any]) -> int | None:
    mode = given.get("on_conflict", "existing")
    if mode not in get_args(OnConflict):
        raise InvalidPolicy(f"on_conflict is one of {', '.join(get_args(OnConflict))}, got "
                            f"{validate.shown(mode)}")  # fmt: skip
    for field in ("unique_for", "on_conflict", "max_wait"):
        if field in given and "unique_key" not in given:
            raise InvalidPolicy(f"{field} says something about a unique_key, and there is none")
    if "unique_for" not in given:
        return None
    period_us = validate.delay_us(given["unique_for"], "unique_for")
    if period_us == 0:
        raise InvalidSchedule("unique_for must be above 0 seconds")
    return period_us


def _max_wait_us(given: Mapping[str, Any], options: Options) -> int | None:
    if "max_wait" not in given:
        return None
    if given.get("on_conflict") != "replace" or not options.delay_us:
        raise InvalidPolicy(
            'max_wait takes on_conflict="replace" and a delay: it bounds that delay'
        )
    if "unique_for" in given:
        raise InvalidPolicy("give max_wait or unique_for, not both: each says when the key is free")
    max_wait_us = validate.delay_us(given["max_wait"], "max_wait")
    if max_wait_us < options.delay_us:
        raise InvalidSchedule("max_wait is shorter than delay: give one that is at least as long")
    return max_wait_us


def _expiry(value: Any) -> dict[str, int | None]:
    if isinstance(value, datetime):
        return {"expires_at_us": validate.instant_us(value, "expires"), "expires_in_us": None}
    after_us = validate.delay_us(value, "expires")
    if after_us == 0:
        raise InvalidSchedule(f"expires must be above 0 seconds, got {validate.shown(value)}")
    return {"expires_in_us": after_us, "expires_at_us": None}


def _check_window(options: Options) -> None:
    """Refuse an expiry before the due time, if both are relative or both are absolute."""
    begin, end = options.delay_us, options.expires_in_us
    if options.at_us is not None:
        begin, end = options.at_us, options.expires_at_us
    if end is not None and end <= begin:
        raise InvalidSchedule("expires is not after the task's due time: it could never run")
