"""One trace from the caller's span through delay, retry and the tasks of tasks, to a collector."""

from __future__ import annotations

import asyncio
import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

import late
from late.config import WorkerConfig
from late.errors import ConfigError
from late.observability import traces as tracing
from late.outbox import connect
from late.testing import drain
from late.worker.worker import Worker
from tests.integration.test_worker import until
from tests.support import sqlite
from tests.unit.test_spans import Traces


@pytest.fixture
def database(tmp_path: Path) -> str:
    return sqlite.database(tmp_path / "shop.db")


def test_a_trace_goes_through_retry_delay_threads_and_tasks_of_tasks(database: str) -> None:
    app, traces = late.App(database, shards=2), Traces()
    seen: list[str] = []

    @app.task(queue="mail")
    def send(ctx: late.Context) -> None:
        span = trace.get_current_span().get_span_context()
        seen.append(f"{span.span_id:016x}")

    @app.task(queue="pay", retry=late.Retry(max_attempts=2, base=0.01, cap=0.01))
    async def charge(ctx: late.AsyncContext) -> None:
        await asyncio.sleep(0)
        if ctx.attempt == 1:
            raise ValueError
        async with ctx.begin() as tx:
            await send.options(delay=0.3).enqueue(tx)

    tracing.enable(traces.provider)
    try:
        with traces.tracer.start_as_current_span("order") as order, connect(database) as tx:
            charge.enqueue(tx)
        assert drain(app, wait_s=5.0) == {"done": 2}
    finally:
        tracing.disable()
    spans = [span for span in traces.ended if span.name.startswith("process")]
    assert [span.name for span in spans] == ["process pay", "process pay", "process mail"]
    assert {span.context.trace_id for span in spans if span.context} == {
        order.get_span_context().trace_id
    }
    parents = [span.parent.span_id for span in spans if span.parent]
    assert spans[1].context is not None
    assert parents == [order.get_span_context().span_id] * 2 + [spans[1].context.span_id]
    assert spans[2].context is not None
    assert seen == [f"{spans[2].context.span_id:016x}"], "a handler in a thread is inside of it"


class Collector:
    """An OpenTelemetry collector, as far as `late` needs one."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.spans: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.take(self.path, body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics.append({metric.name: metric for metric in scope.metrics})
        elif path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    self.spans += scope.spans

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    found = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
    yield found
    found.close()


async def test_a_worker_sends_metrics_and_spans_to_a_collector(
    database: str, collector: Collector
) -> None:
    app = late.App(database, shards=2)

    @app.task(queue="pay")
    async def charge(n: int) -> None: ...

    tracer = TracerProvider().get_tracer("shop")
    with tracer.start_as_current_span("order") as order, connect(database) as tx:
        app.enqueue_many(tx, [charge.call(n) for n in range(5)])
    worker = Worker(
        app, settings=WorkerConfig(otel=1, otel_every_s=0.1, poll_max_s=0.05, look_every_s=0.1)
    )
    await worker.start()
    try:
        await until(
            lambda: (
                worker.dispatcher.ended == 5
                and any("late_freshness_seconds" in sent for sent in collector.metrics)
            )
        )
    finally:
        await worker.stop()
    last = collector.metrics[-1]
    [run] = last["late_run_seconds"].histogram.data_points
    assert run.count == 5
    assert {pair.key: pair.value.string_value for pair in run.attributes} == {
        "group": "default", "queue": "pay", "task": "charge", "target": "local",
    }  # fmt: skip
    [done] = last["late_outcomes_total"].sum.data_points
    assert done.as_double == 5
    assert last["late_outcomes_total"].sum.is_monotonic
    assert last["late_slots"].gauge.data_points[0].as_int == worker.settings.concurrency
    traced = {span.trace_id.hex() for span in collector.spans if span.name == "process pay"}
    assert len(collector.spans) == 5, "the rest is sent when the worker stops"
    assert traced == {f"{order.get_span_context().trace_id:032x}"}


async def test_a_collector_that_is_away_stops_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("late.observability.otel.SEND_MS", 200)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    app = late.App(database, shards=2)

    @app.task
    async def note() -> None: ...

    with connect(database) as tx:
        note.enqueue(tx)
    worker = Worker(app, settings=WorkerConfig(otel=1, otel_every_s=0.1, poll_max_s=0.05))
    await worker.start()
    try:
        await until(lambda: worker.scheduler.settlements and worker.dispatcher.ended == 1)
    finally:
        await worker.stop()
    assert drain(app) == {}


def test_a_worker_without_the_library_says_what_to_install(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install 'late-queue\[otel\]'"):
        Worker(late.App(database), settings=WorkerConfig(otel=1))
