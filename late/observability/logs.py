"""Structured logging on the standard library: `key=value` for people, JSON lines for machines.

This module, and not its callers, decides what may be written:

- only plain values are shown; of bytes only the length, of any other object only its type, so that
  no record and no payload gets into a line;
- a field whose name suggests a secret or a payload is masked;
- passwords in URLs and connection strings are removed from messages, values and tracebacks;
- control characters are escaped: a task's name or error cannot forge a line or drive a terminal. In
  JSON line breaks and tabs are escaped by JSON alone, so that who reads it gets them back;
- text is cut at 4 KiB.

Use: `log = logging.getLogger("late.tailer")`, then `log.warning("read failed", extra=fields(
group="default", retry_in_s=0.3))`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from late.events import ATTEMPT_ENDED, EVENTS, STORE_ERROR, Emitter, Event
from late.observability import repeats, traces

TEXT_MAX = 4096
"""Characters of one message, value or traceback."""

MASKED = frozenset(
    ("args", "kwargs", "payload", "headers", "password", "secret", "token", "authorization", "dsn")
)
"""Fields whose values are never shown."""

_FIELDS = "late_fields"
TASKS = "late.tasks"
"""The logger that has a line for each attempt, at level DEBUG."""

# Greedy up to the last `@` of the word: an unescaped `@` or `/` inside a password must not leave
# half of it in the log. The price is that an `@` later in the URL hides more than the password.
# Every repetition is bounded, or a hostile error text could make the search quadratic.
_URL_PASSWORD = re.compile(
    r"([A-Za-z0-9+.\-]{1,40}://[^\s:/@?#]{0,1000}):[^\s\"'<>]{0,1000}@",
)
_NAMED_SECRET = re.compile(
    r"(?i)([a-z_\-]{0,40}(?:password|passwd|secret|token|api_?key))(\s{0,8}[=:]\s{0,8})"
    r"(?:'(?:[^'\\]|\\.){0,1000}'|\"(?:[^\"\\]|\\.){0,1000}\"|[^\s&,;'\"]+)"
)
# C0, DEL, C1, line and paragraph separators, and the marks that reorder text on a screen.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BUT_BREAKS = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_PLAIN = re.compile(r"[^\s\"=\\]+\Z")


def fields(**values: Any) -> dict[str, Any]:
    """Make the `extra` of a log call: `log.info("read", extra=fields(pages=3))`."""
    return {_FIELDS: values}


def redact(text: str) -> str:
    """Remove passwords in URLs (`scheme://user:***@host`) and named ones (`password=***`).

    Named ones are in connection strings and queries. A second call changes nothing.
    """
    return _NAMED_SECRET.sub(r"\1\2***", redact_urls(text))


def redact_urls(text: str) -> str:
    """Remove passwords in URLs alone."""
    return _URL_PASSWORD.sub(r"\1:***@", text)


def escape(text: str, *, breaks: bool = True) -> str:
    """Escape control characters as `\\n`, `\\x1b`, `\\u2028`, so that the text is on one line.

    Unpaired surrogates, which no encoding can write, are escaped as well. With `breaks=False` line
    breaks and tabs stay, for JSON, which escapes them itself.
    """
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    found = _CONTROL if breaks else _BUT_BREAKS
    return found.sub(lambda each: each[0].encode("unicode_escape").decode("ascii"), text)


def clean(text: str, *, breaks: bool = True) -> str:
    """Redact, cut and escape a text, so that it may be written; `breaks`: see `escape`.

    It is redacted before it is cut: otherwise the cut could separate a password from the word or
    sign by which it is found. The part far beyond the cut is never shown, and so not searched.
    """
    shown = redact(text[: 4 * TEXT_MAX])
    if len(shown) > TEXT_MAX or len(text) > 4 * TEXT_MAX:
        shown = f"{shown[:TEXT_MAX]}... (cut, {len(text)} characters in all)"
    return escape(shown, breaks=breaks)


class HumanFormatter(logging.Formatter):
    """Formats `12:30:01.250 WARNING tailer: read failed group=default retry_in_s=0.3`.

    Each line of a traceback is indented, so that none looks like a record.
    """

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        level, area = f"{record.levelname:<7}", record.name.removeprefix("late.")
        if self._colour:
            code = 31 if record.levelno >= logging.ERROR else 33
            level = f"\x1b[{code}m{level}\x1b[0m" if record.levelno >= logging.WARNING else level
        line = f"{moment} {level} {area}: {clean(_message(record))}{_pairs(_values(record))}"
        if trace := _traceback(self, record):
            line += "".join(f"\n    {clean(part)}" for part in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object on one line.

    It has `time` (UTC, RFC 3339), `level`, `logger`, `message`, the fields, and `traceback`. A
    field never replaces one of the first four. Its texts have their line breaks: `error` too, which
    is kept in one line where it comes from the end of an attempt.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            **_values(record, breaks=False),
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": clean(_message(record), breaks=False),
        }
        if isinstance(error := line.get("error"), str):
            line["error"] = error.replace("\\n", "\n")
        if trace := _traceback(self, record):
            line["traceback"] = clean(trace, breaks=False)
        return msgspec.json.encode(line).decode()


def configure(
    level: str = "INFO",
    *,
    json: bool = False,
    stream: TextIO | None = None,
    process: int | None = None,
) -> logging.Handler:
    """Send the records of `late` to `stream` (standard error), for programs of `late` itself.

    `process` is the number of this process among several that write to the same stream; each line
    has it as a field.

    A library never calls this: a service that uses `late` configures logging by itself. A further
    call replaces the handler of the call before.

    Raises:
        ValueError: there is no such level.
    """
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(JsonFormatter() if json else HumanFormatter(colour=target.isatty()))
    if process is not None:
        handler.addFilter(ProcessNumber(process))
    root = logging.getLogger("late")
    root.setLevel(level.upper())
    for old in [old for old in root.handlers if getattr(old, "late_own", False)]:
        root.removeHandler(old)
    # What other libraries warn of has the same form, where the program has no handler for it.
    others = logging.StreamHandler(target)
    others.setLevel(logging.WARNING)
    others.setFormatter(handler.formatter)
    others.filters = handler.filters
    logging.lastResort = others
    handler.late_own = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.propagate = False
    return handler


class ProcessNumber(logging.Filter):
    """Adds the field `process` to each record."""

    def __init__(self, process: int) -> None:
        super().__init__()
        self._process = process

    def filter(self, record: logging.LogRecord) -> bool:
        own = {"process": self._process, **getattr(record, _FIELDS, {})}
        setattr(record, _FIELDS, own)
        return True


class Ids(logging.Filter):
    """Adds the ids of the task and the trace to records that are made inside of a handler.

    They are in `record.late`, an object, and in `record.trace_id` for formatters of others. Use it
    for the service's own logging: `handler.addFilter(late.log.Ids())`. The formatters of this
    module show the ids without it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        found = traces.ids()
        record.late = found
        record.trace_id = found.get("trace_id", "")
        return True


