"""The trace of a caller over HTTP and gRPC goes on in its tasks, and in who executes them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import late
from late.dispatcher.push.job import Job
from late.observability import traces as tracing
from late.v1 import queue_pb2
from tests.integration.control_kit import rows
from tests.unit.api_kit import served
from tests.unit.dispatcher_kit import attempt
from tests.unit.test_grpc_api import new, stub
from tests.unit.test_spans import PARENT, Traces


def headers(url: str) -> list[dict[str, str]]:
    found = rows(url, "select headers from late_task order by seq")
    return [json.loads(text or "{}") for (text,) in found]


async def test_http_requests_pass_their_trace_on(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        trace = {"traceparent": PARENT, "tracestate": "shop=1"}
        path, put = "/v1/queues/payments/tasks", {"name": "charge"}
        assert (await it.call("POST", path, put, headers=trace)).status == 201
        mine = {**put, "headers": {"a": "b"}, "queue": "payments"}
        many = {"tasks": [mine]}
        assert (await it.call("POST", "/v1/tasks", many, headers=trace)).status == 201
        bad = {"traceparent": "nonsense"}
        assert (await it.call("POST", path, put, headers=bad)).status == 201
        assert headers(it.url) == [trace, {"a": "b", **trace}, {}]


async def test_grpc_calls_pass_their_trace_on(tmp_path: Path) -> None:
    async with served(tmp_path) as it, stub(it) as queue:
        request = queue_pb2.EnqueueRequest(tasks=[new()])
        await queue.Enqueue(request, metadata=[("traceparent", PARENT)])
        await queue.Enqueue(request)
        assert headers(it.url) == [{"traceparent": PARENT}, {}]


async def test_a_consumers_work_is_a_span_of_the_trace(tmp_path: Path) -> None:
    traces = Traces()
    tracing.enable(traces.provider)
    try:
        async with served(tmp_path) as it:

            def work(task: late.PulledTask) -> None:
                inside = tracing.of_call({})
                assert inside["traceparent"][:35] == PARENT[:35]
                raise late.Discard("over")

            at = f"127.0.0.1:{it.rpc.port}"
            consumer = late.Consumer(at, queues=["payments"], concurrency=2, name="billing")
            serving = asyncio.create_task(consumer.serve(work))
            await it.rig.room(2)
            raw = json.dumps({"traceparent": PARENT})
            it.rig.pool.submit([attempt("charge", headers=raw)])
            [outcome] = await it.rig.ended(1)
            assert outcome.kind == "discard", outcome.error
            consumer.stop()
            async with asyncio.timeout(120):
                await serving
    finally:
        tracing.disable()
    [span] = [span for span in traces.ended if span.name == "process payments"]
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT[36:52]
    assert dict(span.attributes or {})["late.outcome"] == "discard"


def test_a_target_is_told_of_the_attempts_span() -> None:
    traces = Traces()
    job = Job(
        "t", "g", "q", "n", b"", "", {"traceparent": PARENT, "a": "b"}, 1, None, 0, False, False,
        None, None, None, 1.0,  # type: ignore[arg-type]
    )  # fmt: skip
    assert job.trace == {"traceparent": PARENT}
    tracing.enable(traces.provider)
    try:
        with traces.tracer.start_as_current_span("attempt") as span:
            sent = job.trace
    finally:
        tracing.disable()
    assert sent["traceparent"][36:52] == f"{span.get_span_context().span_id:016x}"
