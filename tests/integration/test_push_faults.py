"""Endpoints that die, hang, break off or refuse: where the next attempts go, and how soon."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

import late
from late.dispatcher.push.endpoints import Endpoint
from late.model.task import Outcome
from late.v1 import handler_pb2, handler_pb2_grpc
from tests.integration.push_kit import Pool, Relay, pool_of
from tests.unit.dispatcher_kit import attempt

QUICK = {"probe_s": 0.2, "connect_s": 1.0}


class Service(handler_pb2_grpc.HandlerServicer):
    """One endpoint: counts, waits while `held`, and says how it is."""

    def __init__(self) -> None:
        self.executed: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.healthy = asyncio.Event()
        self.healthy.set()
        """Not set: health checks get no answer."""
        self.status = 1
        self.port = 0
        self.running = 0

    async def Execute(self, request: Any, context: Any) -> Any:
        self.running += 1
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        self.executed.append(request.task.task_id)
        return handler_pb2.ExecuteResponse()

    async def check(self, _: StringValue, context: Any) -> Int32Value:
        await self.healthy.wait()
        return Int32Value(value=self.status)

    @asynccontextmanager
    async def served(self, port: int = 0) -> AsyncIterator[grpc.aio.Server]:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handler_pb2_grpc.add_HandlerServicer_to_server(self, server)
        method = grpc.unary_unary_rpc_method_handler(
            self.check,
            request_deserializer=StringValue.FromString,
            response_serializer=Int32Value.SerializeToString,
        )
        health = grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": method})
        server.add_generic_rpc_handlers((health,))
        self.port = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        try:
            yield server
        finally:
            await server.stop(0)


def target(*ports: int, **settings: Any) -> late.GrpcTarget:
    return late.GrpcTarget(
        "billing", tuple(f"127.0.0.1:{port}" for port in ports), **(QUICK | settings)
    )


async def until(condition: Callable[[], Any], limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def services(count: int, **settings: Any) -> AsyncIterator[tuple[list[Service], Pool]]:
    """So many endpoints, and a pool that has found them all up."""
    made = [Service() for _ in range(count)]
    async with AsyncExitStack() as stack:
        for each in made:
            await stack.enter_async_context(each.served())
        where = target(*(each.port for each in made), **settings)
        pool = await stack.enter_async_context(pool_of(where))
        await all_up(pool, count)
        yield made, pool


def start(pool: Pool, count: int) -> asyncio.Task[list[Outcome]]:
    """So many attempts, running."""
    return asyncio.create_task(pool.run(*(attempt() for _ in range(count))))


def endpoints(pool: Pool) -> Any:
    """The endpoints that a pool knows."""
    return pool.pool._caller.endpoints  # type: ignore[attr-defined]


async def all_up(pool: Pool, count: int) -> None:
    await until(lambda: sum(each.up for each in endpoints(pool).all) == count)


async def test_attempts_are_spread_over_the_endpoints() -> None:
    async with services(3, concurrency=6) as ([a, b, c], pool):
        for _ in range(30):  # One at a time: in turns, and not always the first.
            await pool.one(attempt())
        assert [len(each.executed) for each in (a, b, c)] == [10, 10, 10]
        # One is slow: what is at work there counts.
        a.gate.clear()
        outcomes = start(pool, 60)
        await until(lambda: len(b.executed) + len(c.executed) >= 20 + 57)
        assert a.running <= 3
        a.gate.set()
        assert {outcome.kind for outcome in await outcomes} == {"done"}


async def test_an_endpoint_that_dies_gets_nothing_more_and_comes_back() -> None:
    a, b = Service(), Service()
    async with b.served(), a.served() as server, pool_of(target(a.port, b.port)) as pool:
        await all_up(pool, 2)
        # Given attempts that run on both
        a.gate.clear()
        b.gate.clear()
        running = start(pool, 8)
        await until(lambda: a.running == b.running == 4)
        # When one endpoint dies
        await server.stop(0)
        b.gate.set()
        # Then its attempts have failed, to be repeated, and nobody else's
        kinds = Counter((o.kind, o.retryable, o.reason) for o in await running)
        assert kinds == {("done", True, None): 4, ("failed", True, "unavailable"): 4}
        # And everything that follows goes to the other one
        assert {o.kind for o in await pool.run(*(attempt() for _ in range(50)))} == {"done"}
        # And when it comes back, it is used again
        a.gate.set()
        async with a.served(a.port):
            await all_up(pool, 2)
            assert {o.kind for o in await pool.run(*(attempt() for _ in range(50)))} == {"done"}
        assert a.executed


async def test_an_answer_of_before_a_failed_call_does_not_bring_its_endpoint_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bool] = []

    async def probe(self: Endpoint) -> tuple[bool, str]:
        seen.append(self.up)
        if len(seen) == 1:
            self.doubt()  # a call fails while the probe is on its way
        return True, ""

    monkeypatch.setattr(Endpoint, "_probe", probe)
    async with services(1) as ([_], pool):
        await until(lambda: len(seen) >= 2)
        assert seen[:2] == [False, False], "it is probed again before it gets calls"
        assert pool.pool is not None


async def test_all_endpoints_down_and_back_without_a_restart() -> None:
    a = Service()
    async with a.served() as server, pool_of(target(a.port)) as pool:
        assert (await pool.one(attempt())).kind == "done"
        await server.stop(0)
        down = await pool.one(attempt())
        assert (down.kind, down.retryable, down.reason) == ("failed", True, "unavailable")
        # An attempt that begins shortly before it returns waits for it.
        waiting = start(pool, 1)
        async with a.served(a.port):
            [outcome] = await waiting
            if outcome.kind != "done":  # It took the new server longer than the wait.
                await all_up(pool, 1)
                outcome = await pool.one(attempt())
            assert outcome.kind == "done"


async def test_not_serving_gets_no_new_attempts_and_keeps_those_it_has() -> None:
    async with services(2) as ([a, b], pool):
        a.gate.clear()
        running = start(pool, 2)
        await until(lambda: a.running == 1)
        a.status = 2
        await all_up(pool, 1)
        before = len(b.executed)
        assert {o.kind for o in await pool.run(*(attempt() for _ in range(20)))} == {"done"}
        assert (len(b.executed) - before, a.running) == (20, 1)
        a.gate.set()
        assert {o.kind for o in await running} == {"done"}


async def test_a_service_that_is_busy_to_the_neck_keeps_what_it_does() -> None:
    """Its health checks wait in the same queue as its work; a connection that is ended for that
    would end the work with it, for ever and again."""
    async with services(1) as ([a], pool):
        a.gate.clear()
        running = start(pool, 1)
        await until(lambda: a.running == 1)
        a.healthy.clear()
        await until(lambda: "busy" in endpoints(pool).why())
        await asyncio.sleep(1.0)  # Several more rounds of probes.
        assert a.running == 1
        a.healthy.set()
        a.gate.set()
        assert [o.kind for o in await running] == ["done"]
        await all_up(pool, 1)


async def test_a_half_open_connection_is_left_for_a_new_one() -> None:
    """The endpoint is well, only this connection leads nowhere."""
    a = Service()
    async with a.served(), Relay(a.port) as relay, pool_of(target(relay.port)) as pool:
        await all_up(pool, 1)
        a.gate.clear()
        running = start(pool, 1)
        await until(lambda: a.running == 1)
        relay.fall_silent(new_too=False)
        a.gate.set()
        [outcome] = await asyncio.wait_for(running, 120)
        assert (outcome.kind, outcome.retryable, outcome.reason) == ("failed", True, "unavailable")
        assert (await pool.one(attempt())).kind == "done"


async def test_an_endpoint_that_falls_silent_loses_its_attempts_and_returns() -> None:
    """As a host that lost power: nothing is refused, nothing is answered."""
    a, b = Service(), Service()
    async with AsyncExitStack() as stack:
        for each in (a, b):
            await stack.enter_async_context(each.served())
        relay = await stack.enter_async_context(Relay(a.port))
        async with pool_of(target(relay.port, b.port)) as pool:
            await all_up(pool, 2)
            a.gate.clear()
            running = start(pool, 2)
            await until(lambda: a.running == 1)
            relay.fall_silent()
            kinds = Counter(o.kind for o in await asyncio.wait_for(running, 120))
            assert kinds == {"done": 1, "failed": 1}
            assert {o.kind for o in await pool.run(*(attempt() for _ in range(20)))} == {"done"}
            a.gate.set()
            relay.speak()
            await all_up(pool, 2)


async def test_a_connection_that_is_reset_fails_its_attempts_and_no_others() -> None:
    a = Service()
    async with a.served(), Relay(a.port) as relay, pool_of(target(relay.port)) as pool:
        await all_up(pool, 1)
        a.gate.clear()
        running = start(pool, 1)
        await until(lambda: a.running == 1)
        relay.cut()
        [outcome] = await asyncio.wait_for(running, 120)
        assert (outcome.kind, outcome.reason) == ("failed", "unavailable")
        a.gate.set()
        assert (await pool.one(attempt())).kind == "done"


STOPPED = """
import asyncio, late
app = late.App("sqlite:///x.db")
@app.task
async def work(hold: bool) -> None:
    if hold:
        await asyncio.Event().wait()
