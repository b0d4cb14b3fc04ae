"""The schemas of requests and answers in JSON. Pure; `openapi.py` describes them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from late.api import limits
from late.api.errors import BadRequest
from late.dispatcher.push import responses
from late.errors import ConfigError, DecodeError
from late.handler import counts
from late.handler.classify import Verdict, clean
from late.model import validation as validate
from late.model.ids import made_at_us
from late.model.task import OnConflict
from late.payload import values as payloads

T = TypeVar("T")

Limit = Annotated[int, Meta(ge=1, le=limits.RECEIVE_MAX)]
WaitS = Annotated[float, Meta(ge=0, le=limits.WAIT_S_MAX)]
VisibilityS = Annotated[float, Meta(ge=1, le=limits.VISIBILITY_S_MAX)]
AfterS = Annotated[float, Meta(ge=0, le=limits.AFTER_S_MAX)]
Text = Annotated[str, Meta(max_length=4_096)]
ReceiptText = Annotated[str, Meta(min_length=1, max_length=1_024)]
Names = Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(max_length=100)]
CountsGiven = Annotated[dict[str, int], Meta(max_length=16)]
OutcomeWord = Literal["done", "retry", "snooze", "discard", "fail", "not_capable"]


class Put(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One task to enqueue."""

    name: str
    queue: str | None = None
    payload: dict[str, Any] = {}
    delay_s: float | None = None
    at: datetime | None = None
    expires_s: float | None = None
    expires_at: datetime | None = None
    priority: int | None = None
    lane: str | None = None
    ordering_key: str | None = None
    unique_key: str | None = None
    unique_for_s: float | None = None
    on_conflict: OnConflict | None = None
    max_wait_s: float | None = None
    headers: dict[str, str] | None = None


class PutMany(msgspec.Struct, forbid_unknown_fields=True):
    """Several, all or none."""

    tasks: list[Put]


class Receive(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Tasks are asked for."""

    limit: Limit = 1
    wait_s: WaitS = limits.WAIT_S
    visibility_s: VisibilityS = limits.VISIBILITY_S
    group: str | None = None
    names: Names | None = None
    consumer: Annotated[str, Meta(max_length=128)] = ""


class Ack(msgspec.Struct, forbid_unknown_fields=True):
    """The task is done."""

    receipt: ReceiptText
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    counts: CountsGiven = {}


class Extend(msgspec.Struct, forbid_unknown_fields=True):
    """More time is asked for."""

    receipt: ReceiptText
    visibility_s: VisibilityS = limits.VISIBILITY_S


class Nack(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The task is not done, or done with something to say."""

    receipt: ReceiptText
    outcome: OutcomeWord = "retry"
    after_s: AfterS | None = None
    reason: Text | None = None


class Accepted(msgspec.Struct):
    """The answer to a `Put`."""

    task_id: str
    created: bool
    """False if `unique_key` is taken by this task, which has the same body."""


def token_of(accepted: Sequence[Accepted]) -> str:
    """The token for `late wait --until`: the id of the task that was created last.

    Rows of one request are created in its order, so a request that is repeated gets the same one.
    If other requests created all of the tasks, it is the latest by the time in the ids.
    """
    made = [one.task_id for one in accepted if one.created]
    if made or not accepted:
        return made[-1] if made else ""
    ids = [one.task_id for one in accepted]
    return max(enumerate(ids), key=lambda each: (made_at_us(each[1]), each[0]))[1]


class Pulled(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One task, as a consumer gets it."""

    task_id: str
    group: str
    queue: str
    name: str
    payload: msgspec.Raw
    attempt: int
    receipt: str
    visible_until: datetime
    enqueued_at: datetime
    due_at: datetime
    expires_at: datetime | None = None
    headers: dict[str, str] = {}
    is_replay: bool = False
    keeps_result: bool = False


class QueueStats(msgspec.Struct, kw_only=True):
    """One queue as one group sees it. Counts stop at a bound, and then are at least that."""

    queue: str
    group: str
    ready: int
    running: int
    parked: int
    dead: int
    oldest_s: float | None
    capped: bool


def moment(us: int) -> datetime:
    """Return microseconds since the epoch as a time with its zone."""
    return datetime.fromtimestamp(us / 1_000_000, UTC)


def parse(body: bytes, kind: type[T]) -> T:
    """Parse a request's body.

    Raises:
        BadRequest: the message names the wrong field, and does not repeat the body.
    """
    try:
        found = msgspec.json.decode(body or b"{}", type=kind)
        _refuse_twins(body.decode().lstrip() or "{}")
        return found
    except UnicodeError:
        raise BadRequest("the body is not valid UTF-8") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise BadRequest(str(error)[:200]) from None


def _object_of(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object with a key that is there twice: of two values one would be lost, silently.

    Raises:
        BadRequest: it names the key.
    """
    if len(pairs) > 1 and len(dict(pairs)) < len(pairs):
        twin, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise BadRequest(f"the key {validate.shown(twin)} is there twice in an object")


# The other decoder keeps the last of them. Numbers are of no interest here.
_refuse_twins = json.JSONDecoder(object_pairs_hook=_object_of, parse_int=float).raw_decode


def done(result: bytes, numbers: Mapping[str, int]) -> Verdict:
    """Make the verdict of "done" from a consumer's answer.

    What could not be recorded is refused while the receipt is good: an answer that was accepted and
    then refused would be a task that is done twice, or a dead letter that nobody expects.

    Raises:
        BadRequest: a result that is no JSON or too large; a wrong name or number of counts.
    """
    try:
        counts.check_form(numbers)
        if result:
            payloads.given_result(result)
    except (ConfigError, DecodeError) as error:
        raise BadRequest(str(error)) from None
    return responses.done(result, numbers)


def verdict(outcome: OutcomeWord, after_s: float | None, reason: str | None) -> Verdict:
    """Make the verdict of an attempt from a consumer's answer."""
    text = clean(reason) if reason else None
    after_us = None if after_s is None else round(after_s * 1_000_000)
    word = None if text is None else text[:256]
    match outcome:
        case "done":
            return Verdict("done")
        case "retry":
            return Verdict("failed", error=text or "asked for a retry", after_us=after_us)
        case "snooze":
            return Verdict("snooze", after_us=after_us or 0)
        case "discard":
            return Verdict("discard", reason=word)
        case "fail":
            return Verdict("failed", error=text or "failed for good", retryable=False)
        case "not_capable":
            return Verdict("not_capable", reason=word, after_us=after_us)
