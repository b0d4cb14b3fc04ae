"""Decide how an attempt ended, from the value that its handler returned or raised. Pure.

The text of an error is shown in the database, in logs and on an operator's page, and someone who
wants to do harm may have written it. So it is one line (control characters are escaped, so that it
cannot forge lines of a log) of at most 4 KiB, without text that looks like a password. It has no
payload: frames are named by file, line and function, never with their variables.
"""

from __future__ import annotations

import asyncio
import re
import sysconfig
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from traceback import walk_tb
from types import TracebackType
from typing import Protocol

import msgspec

from late.errors import DatabaseReplaced, DecodeError, SecondBlock, SoftTimeLimit
from late.handler.outcomes import AlreadyDone, Discard, Exhausted, Kept, Nack, Retry, Signal, Snooze
from late.model.task import Counts, Kind

ERROR_BYTES_MAX = 4096
ATTEMPTS_EXHAUSTED = "attempts_exhausted"
_MESSAGE_CHARS_MAX = 2048
_FRAMES_MAX = 6
_INNERMOST = 2
"""So many of them are the innermost, whoever wrote them."""
_CAUSES_MAX = 3
_GROUP_MAX = 3

Scrub = Callable[[str], str]
"""A function that removes secrets from the text of an error. Its callers bound the text first."""


class RetryRule(Protocol):
    """The part of a retry policy that decides about a single exception."""

    @property
    def retry_on(self) -> tuple[type[BaseException], ...] | None: ...
    @property
    def give_up_on(self) -> tuple[type[BaseException], ...] | None: ...


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of an attempt, without the attempt. A child process sends this value back."""

    kind: Kind
    error: str | None = None
    reason: str | None = None
    after_us: int | None = None
    retryable: bool = True
    overloaded: bool = False
    result: bytes | None = None
    begun: bool = True
    """False if the handler was not called."""
    counts: Counts = ()
    """The handler's own counts, if it is done."""


DONE = Verdict("done")
EXPIRED = Verdict("expired")
INTERRUPTED = Verdict("interrupted")
REPLACED_US = 5_000_000
"""An attempt that was refused a connection runs again after this time: the worker is gone then."""
GIVEN_BACK = Verdict("interrupted", begun=False)
UNKNOWN = Verdict("not_capable", reason="unknown_handler", begun=False)


