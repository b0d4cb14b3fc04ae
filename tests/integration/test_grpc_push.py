"""gRPC push: what a target is told, and what its answers mean."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

import late
from late.errors import ConfigError
from late.v1 import handler_pb2, handler_pb2_grpc
from tests.integration.push_kit import pool_of
from tests.support import sqlite
from tests.unit.dispatcher_kit import NOW_US, attempt
from tests.unit.test_retry_info import details


def service() -> tuple[late.App, list[Any]]:
    """What a team that owns tasks has: an app of its own, and what its handlers saw."""
    app, seen = late.App("sqlite:///billing.db"), []

    @app.task
    async def charge(ctx: late.AsyncContext, trip_id: int, amount: Decimal) -> None:
        seen.append((ctx.task_id, ctx.group, ctx.attempt, ctx.headers, trip_id, amount))

    @app.task
    def refund(trip_id: int) -> None:
        seen.append(trip_id)

    @app.task
    async def answer(how: str) -> Any:
        match how:
            case "retry":
                return late.Retry(after_s=7, reason="the bank sleeps")
            case "snooze":
                raise late.Snooze(2.5)
            case "discard":
                raise late.Discard("paid already")
            case "nack":
                raise late.Nack(reason="no licence")
            case "raise":
                raise ValueError("card 4111")
        return None

    @app.task(retry=late.Retry(give_up_on=KeyError))
    def give_up() -> None:
        raise KeyError("gone")

    return app, seen


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[tuple[late.GrpcTarget, list[Any]]]:
    app, seen = service()
    async with late.serve_handlers(app, "127.0.0.1:0", **settings) as server:
        yield late.GrpcTarget("billing", (f"127.0.0.1:{server.port}",)), seen


async def test_a_task_is_executed_by_the_service_with_what_the_producer_gave() -> None:
    sent = attempt("charge", trip_id=7, amount="3.50", headers='{"traceparent":"00-1-2-01"}')
    async with served() as (target, seen), pool_of(target) as pool:
        outcome = await pool.one(sent)
    assert (outcome.kind, outcome.target) == ("done", "billing")
    headers = {"traceparent": "00-1-2-01"}
    assert seen == [(sent.record.task_id, "default", 1, headers, 7, Decimal("3.50"))]


async def test_a_handler_there_knows_of_its_task_what_a_local_one_does() -> None:
    app, seen = late.App("sqlite:///billing.db"), []

    @app.task
    def look(ctx: late.Context) -> None:
        seen.append((ctx.is_replay, ctx.deaths, ctx.queue, ctx.enqueued_at, ctx.due_at))
        seen.append((ctx.expires_at, ctx.max_attempts, ctx.is_last_attempt, ctx.deadline))

    sent = attempt("look", number=3, deadline_us=NOW_US + 1_000_000)
    sent = msgspec.structs.replace(sent, is_replay=True, deaths=2)
    home = late.App("sqlite:///shop.db")
    remote = home.remote("look", target="billing", timeout_s=60, retry=late.Retry(3))
    async with late.serve_handlers(app, "127.0.0.1:0") as server:
        target = late.GrpcTarget("billing", (f"127.0.0.1:{server.port}",))
        async with pool_of(target, {"look": remote}) as pool:
            assert (await pool.one(sent)).kind == "done"
    moments = [
        dt.datetime.fromtimestamp(us / 1_000_000, dt.UTC)
        for us in (sent.record.created_at_us, sent.due_at_us, NOW_US + 1_000_000)
    ]
    assert seen[0] == (True, 2, "payments", *moments[:2])
    assert seen[1][:3] == (moments[2], 3, True)
    assert seen[1][3] > dt.datetime.now(dt.UTC) + dt.timedelta(seconds=20)


async def test_a_knob_may_shorten_the_time_that_a_call_has() -> None:
    async def hang(request: Any, context: Any) -> Any:
        assert context.time_remaining() <= 0.3
        await asyncio.Event().wait()

    async with stub() as (servicer, target), pool_of(target) as pool:
        servicer.reply = hang
        hurried = msgspec.structs.replace(attempt("charge"), timeout_us=300_000)
        outcome = await pool.one(hurried)
    assert (outcome.kind, outcome.overloaded) == ("failed", True)


async def test_plain_functions_run_there_too() -> None:
    async with served() as (target, seen), pool_of(target) as pool:
        outcomes = await pool.run(*(attempt("refund", trip_id=n) for n in range(100)))
    assert {outcome.kind for outcome in outcomes} == {"done"}
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize(
    ("how", "kind", "after_us", "text"),
    [
        ("done", "done", None, ""),
        ("retry", "failed", 7_000_000, "the bank sleeps"),
        ("snooze", "snooze", 2_500_000, ""),
        ("discard", "discard", None, ""),
        ("nack", "not_capable", None, ""),
        ("raise", "failed", None, "ValueError: card 4111"),
    ],
)
async def test_every_outcome_of_a_handler_comes_back(
    how: str, kind: str, after_us: int | None, text: str
) -> None:
    async with served() as (target, _), pool_of(target) as pool:
        outcome = await pool.one(attempt("answer", how=how))
    assert (outcome.kind, outcome.after_us, outcome.retryable) == (kind, after_us, True)
    assert text in (outcome.error or "")


@pytest.mark.parametrize("name", ["place", "place_async", "found_by_itself"])
async def test_a_repeat_there_brings_the_counts_of_the_run_whose_answer_was_lost(
    tmp_path: Path, name: str
) -> None:
    app = late.App(sqlite.database(tmp_path / "billing.db"))
    placed: list[int] = []

    @app.task
    def place(ctx: late.Context) -> None:
        ctx.count("orders")
        with ctx.once():
            placed.append(ctx.attempt)

    @app.task
    async def place_async(ctx: late.AsyncContext) -> None:
        ctx.count("orders")
        async with ctx.once():
            placed.append(ctx.attempt)

    @app.task
    def found_by_itself(ctx: late.Context) -> None:
        ctx.count("orders")
        if placed:
            raise late.AlreadyDone
        placed.append(ctx.attempt)

    first = attempt(name)
    async with late.serve_handlers(app, "127.0.0.1:0") as server:
        target = late.GrpcTarget("billing", (f"127.0.0.1:{server.port}",))
        async with pool_of(target) as pool:
            lost = await pool.one(first)
            repeat = await pool.one(msgspec.structs.replace(first, number=2))
    assert [(each.kind, each.counts) for each in (lost, repeat)] == [("done", (("orders", 1),))] * 2
    assert placed == [1], "the effects happened once"


async def test_what_the_service_gives_up_is_not_repeated() -> None:
    async with served() as (target, _), pool_of(target) as pool:
        outcome = await pool.one(attempt("give_up"))
    assert (outcome.kind, outcome.retryable, outcome.reason) == ("failed", False, "refused")


async def test_arguments_that_do_not_fit_the_service_wait_for_one_that_they_fit() -> None:
    async with served() as (target, _), pool_of(target) as pool:
        wrong = await pool.one(attempt("charge", trip_id="seven", amount="3.50"))
    assert wrong.kind == "not_capable"
    assert "trip_id" in (wrong.error or wrong.reason or "")


async def test_a_name_that_the_service_does_not_have_costs_no_attempt() -> None:
    async with served() as (target, _), pool_of(target) as pool:
        outcome = await pool.one(attempt("no.such.task"))
    assert outcome.kind == "not_capable"


async def test_a_payload_that_is_no_object_never_leaves_the_worker() -> None:
    async with served() as (target, seen), pool_of(target) as pool:
        for payload in (b"[1]", b"{", b'{"a": NaN}', b"\xff"):
            outcome = await pool.one(attempt("charge", payload=payload))
            assert (outcome.kind, outcome.reason) == ("dead", "undecodable")
        big = await pool.one(attempt("charge", payload=b'{"a":"' + b"x" * 2**20 + b'"}'))
        assert (big.kind, big.reason) == ("dead", "payload_too_large")
    assert seen == []


async def test_a_wrong_token_is_refused_and_the_right_one_is_not() -> None:
    app, seen = service()
    async with late.serve_handlers(app, "127.0.0.1:0", token="letmein") as server:
        where = (f"127.0.0.1:{server.port}",)
        for token, kind in ((None, "failed"), ("letmeout", "failed"), ("letmein", "done")):
            target = late.GrpcTarget("billing", where, token=token)
            async with pool_of(target) as pool:
                outcome = await pool.one(attempt("refund", trip_id=1))
                assert outcome.kind == kind
                assert outcome.retryable
    assert seen == [1]


def test_a_server_that_others_can_reach_wants_tls_and_a_token() -> None:
    app, _ = service()
    with pytest.raises(ConfigError, match="token="):
        late.serve_handlers(app, "0.0.0.0:7000")
    with pytest.raises(ConfigError, match="token="):
        late.serve_handlers(app, "0.0.0.0:7000", token="letmein")
    late.serve_handlers(app, "0.0.0.0:7000", insecure=True)


async def test_a_service_that_is_full_says_so_and_when_to_come_back() -> None:
    async with served(concurrency=1) as (target, _), pool_of(target) as pool:
        outcomes = await pool.run(*(attempt("answer", how="done") for _ in range(64)))
    refused = [outcome for outcome in outcomes if outcome.kind != "done"]
    assert all(o.kind == "failed" and o.reason == "overloaded" for o in refused)
    assert all(o.after_us == 1_000_000 for o in refused)


class Stub(handler_pb2_grpc.HandlerServicer):
    """A service by hand: `reply` is called with request and context."""

    def __init__(self) -> None:
        self.reply: Any = None
        self.seen: list[tuple[Any, dict[str, Any]]] = []

    async def Execute(self, request: Any, context: Any) -> Any:
        self.seen.append((request, dict(context.invocation_metadata())))
        return await self.reply(request, context)


@asynccontextmanager
async def stub() -> AsyncIterator[tuple[Stub, late.GrpcTarget]]:
    """A server with one method and nothing else: not even a health check."""
    servicer, server = Stub(), grpc.aio.server()
    handler_pb2_grpc.add_HandlerServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, late.GrpcTarget("billing", (f"127.0.0.1:{port}",))
    finally:
        await server.stop(0)


async def test_what_is_sent_is_what_the_proto_promises() -> None:
    async def done(request: Any, context: Any) -> Any:
        assert 250 < context.time_remaining() <= 300
        return handler_pb2.ExecuteResponse()

    headers = '{"traceparent":"00-ab-cd-01","tracestate":"a=1\\nlate-target: x","who":"ada"}'
    sent = attempt("charge", headers=headers, number=3, deadline_us=NOW_US + 5_000_000, trip_id=7)
    async with stub() as (servicer, target), pool_of(target) as pool:
        servicer.reply = done
        assert (await pool.one(sent)).kind == "done"
    [(request, metadata)] = servicer.seen
    task = request.task
    key = f"default:{sent.record.task_id}"
    assert (request.idempotency_key, metadata["idempotency-key"]) == (key, key)
    assert (task.payload, task.codec, task.attempt) == (b'{"trip_id": 7}', "", 3)
    assert (task.queue, task.name, task.headers["who"]) == ("payments", "charge", "ada")
    assert task.expires_at.ToMicroseconds() == NOW_US + 5_000_000
    assert task.enqueued_at.ToMicroseconds() == sent.record.created_at_us
    assert metadata["traceparent"] == "00-ab-cd-01"
    assert metadata["late-target"] == "billing"
    assert "tracestate" not in metadata, "what a producer gave must not make another header"


STATUS = [
    ("UNAVAILABLE", "failed", True, "unavailable"),
    ("RESOURCE_EXHAUSTED", "failed", True, "overloaded"),
    ("ABORTED", "failed", True, None),
    ("CANCELLED", "failed", True, None),
    ("DEADLINE_EXCEEDED", "failed", True, "timeout"),
    ("INTERNAL", "failed", True, None),
    ("UNKNOWN", "failed", True, None),
    ("NOT_FOUND", "failed", True, None),
    ("PERMISSION_DENIED", "failed", True, None),
    ("UNAUTHENTICATED", "failed", True, None),
    ("INVALID_ARGUMENT", "failed", False, "refused"),
    ("OUT_OF_RANGE", "failed", False, "refused"),
    ("FAILED_PRECONDITION", "failed", False, "refused"),
    ("UNIMPLEMENTED", "not_capable", True, "not_capable"),
    ("ALREADY_EXISTS", "done", True, None),
]


@pytest.mark.parametrize(("code", "kind", "retryable", "reason"), STATUS)
async def test_every_status_code_has_its_outcome(
    code: str, kind: str, retryable: bool, reason: str | None
) -> None:
    async def refuse(request: Any, context: Any) -> Any:
        await context.abort(getattr(grpc.StatusCode, code), "not today\nlevel=fake")

    async with stub() as (servicer, target), pool_of(target) as pool:
        servicer.reply = refuse
        outcome = await pool.one(attempt("charge"))
    assert (outcome.kind, outcome.retryable, outcome.reason) == (kind, retryable, reason)
    assert outcome.overloaded == (reason in ("overloaded", "timeout"))
    if kind != "done":
        assert f"{code}: not today\\nlevel=fake" in (outcome.error or "")


@pytest.mark.parametrize(
    ("name", "text", "after_us"),
    [
        ("retry-after", "30", 30_000_000),
        ("retry-after", "1e300", 86_400_000_000),
        ("retry-after", "nan", None),
        ("retry-after", "-5", 0),
        ("grpc-retry-pushback-ms", "1500", 1_500_000),
        ("grpc-status-details-bin", details(), 2_500_000),
        ("grpc-status-details-bin", b"nonsense", None),
    ],
)
@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
async def test_the_wait_that_a_target_asks_for_is_kept(
    code: str, name: str, text: str | bytes, after_us: int | None
) -> None:
    async def refuse(request: Any, context: Any) -> Any:
        context.set_trailing_metadata(((name, text),))
        await context.abort(getattr(grpc.StatusCode, code), "later")

    async with stub() as (servicer, target), pool_of(target) as pool:
        servicer.reply = refuse
        outcome = await pool.one(attempt("charge"))
    assert (outcome.kind, outcome.after_us) == ("failed", after_us)


async def test_an_answer_that_is_too_long_is_no_sign_of_overload() -> None:
    async def huge(request: Any, context: Any) -> Any:
        answer = handler_pb2.ExecuteResponse()
        answer.done.result = b"x" * 3 * 2**20
        return answer

    async with stub() as (servicer, target), pool_of(target) as pool:
        servicer.reply = huge
        outcome = await pool.one(attempt("charge"))
    assert (outcome.kind, outcome.reason) == ("failed", "bad_answer")


async def test_a_call_ends_with_its_attempt() -> None:
    """The service is told: its own call is cancelled."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(request: Any, context: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    app = late.App("sqlite:///shop.db")
    slow = app.remote("slow", target="billing", timeout_s=0.3)
    async with stub() as (servicer, target):
        servicer.reply = hang
        async with pool_of(target, {"slow": slow}) as pool:
            outcome = await pool.one(attempt("slow"))
            await asyncio.wait_for(ended.wait(), 120)
            assert (outcome.kind, outcome.retryable, outcome.overloaded) == ("failed", True, True)
            begun.clear()
            ended.clear()
            pool.pool.submit([attempt("charge")])
            await asyncio.wait_for(begun.wait(), 120)
        await asyncio.wait_for(ended.wait(), 120)
    assert pool.outcomes[-1].kind == "interrupted"


async def test_an_endpoint_of_nobody_fails_the_attempt_and_says_where() -> None:
    target = late.GrpcTarget("billing", ("127.0.0.1:1",), connect_s=0.2)
    async with pool_of(target) as pool:
        outcome = await pool.one(attempt("charge"))
    assert (outcome.kind, outcome.retryable, outcome.reason) == ("failed", True, "unavailable")
    assert "127.0.0.1:1" in (outcome.error or "")