async def main():
    async with late.serve_handlers(app, "127.0.0.1:0") as server:
        print(server.port, flush=True)
        await server.wait()
asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs job control")
async def test_a_stopped_process_is_left_and_used_again_when_it_goes_on() -> None:
    command = [sys.executable, "-c", STOPPED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        try:
            assert process.stdout is not None
            port = int(await asyncio.to_thread(process.stdout.readline))
            async with pool_of(target(port)) as pool:
                assert (await pool.one(attempt("work", hold=False))).kind == "done"
                running = asyncio.create_task(pool.run(attempt("work", hold=True)))
                await until(lambda: endpoints(pool).all[0].calls == 1)
                os.kill(process.pid, signal.SIGSTOP)
                [outcome] = await asyncio.wait_for(running, 120)
                assert (outcome.kind, outcome.reason) == ("failed", "unavailable")
                os.kill(process.pid, signal.SIGCONT)
                await all_up(pool, 1)
                assert (await pool.one(attempt("work", hold=False))).kind == "done"
        finally:
            process.kill()


async def test_a_name_of_several_addresses_is_several_endpoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And addresses that come and go are followed."""
    from late.dispatcher.push import endpoints as module

    monkeypatch.setattr(module, "RESOLVE_EVERY_S", 0.1)
    a, b = Service(), Service()
    async with a.served(), b.served():
        found = [a.port, b.port]
        loop = asyncio.get_running_loop()

        async def look_up(host: str, port: int, **_: Any) -> list[Any]:
            assert (host, port) == ("billing.internal", 7000)
            if not found:
                raise OSError("no such name")
            return [(2, 1, 6, "", ("127.0.0.1", each)) for each in found]

        monkeypatch.setattr(loop, "getaddrinfo", look_up)
        name = late.GrpcTarget("billing", ("billing.internal:7000",), tls=False, **QUICK)
        async with pool_of(name) as pool:
            await all_up(pool, 2)
            await pool.run(*(attempt() for _ in range(20)))
            assert a.executed
            assert b.executed
            found.remove(a.port)
            await until(lambda: len(endpoints(pool).all) == 1)
            found.clear()  # A name that cannot be looked up keeps its last meaning.
            await asyncio.sleep(0.3)
            assert (await pool.one(attempt())).kind == "done"