class Refused(Exception):
    """The attempt ends before its handler is called."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.kind)
        self.verdict = verdict


def returned(value: object) -> Verdict:
    """Return the verdict on a return value. A returned signal counts as if it had been raised."""
    if isinstance(value, Verdict):  # A child process has decided already.
        return value
    if isinstance(value, Signal):
        return _signalled(value, None)
    if isinstance(value, _UNRUN):
        return _not_run(value)
    return DONE


_UNRUN = (Coroutine, Generator, AsyncGenerator, asyncio.Future)


def _not_run(value: object) -> Verdict:
    """Return the verdict on a handler whose body is in what it returned, and did not run. The next
    attempt would return the same."""
    if isinstance(value, Coroutine | Generator):
        value.close()  # Python would warn of it, without the task's name.
    text = (
        f"the handler returned a {type(value).__name__}, which nobody runs: let a decorator of an"
        " `async def` be `async` too, or give it to App(wrap=); await what the handler calls; do"
        " not yield"
    )
    return Verdict("dead", error=text, reason="invalid_result")


def check_ran(value: object) -> None:
    """Look at what a handler has returned whose value counts for nothing.

    Raises:
        DecodeError: `invalid_result`: it is what the handler was to run.
    """
    if isinstance(value, _UNRUN):
        verdict = _not_run(value)
        raise DecodeError(str(verdict.error), reason="invalid_result")


def raised(error: BaseException, rule: RetryRule | None, scrub: Scrub | None = None) -> Verdict:
    """Return the verdict on an exception.

    `give_up_on` wins over `retry_on`. If one is empty or missing, it has no effect.
    """
    if isinstance(error, Refused):
        return error.verdict
    if isinstance(error, Exhausted) and error.__cause__ is not None:
        last = raised(error.__cause__, rule, scrub)
        if last.kind != "failed" or isinstance(error.__cause__, Signal):
            return last
        return msgspec.structs.replace(last, retryable=False, reason=ATTEMPTS_EXHAUSTED)
    if isinstance(error, Signal):
        text = describe(error, scrub) if error.__cause__ is not None else None
        return _signalled(error, text)
    text = describe(error, scrub)
    if isinstance(error, DecodeError):
        kind: Kind = "not_capable" if error.elsewhere else "dead"
        return Verdict(kind, error=text, reason=error.reason)
    if isinstance(error, DatabaseReplaced):  # The worker stops: no fault of the task.
        return Verdict("snooze", error=text, after_us=REPLACED_US)
    if isinstance(error, SoftTimeLimit):
        return Verdict("failed", error=text, overloaded=True)
    if isinstance(error, SecondBlock):  # The next attempt finds its first block done, and ends so.
        return Verdict("failed", error=text, retryable=False)
    return Verdict("failed", error=text, retryable=_retryable(error, rule))


def timed_out(timeout_s: float, detail: str = "") -> Verdict:
    """Return the verdict on a time-out. The attempt may be repeated, whatever it raised."""
    text = f"timed out after {timeout_s:g} s"
    return Verdict("failed", error=clean(f"{text}: {detail}" if detail else text), overloaded=True)


def describe(error: BaseException, scrub: Scrub | None = None) -> str:
    """Describe an exception and its causes in one line of at most 4 KiB, innermost frame first."""
    return clean(" <- ".join(_chain(error)), scrub)


def clean(text: str, scrub: Scrub | None = None) -> str:
    """Return `text` without secrets, as one line of valid UTF-8 of at most 4 KiB."""
    text = _PASSWORD.sub(r"\1***@", text)
    if scrub is not None:
        try:
            text = scrub(text)
        except Exception as broken:  # A text that could not be scrubbed is not stored.
            text = f"(not shown: the scrub hook raised {type(broken).__name__})"
    encoded = _CONTROL.sub(_escape, text).encode("utf-8", "backslashreplace")
    if len(encoded) <= ERROR_BYTES_MAX:
        return encoded.decode()
    return encoded[: ERROR_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."


# Control characters, the Unicode line ends, and the marks that change the direction of text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_PASSWORD = re.compile(r"(://[^:/@\s]*:)[^@\s/]+@")


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")


def _signalled(signal: Signal, error: str | None) -> Verdict:
    match signal:
        case AlreadyDone():
            return DONE
        case Kept():
            return Verdict("done", result=signal.result)
        case Retry():
            text = error or (clean(signal.reason) if signal.reason else "asked for a retry")
            return Verdict("failed", error=text, after_us=_us(signal.after_s))
        case Snooze():
            return Verdict("snooze", error=error, after_us=_us(signal.for_s))
        case Discard():
            return Verdict("discard", error=error, reason=_word(signal.reason))
        case Nack(not_capable=True):
            return Verdict("not_capable", error=error, reason=_word(signal.reason))
        case Nack():
            text = error or f"not accepted: {signal.reason or 'no reason given'}"
            return Verdict("failed", error=clean(text), reason=_word(signal.reason))
    raise AssertionError(f"not an outcome signal: {signal!r}")


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000_000)


def _word(reason: object) -> str | None:
    return None if reason is None else clean(str(reason))[:256]


def _retryable(error: BaseException, rule: RetryRule | None) -> bool:
    if rule is None or not isinstance(error, Exception):
        # Policies list errors. A `SystemExit` or an unexpected cancellation is no error of the
        # task.
        return True
    if rule.give_up_on and isinstance(error, rule.give_up_on):
        return False
    return not rule.retry_on or isinstance(error, rule.retry_on)


def _chain(error: BaseException) -> Iterator[str]:
    """Yield a text for the exception, for the members of a group, and for each of its causes."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and len(seen) < _CAUSES_MAX and id(current) not in seen:
        seen.add(id(current))
        yield _one(current)
        if isinstance(current, BaseExceptionGroup):
            for inner in current.exceptions[:_GROUP_MAX]:
                yield f"({_one(inner)})"
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)


def _one(error: BaseException) -> str:
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else (f"{kind.__module__}.{kind.__qualname__}")
    )
    try:
        message = str(error)
    except Exception:
        message = "(its message cannot be read)"
    if len(message) > _MESSAGE_CHARS_MAX:
        message = message[:_MESSAGE_CHARS_MAX] + "..."
    where = _frames(error.__traceback__)
    return name + (f": {message}" if message else "") + (f" [{where}]" if where else "")


def _frames(traceback: TracebackType | None) -> str:
    """Return `file:line function` of some frames, innermost first, without frames of `late`.

    Where there are many, those of the service stay rather than those of libraries: the innermost
    ones of a driver are the same for all errors. `...` stands for what is left out.
    """
    found = [
        (f"{code.co_filename.rpartition('/')[2]}:{line} {code.co_name}", code.co_filename)
        for frame, line in walk_tb(traceback)
        if not (code := frame.f_code).co_filename.startswith(_OWN)
    ][::-1]
    numbers = range(len(found))
    service = [n for n in numbers if not _is_library(found[n][1])]
    first = {*numbers[:_INNERMOST], *service[: _FRAMES_MAX - _INNERMOST]}
    kept = sorted(first | set([n for n in numbers if n not in first][: _FRAMES_MAX - len(first)]))
    texts: list[str] = []
    for before, n in zip([-1, *kept], kept, strict=False):
        texts += ["...", found[n][0]] if n > before + 1 else [found[n][0]]
    return ", ".join([*texts, "..."] if kept and kept[-1] + 1 < len(found) else texts)


def _is_library(file: str) -> bool:
    return file.startswith((f"{_LATE}/", _STANDARD, "<")) or "-packages/" in file


_STANDARD = sysconfig.get_paths()["stdlib"]
_LATE = __file__.rpartition("/handler/")[0]
_OWN = (f"{_LATE}/dispatcher/", f"{_LATE}/contrib/", f"{_LATE}/app/results.py", __file__)
