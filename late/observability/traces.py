"""Traces: the caller's context travels with the task, and each attempt is a span.

**At an enqueue** the W3C context of the caller's span is put into the task's headers, as
`traceparent` and `tracestate`. It is in the row, and so survives a delay, a retry, a restart and
the way to a consumer or another service. This happens if OpenTelemetry is loaded and a span is
current; no setting is needed. Headers that the caller gave are not replaced.

**In a worker** with traces on (`enable`) an attempt is a span of the kind consumer, a child of the
enqueue and linked to it, with the attributes of OpenTelemetry's messaging conventions. What the
handler calls or enqueues becomes its child. Each attempt of a task is a span in the same trace.

Errors in this module are logged and not raised.

Source: W3C Trace Context; OpenTelemetry, semantic conventions for messaging.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

import msgspec

from late.model.task import Attempt

logger = logging.getLogger("late.observability")

PARENT, STATE = "traceparent", "tracestate"
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
STATE_LENGTH_MAX = 512
HEADERS_BYTES_MAX = 8 * 1024
_decode = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode

current: ContextVar[Attempt | None] = ContextVar("late_attempt", default=None)
"""The attempt whose handler runs in this context, for logs."""


def is_parent(text: str) -> bool:
    """Return True if `text` is a `traceparent` that names a span."""
    return _PARENT.match(text) is not None


def trace_id(headers: Mapping[str, str] | None) -> str | None:
    """Return the id of the trace that a task's headers name; None without one."""
    parent = (headers or {}).get(PARENT, "")
    return parent.split("-")[1] if is_parent(parent) else None


# --- producers -----------------------------------------------------------------------------------


def captured(headers: str | None) -> str | None:
    """Add the context of the caller's span to `headers` (JSON or None).

    Without a span, or if the context does not fit, `headers` stay as they are. It costs
    one look-up if OpenTelemetry is not loaded. It never raises.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return headers
    try:
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return headers
        found = {} if headers is None else _decode(headers)
        if PARENT in found:
            return headers
        found[PARENT] = (
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        )
        state = context.trace_state.to_header()
        if state and len(state) <= STATE_LENGTH_MAX:
            found[STATE] = state
        merged = _encode(found)
    except Exception:
        logger.warning("the context of a trace could not be captured", exc_info=True)
        return headers
    return headers if len(merged) > HEADERS_BYTES_MAX else merged.decode()


def passed(headers: dict[str, str] | None, parent: str | None, state: str | None) -> Any:
    """Add the trace context of a request to the headers of a task that it enqueues.

    The context is the `traceparent` and `tracestate` of HTTP or gRPC. Invalid ones are left out.
    """
    if parent is None or not is_parent(parent) or PARENT in (headers or {}):
        return headers
    found = {**(headers or {}), PARENT: parent}
    if state and len(state) <= STATE_LENGTH_MAX and state.isascii() and state.isprintable():
        found[STATE] = state
    return found


# --- workers and consumers -----------------------------------------------------------------------


class Task(NamedTuple):
    """The values of an attempt that its span shows."""

    task_id: str
    name: str
    queue: str
    group: str
    attempt: int
    headers: dict[str, str]
    size: int | None = None
    shard_id: int | None = None
    target: str | None = None
    deaths: int = 0


class Running(NamedTuple):
    """A span that is current until `Tracer.end`."""

    span: Any
    token: Any


class Tracer:
    """Makes spans with one OpenTelemetry tracer provider.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """

    def __init__(self, provider: Any = None) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace, self._context = trace, context
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("late", tracer_provider=provider)

    def begin(self, task: Task) -> Running:
        """Start the span of an attempt and make it current."""
        trace = self._trace
        created = self._propagator.extract(task.headers) if PARENT in task.headers else None
        links = []
        if created is not None:
            links.append(trace.Link(trace.get_current_span(created).get_span_context()))
        span = self._tracer.start_span(
            f"process {task.queue}",
            # Without a context of its own an attempt begins a trace. It must not become a child of
            # a span that happens to be current in the worker.
            context=created or self._context.Context(),
            kind=trace.SpanKind.CONSUMER,
            links=links,
            attributes=_attributes(task),
        )
        return Running(span, self._context.attach(trace.set_span_in_context(span)))

    def end(self, running: Running, outcome: str, error: str | None) -> None:
        """End the span of an attempt."""
        span, trace = running.span, self._trace
        span.set_attribute("late.outcome", outcome)
        if outcome in _BAD:
            span.set_attribute("error.type", outcome)
            span.set_status(trace.Status(trace.StatusCode.ERROR, (error or outcome)[:500]))
        span.end()
        self._context.detach(running.token)

    def inject(self, headers: dict[str, str]) -> None:
        """Put the context of the current span into the headers of a call to another service."""
        self._propagator.inject(headers)


_BAD = ("failed", "dead", "died", "expired")


def _attributes(task: Task) -> dict[str, Any]:
    found = {
        "messaging.system": "late",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": task.queue,
        "messaging.message.id": task.task_id,
        "messaging.consumer.group.name": task.group,
        "messaging.message.body.size": task.size,
        "messaging.destination.partition.id": None if task.shard_id is None else str(task.shard_id),
        "late.task.name": task.name,
        "late.attempt": task.attempt,
        "late.target": task.target,
        "late.deaths": task.deaths or None,
    }
    return {name: value for name, value in found.items() if value is not None}


_tracer: Tracer | None = None


def enable(provider: Any = None) -> None:
    """Make a span of every attempt of this process from now on.

    Args:
        provider: an OpenTelemetry tracer provider; the global one when None.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    global _tracer
    _tracer = Tracer(provider)


