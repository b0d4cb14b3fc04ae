"""The other end of gRPC push: a service that serves `late.v1.Handler` with the tasks of its app.

    app = late.App("postgresql://.../billing")     # the service's own database, for ctx.begin()

    @app.task
    async def charge(trip_id: int, amount: Decimal) -> None: ...

    late.serve_handlers(app, "127.0.0.1:7000").run()

The handlers are those that a worker would run in its own process: the same arguments, contexts,
outcomes and retry rules. A service in another language implements `proto/late/v1/handler.proto`.
"""

from __future__ import annotations

import asyncio
import hmac
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import msgspec
from google.protobuf.wrappers_pb2 import Int32Value

from late.api import limits
from late.api.grpc.calls import receive_or_abort, service
from late.api.grpc.port import bounds, open_port
from late.api.handler_messages import attempt_of, response_of
from late.dispatcher.handler import Bound
from late.dispatcher.local.threads import Threads
from late.errors import ConfigError, DecodeError
from late.handler.classify import Verdict, raised, returned
from late.handler.context import AsyncContext, Context
from late.handler.outcomes import AlreadyDone, Signal
from late.model.targets import address, is_loopback, resolve
from late.payload import values as payloads
from late.v1 import handler_pb2
from late.worker.file_limit import file_limit

if TYPE_CHECKING:
    from late.app.app import App
    from late.app.task import Task

REQUEST_BYTES_MAX = 4 * 1024 * 1024
SERVING, NOT_SERVING = 1, 2
RETRY_AFTER_S = 1


@dataclass(frozen=True)
class ServerTls:
    """Files of a server's certificate and key.

    With `ca`, only clients with a certificate of that authority are admitted (mTLS).
    """

    cert: str
    key: str
    ca: str | None = None


