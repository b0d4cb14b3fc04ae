"""The meaning of a target's answer for the attempt. Pure.

| the target says | gRPC | HTTP | the attempt |
|---|---|---|---|
| it is done | OK, ALREADY_EXISTS | 2xx | done, with its `result` where the task keeps one |
| how it ended | `outcome` in the answer | `outcome` in a 2xx JSON body | as it says |
| how, but nobody can read it | | such a body that is cut off, too long or wrong | failed, `bad_answer` |
| too much for me now | RESOURCE_EXHAUSTED | 429, 503 | failed, `overloaded` |
| I am not there | UNAVAILABLE, no endpoint | no connection, it broke, 502 | failed, `unavailable` |
| it took too long | DEADLINE_EXCEEDED | 408, 504 | failed, `timeout` |
| nobody here can do that | UNIMPLEMENTED | 501 | not capable: costs no attempt |
| the task is wrong | INVALID_ARGUMENT, OUT_OF_RANGE, FAILED_PRECONDITION | 400, 405, 410, 413, 414, 415, 422 | failed for good, `refused` |
| go elsewhere | | 3xx | failed for good, `target_blocked` |
| anything else | all others | all others | failed |

`failed` asks the task's retry policy; a wait that the target asked for is kept, up to a day. The
words `overloaded`, `unavailable` and `timeout` say that the target is the problem and not the
task; the first and the last that it has too much to do.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from late.errors import ConfigError, DecodeError
from late.handler import counts
from late.handler.classify import DONE, Scrub, Verdict, clean, raised
from late.model.task import Attempt
from late.payload import values as payloads

OVERLOADED = "overloaded"
UNAVAILABLE = "unavailable"
TIMEOUT = "timeout"
REFUSED = "refused"
BLOCKED = "target_blocked"
BAD_ANSWER = "bad_answer"

AFTER_S_MAX = 86_400.0
SNOOZE_US, SNOOZE_US_LEAST = 1_000_000, 100_000
"""A snooze costs no attempt, so one without a wait would go round for ever."""
TEXT_CHARS_MAX = 1_000
ANSWER_BYTES_MAX = 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_PACKED = "the answer is packed (content-encoding), although none was asked for, and cannot be read"
NO_COUNTS: Mapping[str, int] = MappingProxyType({})

_GRPC: dict[str, tuple[bool, str | None]] = {
    # Whether it may be repeated, and the word for it.
    "RESOURCE_EXHAUSTED": (True, OVERLOADED),
    "UNAVAILABLE": (True, UNAVAILABLE),
    "DEADLINE_EXCEEDED": (True, TIMEOUT),
    "INVALID_ARGUMENT": (False, REFUSED),
    "OUT_OF_RANGE": (False, REFUSED),
    "FAILED_PRECONDITION": (False, REFUSED),
}
_HTTP: dict[int, tuple[bool, str | None]] = {
    429: (True, OVERLOADED),
    503: (True, OVERLOADED),
    502: (True, UNAVAILABLE),
    408: (True, TIMEOUT),
    504: (True, TIMEOUT),
    **dict.fromkeys((400, 405, 410, 413, 414, 415, 422), (False, REFUSED)),
}

Word = Literal["done", "retry", "snooze", "discard", "fail", "not_capable"]


class Outcome(msgspec.Struct):
    """An answer with a word of its outcome; the body of a 2xx over HTTP."""

    outcome: Word = "done"
    after_s: float | None = None
    reason: str | None = None
    result: msgspec.Raw = msgspec.Raw(b"")
    """JSON, of "done"; empty for none."""
    counts: dict[str, int] = {}
    """The counts of the service, if it is "done", as those of `ctx.count`."""


class JsonReply(msgspec.Struct):
    """A body of the handler's own, without an outcome; only its result is read."""

    result: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(Outcome).decode
_decode_plain = msgspec.json.Decoder(JsonReply).decode


def parse_reply(answer: Outcome, where: str, scrub: Scrub | None = None) -> Verdict:
    """Return the verdict that the target gave itself. `where` names it in error texts."""
    reason = clean(answer.reason[:TEXT_CHARS_MAX], scrub) if answer.reason else None
    after_us = wait_us(answer.after_s)
    match answer.outcome:
        case "done":
            return done(bytes(answer.result), answer.counts)
        case "retry":
            return Verdict("failed", f"{where}: {reason or 'asked for a retry'}", after_us=after_us)
        case "snooze":
            wait = SNOOZE_US if after_us is None else max(after_us, SNOOZE_US_LEAST)
            return Verdict("snooze", after_us=wait)
        case "discard":
            return Verdict("discard", reason=_word(reason))
        case "not_capable":
            return Verdict("not_capable", reason=_word(reason))
        case "fail":
            text = f"{where}: {reason or 'failed for good'}"
            return Verdict("failed", text, reason=REFUSED, retryable=False)


def done(result: bytes, numbers: Mapping[str, int] = NO_COUNTS) -> Verdict:
    """Return "done" with `result`, which is JSON as it came, empty for none, and with counts."""
    if not result and not numbers:
        return DONE
    return Verdict("done", result=result or None, counts=counts.given(numbers))