def disable() -> None:
    """Make no more spans. It may be called twice."""
    global _tracer
    _tracer = None


def begin(attempt: Attempt) -> Running | None:
    """Start the span of an attempt in this context; pass the returned value to `end`."""
    current.set(attempt)
    if _tracer is None:
        return None
    record = attempt.record
    return start(
        Task(
            record.task_id,
            record.name,
            record.queue,
            attempt.group,
            attempt.number,
            headers_of(record.headers),
            len(record.payload),
            record.shard_id,
            attempt.target,
            attempt.deaths,
        )
    )


def start(task: Task) -> Running | None:
    """Start a span without an `Attempt`, for consumers and other services."""
    if _tracer is None:
        return None
    try:
        return _tracer.begin(task)
    except Exception:
        logger.warning("a span could not be started", exc_info=True)
        return None


def end(running: Running | None, outcome: str, error: str | None = None) -> None:
    """End the span of an attempt in this context; `outcome` is its `Kind`."""
    current.set(None)
    if running is None or _tracer is None:
        return
    try:
        _tracer.end(running, outcome, error)
    except Exception:
        logger.warning("a span could not be ended", exc_info=True)


def of_call(headers: dict[str, str]) -> dict[str, str]:
    """The trace headers of a call to another service.

    They are of the current span, or else of `headers`, which are the task's.
    """
    if _tracer is None:
        return headers
    found = dict(headers)
    _tracer.inject(found)
    return found


def ids() -> dict[str, Any]:
    """The ids that join a log line with a task and a trace in this context; empty without both."""
    found: dict[str, Any] = {}
    attempt = current.get()
    if attempt is not None:
        record = attempt.record
        found = {
            "task": record.task_id,
            "name": record.name,
            "queue": record.queue,
            "group": attempt.group,
            "attempt": attempt.number,
        }
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None and _tracer is not None:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            found["trace_id"] = f"{context.trace_id:032x}"
            found["span_id"] = f"{context.span_id:016x}"
    return found


def headers_of(raw: str | None) -> dict[str, str]:
    """Read the headers of a record, if the context of a trace is among them."""
    if raw is None or PARENT not in raw:
        return {}
    try:
        return _decode(raw)
    except msgspec.DecodeError:
        return {}
