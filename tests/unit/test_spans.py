"""The context of a trace travels with the task, and attempts become spans."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from late.model.task import Attempt, Record, TaskId
from late.observability import logs as log
from late.observability import traces as tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traces:
    """Spans of this test, and a provider that a service would have."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("service")

    @property
    def ended(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())


@pytest.fixture
def traces() -> Iterator[Traces]:
    found = Traces()
    tracing.enable(found.provider)
    yield found
    tracing.disable()


def attempt(headers: dict[str, str] | None = None, number: int = 1) -> Attempt:
    raw = None if headers is None else json.dumps(headers)
    record = Record(3, 7, TaskId("t1"), "pay", "charge", b"{}", raw, None, 1_000, 7)
    return Attempt("default", record, number, 0, 1, 1_000)


def test_the_callers_span_is_put_into_the_headers(traces: Traces) -> None:
    assert tracing.captured(None) is None
    assert tracing.captured('{"a":"b"}') == '{"a":"b"}'
    with traces.tracer.start_as_current_span("order") as span:
        context = span.get_span_context()
        found = json.loads(tracing.captured('{"a":"b"}') or "")
        parent = found.pop("traceparent")
        assert parent[:-2] == f"00-{context.trace_id:032x}-{context.span_id:016x}-"
        assert int(parent[-2:], 16) & 1, "sampled"
        assert found == {"a": "b"}
        assert tracing.is_parent(json.loads(tracing.captured(None) or "")["traceparent"])


def test_a_context_that_the_caller_gave_wins(traces: Traces) -> None:
    given = json.dumps({"traceparent": PARENT})
    with traces.tracer.start_as_current_span("order"):
        assert tracing.captured(given) == given


def test_headers_that_would_grow_too_large_stay_as_they_are(traces: Traces) -> None:
    given = json.dumps({"a": "x" * (tracing.HEADERS_BYTES_MAX - 20)})
    with traces.tracer.start_as_current_span("order"):
        assert tracing.captured(given) == given


@pytest.mark.parametrize(
    "text",
    [
        "", "x", PARENT.upper(), PARENT[:-1], PARENT + "0", PARENT + "\n", f"ff{PARENT[2:]}",
        "00-" + "0" * 32 + PARENT[35:], PARENT[:36] + "0" * 16 + "-01",
        PARENT.replace("-", ""),
    ],
)  # fmt: skip
def test_what_is_no_context_is_not_passed_on(text: str) -> None:
    assert not tracing.is_parent(text)
    assert tracing.passed({"a": "b"}, text, "x=1") == {"a": "b"}


def test_the_context_of_a_request_goes_on_in_its_tasks() -> None:
    assert tracing.passed(None, None, None) is None
    assert tracing.passed(None, PARENT, "v=1") == {"traceparent": PARENT, "tracestate": "v=1"}
    assert tracing.passed(None, PARENT, "bad\n") == {"traceparent": PARENT}
    mine = {"traceparent": PARENT.replace("b7", "c7")}
    assert tracing.passed(mine, PARENT, None) == mine


def test_each_attempt_is_a_span_of_the_enqueues_trace(traces: Traces) -> None:
    for number, outcome in ((1, "failed"), (2, "done")):
        running = tracing.begin(attempt({"traceparent": PARENT}, number))
        tracing.end(running, outcome, "ValueError: no" if outcome == "failed" else None)
    first, second = traces.ended
    for span in (first, second):
        assert span.name == "process pay"
        assert span.kind is trace.SpanKind.CONSUMER
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == PARENT[3:35]
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == PARENT[36:52]
        [link] = span.links
        assert f"{link.context.span_id:016x}" == PARENT[36:52]
    found = dict(second.attributes or {})
    assert found == {
        "messaging.system": "late",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "pay",
        "messaging.message.id": "t1",
        "messaging.consumer.group.name": "default",
        "messaging.message.body.size": 2,
        "messaging.destination.partition.id": "3",
        "late.task.name": "charge",
        "late.attempt": 2,
        "late.target": "local",
        "late.outcome": "done",
    }
    assert first.status.status_code is trace.StatusCode.ERROR
    assert first.status.description == "ValueError: no"
    assert second.status.status_code is not trace.StatusCode.ERROR


@pytest.mark.parametrize("headers", [None, {}, {"traceparent": "nonsense"}])
def test_without_a_context_an_attempt_begins_a_trace(
    traces: Traces, headers: dict[str, str] | None
) -> None:
    with traces.tracer.start_as_current_span("the worker's own"):
        tracing.end(tracing.begin(attempt(headers)), "done")
    span = next(span for span in traces.ended if span.name == "process pay")
    assert span.parent is None


def test_headers_that_cannot_be_read_cost_the_link_and_nothing_else(traces: Traces) -> None:
    record = Record(3, 7, TaskId("t"), "pay", "c", b"", "{traceparent", None, 1_000, 7)
    tracing.end(tracing.begin(Attempt("default", record, 1, 0, 1, 1_000)), "done")
    assert len(traces.ended) == 1


def test_a_provider_that_fails_fails_no_task(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def get_tracer(self, *args: Any, **more: Any) -> Any:
            return object()

    tracing.enable(Broken())
    try:
        running = tracing.begin(attempt())
        tracing.end(running, "done")
    finally:
        tracing.disable()
    assert "a span could not be started" in caplog.text


def test_a_call_to_another_service_is_a_child_of_the_attempt(traces: Traces) -> None:
    running = tracing.begin(attempt({"traceparent": PARENT}))
    sent = tracing.of_call({"traceparent": PARENT})
    tracing.end(running, "done")
    [span] = traces.ended
    assert span.context is not None
    assert sent["traceparent"] == f"{PARENT[:36]}{span.context.span_id:016x}-01"
    tracing.disable()
    assert tracing.of_call({"traceparent": PARENT}) == {"traceparent": PARENT}


def test_log_lines_of_a_handler_are_joined_with_its_task_and_trace(traces: Traces) -> None:
    stream = io.StringIO()
    handler = log.configure("INFO", json=True, stream=stream)
    try:
        logger = logging.getLogger("late.shop")
        running = tracing.begin(attempt({"traceparent": PARENT}, 2))
        logger.info("inside", extra=log.fields(attempt="mine"))
        tracing.end(running, "done")
        logger.info("outside")
    finally:
        logging.getLogger("late").removeHandler(handler)
        logging.getLogger("late").propagate = True
    inside, outside = map(json.loads, stream.getvalue().splitlines())
    assert inside["trace_id"] == PARENT[3:35]
    assert (inside["task"], inside["queue"], inside["name"]) == ("t1", "pay", "charge")
    assert inside["attempt"] == "mine", "what the line itself says counts"
    assert not {"task", "trace_id"} & outside.keys()


def test_the_ids_for_the_services_own_logging(traces: Traces) -> None:
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, "x", None, None)
    running = tracing.begin(attempt({"traceparent": PARENT}))
    assert log.Ids().filter(record)
    tracing.end(running, "done")
    assert vars(record)["trace_id"] == PARENT[3:35]
    assert vars(record)["late"]["task"] == "t1"