class HandlerServer:
    """A server of one app's tasks. Made by `serve_handlers`; also `async with`."""

    def __init__(
        self,
        app: App,
        at: str,
        *,
        tls: ServerTls | None,
        token: str | None,
        concurrency: int,
        insecure: bool,
    ) -> None:
        self.host, self.port = address(at)
        secured = tls is not None and (token is not None or tls.ca is not None)
        if not is_loopback(self.host) and not secured and not insecure:
            raise ConfigError(
                f"{self.host} can be reached from elsewhere: give tls= and token= (or tls with ca)"
            )
        self._tls = tls
        self._concurrency = concurrency
        token = None if token is None else resolve(token, "serve_handlers: token")
        self._servicer = _Servicer(app, token, concurrency)
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Begin to listen; `port` is the real one then.

        Raises:
            ConfigError: the address is taken, or a file cannot be read.
        """
        streams = max(limits.STREAMS, 2 * self._concurrency)
        server = grpc.aio.server(
            options=bounds(
                message=REQUEST_BYTES_MAX,
                connections=limits.connections_of(file_limit()),
                streams=streams,
            ),
            maximum_concurrent_rpcs=max(limits.RPCS, streams),
        )
        server.add_generic_rpc_handlers((self._servicer.handler(), self._servicer.health()))
        self.port = open_port(server, self.host, self.port, self._tls)
        await server.start()
        self._server = server

    async def stop(self, grace_s: float = 30.0) -> None:
        """Say NOT_SERVING, take no more tasks, and let running ones end within the grace."""
        self._servicer.serving = False
        if self._server is not None:
            await self._server.stop(grace_s)

    async def wait(self) -> None:
        """Wait until the server is stopped."""
        assert self._server is not None
        await self._server.wait_for_termination()

    def run(self, grace_s: float = 30.0) -> None:
        """Serve until SIGTERM or SIGINT, then stop."""
        asyncio.run(self._run(grace_s))

    async def _run(self, grace_s: float) -> None:
        asked = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, asked.set)
        async with self:
            await asked.wait()
            await self.stop(grace_s)

    async def __aenter__(self) -> HandlerServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(0.0)


def serve_handlers(
    app: App,
    at: str = "127.0.0.1:7000",
    *,
    tls: ServerTls | None = None,
    token: str | None = None,
    concurrency: int = 64,
    insecure: bool = False,
) -> HandlerServer:
    """Make a server of `app`'s tasks at `host:port` (port 0 for any free one).

    Call `.run()`, or use it with `async with`.

    Args:
        token: callers must send it as `authorization: Bearer ...`; also `env:NAME`, `file:PATH`.
        concurrency: attempts at the same time; more are refused with RESOURCE_EXHAUSTED.
        insecure: allow addresses that others can reach without TLS and a token.

    Raises:
        ConfigError: the address is wrong, or others can reach it without TLS and a token.
    """
    return HandlerServer(app, at, tls=tls, token=token, concurrency=concurrency, insecure=insecure)


class _Servicer:
    """Executes the tasks that arrive. Everything happens on the server's loop."""

    def __init__(self, app: App, token: str | None, concurrency: int) -> None:
        self._app = app
        self._wanted = None if token is None else f"Bearer {token}".encode()
        self._room = concurrency
        self._threads = Threads()
        self._bound: dict[str, Bound] = {}
        self.serving = True

    def handler(self) -> grpc.GenericRpcHandler:
        """Make the handler of `late.v1.Handler`."""
        encode = handler_pb2.ExecuteResponse.SerializeToString
        return service("late.v1.Handler", {"Execute": (self._execute, encode)})

    async def _execute(self, _: Any, context: Any) -> handler_pb2.ExecuteResponse:
        await self._authenticate(context)
        request = await receive_or_abort(context, handler_pb2.ExecuteRequest.FromString)
        task = request.task
        handler: Task[Any, Any] | None = self._app.tasks.get(task.name)
        if handler is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such task here")
            raise AssertionError
        if self._room <= 0 or not self.serving:
            context.set_trailing_metadata((("retry-after", str(RETRY_AFTER_S)),))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")
        if task.name not in self._bound:
            self._bound[task.name] = Bound(handler)
        left_s = context.time_remaining()
        verdict = await self._run(handler, self._bound[task.name], task, left_s)
        response: handler_pb2.ExecuteResponse = response_of(verdict)
        return response

    async def _run(self, handler: Task[Any, Any], bound: Bound, task: Any, left_s: Any) -> Verdict:
        timeout_s = bound.timeout_s if left_s is None else left_s
        about: AsyncContext | Context | None = None
        leave = self._enter()
        try:
            arguments = handler.arguments(task.payload, task.codec or "json")
            attempt = attempt_of(task)
            kind = AsyncContext if bound.is_async else Context
            call: Callable[..., Any] = partial(bound.fn, **arguments)
            if bound.wants_context:
                about = kind(
                    attempt,
                    started_at_us=time.time_ns() // 1_000,
                    timeout_s=timeout_s,
                    attempts_max=task.max_attempts or None,
                    url=self._app.url,
                    beat=lambda attempt: None,
                )
                call = partial(bound.fn, about, **arguments)
            if bound.is_async:
                return _judged(await call(), task.keeps_result, about)
            # A thread that outlives its call still counts against `concurrency`.
            inside, leave = leave, _nothing
            value = await self._threads.run(partial(_and_then, call, inside))
            return _judged(value, task.keeps_result, about)
        except DecodeError as error:
            if error.elsewhere:
                return Verdict("not_capable", str(error), reason=error.reason)
            return Verdict("failed", str(error), retryable=False)
        except AlreadyDone as signal:  # An earlier run's answer was lost, with its counts.
            return _judged(signal, task.keeps_result, about)
        except asyncio.CancelledError:
            raise  # The caller is gone, or its deadline is over: nobody would get an answer.
        except BaseException as error:
            return raised(error, bound.rule)
        finally:
            leave()

    def _enter(self) -> Callable[[], None]:
        """Take room for one attempt; return a function that gives it back, from any thread."""
        self._room -= 1
        loop = asyncio.get_running_loop()

        def back() -> None:
            self._room += 1

        def leave() -> None:
            with suppress(RuntimeError):  # The loop is closed: nobody needs the room any more.
                loop.call_soon_threadsafe(back)

        return leave

    async def _authenticate(self, context: Any) -> None:
        if self._wanted is None:
            return
        given = dict(context.invocation_metadata()).get("authorization", "")
        if not hmac.compare_digest(self._wanted, str(given).encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong or no token")

    def health(self) -> grpc.GenericRpcHandler:
        """Make the service `grpc.health.v1`, with the same answer for every service name.

        Its answer has the same bytes as this wrapper: one field of number 1, an enum. The request
        is not read, since everybody may ask.
        """

        async def check(_: Any, context: Any) -> Int32Value:
            return Int32Value(value=SERVING if self.serving else NOT_SERVING)

        return service("grpc.health.v1.Health", {"Check": (check, Int32Value.SerializeToString)})


def _and_then(call: Callable[[], Any], leave: Callable[[], None]) -> Any:
    try:
        return call()
    finally:
        leave()


def _nothing() -> None:
    pass


def _judged(value: object, keep: bool, context: AsyncContext | Context | None) -> Verdict:
    """Make the verdict of a returned value, with what the handler has counted.

    Raises:
        DecodeError: the result is to be kept, but is not JSON or is too large.
    """
    verdict = returned(value if context is None else context.counted(value))
    if keep and verdict.kind == "done" and not isinstance(value, Signal):
        return msgspec.structs.replace(verdict, result=payloads.result(value))
    return verdict