def log_events(emitter: Emitter, name: str = "late.worker") -> Callable[[], None]:
    """Write the events whose level is enabled now to the logger `name`.

    A line for each attempt is written to `late.tasks`, so that a service can have these lines and
    no others of that level. Events of other levels are not subscribed to, and so cost nothing.
    Returns a function that ends it.
    """
    logger, of_tasks = logging.getLogger(name), logging.getLogger(TASKS)
    levels = logging.getLevelNamesMapping()

    def write(event: Event, values: Mapping[str, Any]) -> None:
        shown = {key: value for key, value in values.items() if key not in event.series}
        text = event.text
        if event is STORE_ERROR:
            left_out = repeats.default.left_out((name, event.name, values["component"]))
            if left_out is None:
                return
            text += repeats.more(left_out)
        known = fields(event=event.name, **shown)
        into = of_tasks if event is ATTEMPT_ENDED else logger
        into.log(levels[event.level.upper()], _Told(text, known[_FIELDS]), extra=known)

    enabled = [
        event
        for event in EVENTS.values()
        if (of_tasks if event is ATTEMPT_ENDED else logger).isEnabledFor(
            levels[event.level.upper()]
        )
    ]
    return emitter.subscribe(write, enabled)


class _Told:
    """The message of an event: with its fields in the text for formatters of others, such as those
    of Django's `LOGGING`, which show nothing else. Those of this module add the fields."""

    __slots__ = ("_fields", "text")

    def __init__(self, text: str, known: Mapping[str, Any]) -> None:
        self.text = text
        self._fields = known

    def __str__(self) -> str:
        return clean(self.text) + _pairs(_masked(self._fields))


def _message(record: logging.LogRecord) -> str:
    if isinstance(record.msg, _Told):
        return record.msg.text
    try:
        return record.getMessage()
    except Exception:
        # A wrong format string must not lose the record. Its arguments may contain anything.
        return str(record.msg)


def _values(record: logging.LogRecord, *, breaks: bool = True) -> dict[str, Any]:
    found: Mapping[str, Any] = {**traces.ids(), **getattr(record, _FIELDS, {})}
    return _masked(found, breaks)


def _masked(found: Mapping[str, Any], breaks: bool = True) -> dict[str, Any]:
    return {
        key: "***" if key.lower() in MASKED else _shown(value, breaks)
        for key, value in found.items()
    }


def _pairs(shown: Mapping[str, Any]) -> str:
    return "".join(f" {key}={_quoted(value)}" for key, value in shown.items())


def _shown(value: Any, breaks: bool, depth: int = 0) -> Any:
    """Return a value that may be written: a plain value, a short list of them, or the type."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, str):
        return clean(value, breaks=breaks)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, BaseException):
        return clean(f"{type(value).__name__}: {value}", breaks=breaks)
    if isinstance(value, list | tuple | set | frozenset) and depth == 0:
        shown = [_shown(part, breaks, 1) for part in list(value)[:16]]
        return shown if len(value) <= 16 else [*shown, f"<{len(value) - 16} more>"]
    return f"<{type(value).__name__}>"


def _quoted(value: Any) -> str:
    if isinstance(value, str):
        if _PLAIN.match(value):
            return value
        # The text is already escaped, except for characters that would end the quotes.
        return '"' + value.replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + ",".join(_quoted(part) for part in value) + "]"
    return "-" if value is None else str(value)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0] is not None:
        return formatter.formatException(record.exc_info)
    return record.exc_text or ""