def as_recorded(verdict: Verdict, attempt: Attempt) -> Verdict:
    """Return `verdict` as it is recorded: with its result only if the task keeps one, and as a dead
    letter if the result cannot be kept; without counts in a shadow, and as a failed attempt if they
    cannot be added up."""
    if verdict.result is None and not verdict.counts:
        return verdict
    try:
        for name, number in verdict.counts:
            counts.check(f"queue {attempt.record.queue}", name, number)
        if verdict.result is not None and attempt.keeps_result:
            payloads.given_result(verdict.result)
    except ConfigError as error:
        return Verdict("failed", clean(str(error)), reason=BAD_ANSWER)
    except DecodeError as error:
        return raised(error, None)
    result = verdict.result if attempt.keeps_result else None
    kept = () if attempt.shadow else verdict.counts
    return Verdict("done", result=result, counts=kept) if result is not None or kept else DONE


def grpc_status(
    code: str, details: str | None, after_s: float | None, where: str, scrub: Scrub | None = None
) -> Verdict:
    """Return the verdict on a status other than OK; `code` is its name."""
    if code == "ALREADY_EXISTS":
        return DONE
    text = clean(f"{where}: {code}: {(details or '')[:TEXT_CHARS_MAX]}", scrub)
    if code == "UNIMPLEMENTED":
        return Verdict("not_capable", text, reason="not_capable")
    # The client's own word for an answer above its limit; nothing else tells it from a target
    # that has too much to do.
    if code == "RESOURCE_EXHAUSTED" and "Received message larger than max" in (details or ""):
        return Verdict("failed", text, reason=BAD_ANSWER)
    return _failed(text, after_s, *_GRPC.get(code, (True, None)))


def http_status(
    status: int, body: bytes | None, after_s: float | None, where: str, scrub: Scrub | None = None
) -> Verdict:
    """Return the verdict on an answer.

    Args:
        body: its beginning, `ANSWER_BYTES_MAX` and a byte at most, whatever its content type: many
            a service gives JSON under another one, or under none. None: it cannot be unpacked.
    """
    if 200 <= status < 300:
        if body is None:
            return Verdict("failed", f"{where}: {_PACKED}", reason=BAD_ANSWER)
        answer = _outcome(body)
        if isinstance(answer, str):
            return Verdict("failed", f"{where}: {answer}", reason=BAD_ANSWER)
        return parse_reply(answer, where, scrub)
    text = f"{where}: HTTP {status}"
    if 300 <= status < 400:
        text += ": a redirect is not followed; change the target's url"
        return Verdict("failed", text, reason=BLOCKED, retryable=False)
    if message := _reason(body):
        text = clean(f"{text}: {message}", scrub)
    if status == 501:
        return Verdict("not_capable", text, reason="not_capable")
    return _failed(text, after_s, *_HTTP.get(status, (True, None)))


def unavailable(where: str, why: str) -> Verdict:
    """Return the verdict without an answer, when there was no connection or it broke."""
    return Verdict("failed", clean(f"{where}: {why[:TEXT_CHARS_MAX]}"), reason=UNAVAILABLE)


def retry_after_s(text: str | None, now_s: float) -> float | None:
    """Read the seconds of a `retry-after`, a number or a date; None if it is neither."""
    if not text or len(text) > 64:
        return None
    try:
        found = float(text)
    except ValueError:
        try:
            found = parsedate_to_datetime(text).timestamp() - now_s
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, found) if math.isfinite(found) else None


def wait_us(after_s: float | None) -> int | None:
    """Convert to microseconds, within a day: after "in a year" the task die by its own policy."""
    if after_s is None or not math.isfinite(after_s):
        return None
    return round(min(max(after_s, 0.0), AFTER_S_MAX) * 1_000_000)


def _failed(text: str, after_s: float | None, retryable: bool, word: str | None) -> Verdict:
    if after_s:  # Whoever finds the task parked for hours learns why.
        text = f"{text} (it asked for a wait of {after_s:g} s)"
    return Verdict(
        "failed",
        text,
        reason=word,
        after_us=wait_us(after_s),
        retryable=retryable,
        overloaded=word in (OVERLOADED, TIMEOUT),
    )


def _outcome(body: bytes) -> Outcome | str:
    """Read the outcome of a 2xx, or say why it cannot be read. A body without a word of an outcome
    means "done": that of a service which knows nothing of `late`, or the handler's own result.

    Of an object that cannot be read nobody knows what its service meant. With such a word in it, it
    is no "done". Without one it is taken for a result, which is refused where one is kept.
    """
    body = body.removeprefix(_BOM)
    tree = _json(body)
    if tree is None and body.lstrip()[:1] == b"{":
        if b'"outcome"' in body:
            return "the answer has an outcome, and cannot be read as JSON"
        return Outcome(result=msgspec.Raw(body))
    if not isinstance(tree, dict):
        return Outcome()
    if "outcome" not in tree:
        return Outcome(result=_decode_plain(body).result)
    try:
        return _decode(body)
    except msgspec.DecodeError:
        return "the answer's outcome is none"


def _reason(body: bytes | None) -> str | None:
    """Read the text for people in an error's body: `reason` or `error` of a JSON object."""
    tree = _json((body or b"").removeprefix(_BOM))
    if not isinstance(tree, dict):
        return None
    found = tree.get("reason") or tree.get("error") or tree.get("detail")
    return found[:TEXT_CHARS_MAX] if isinstance(found, str) else None


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _word(reason: str | None) -> str | None:
    return None if reason is None else reason[:256]
