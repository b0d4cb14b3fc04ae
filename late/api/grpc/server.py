"""The gRPC API: `late.v1.Queue`, which translates for `Service`."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from math import ceil
from typing import Any, TypeVar

import grpc

from late.api import errors, limits, schemas
from late.api.access.certificates import names_of_peer
from late.api.access.sign_ins import address_of
from late.api.errors import BadRequest
from late.api.grpc import convert
from late.api.grpc.calls import receive, receive_one, service
from late.api.grpc.port import TlsFiles, bounds, open_port
from late.api.grpc.strangers import Strangers
from late.api.grpc.stream import Stream
from late.api.service import Service
from late.model.access.rights import Caller
from late.observability import traces
from late.v1 import queue_pb2
from late.worker.file_limit import file_limit
from late.worker.refusals import Refusals

logger = logging.getLogger("late.api")
T = TypeVar("T")

KEEPALIVE_MS = 5_000
"""If a consumer's machine is gone, its tasks go to others within twice this time."""
_OPTIONS = [
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients may ping as often as the server does; more is cut off.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS - 1_000),
    ("grpc.http2.max_ping_strikes", 3),
]


class RpcServer:
    """A server of `late.v1.Queue`, and of the private protocol between processes.

    Args:
        service: None serves other processes only.
        peers: makes the handler of `late.api.fleet.peers`; it is given the function to call with
            the other end of an admitted call.
        port: 0 takes a free one; `self.port` is the real one from `start` on.
    """

    def __init__(
        self,
        service: Service | None,
        host: str,
        port: int,
        *,
        tls: TlsFiles | None = None,
        peers: Callable[[Callable[[str], None]], grpc.GenericRpcHandler] | None = None,
    ) -> None:
        self.host, self.port = host, port
        self._tls = tls
        self._queue = None if service is None else _Queue(service)
        self._peers = peers
        self._server: grpc.aio.Server | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the address is taken, or is not one of this machine.
        """
        most = limits.connections_of(file_limit())
        strangers = Strangers(most, Refusals("grpc").add)
        options = [*bounds(message=limits.MESSAGE_BYTES, connections=most), *_OPTIONS]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.RPCS)
        if self._queue is not None:
            self._queue.admitted = strangers.admitted
            server.add_generic_rpc_handlers((self._queue.handler(),))
        if self._peers is not None:
            server.add_generic_rpc_handlers((self._peers(strangers.admitted),))
        self.port = open_port(server, self.host, self.port, self._tls)
        await server.start()
        self._server = server
        self._watch = asyncio.create_task(strangers.run(self.port), name="late-grpc-strangers")

    def drain(self) -> None:
        """Send no more tasks; answers are still taken."""
        if self._queue is not None:
            self._queue.draining.set()

    async def stop(self) -> None:
        """Close every stream; those with a running call are closed after one second."""
        self.drain()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        if self._server is not None:
            await self._server.stop(1.0)


class _Queue:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._streams = itertools.count(1)
        self.draining = asyncio.Event()
        self.admitted: Callable[[str], None] = lambda peer: None

    def handler(self) -> grpc.GenericRpcHandler:
        """Make the handler of `late.v1.Queue`."""
        unary = {
            "Enqueue": (self._enqueue, queue_pb2.EnqueueResponse.SerializeToString),
            "Stats": (self._stats, queue_pb2.StatsResponse.SerializeToString),
        }
        consume = (self._consume, queue_pb2.ConsumeResponse.SerializeToString)
        return service("late.v1.Queue", unary, {"Consume": consume})

    async def _enqueue(self, _: Any, context: Any) -> queue_pb2.EnqueueResponse:
        async def work(caller: Caller) -> queue_pb2.EnqueueResponse:
            request = await receive_one(context, queue_pb2.EnqueueRequest.FromString)
            if len(request.tasks) > limits.ANSWERS_MAX:
                raise errors.TooLarge(f"at most {limits.ANSWERS_MAX} tasks in one request")
            puts = convert.puts_of(request.tasks)
            sent = dict(context.invocation_metadata() or ())
            for put in puts:
                parent, state = sent.get(traces.PARENT), sent.get(traces.STATE)
                put.headers = traces.passed(put.headers, parent, state)
            accepted = await self._service.put(caller, puts)
            ids, token = [one.task_id for one in accepted], schemas.token_of(accepted)
            return queue_pb2.EnqueueResponse(task_ids=ids, token=token)

        return await self._call(context, work)

    async def _stats(self, _: Any, context: Any) -> queue_pb2.StatsResponse:
        async def work(caller: Caller) -> queue_pb2.StatsResponse:
            request = await receive_one(context, queue_pb2.StatsRequest.FromString)
            if len(request.queues) > limits.QUEUES_MAX:
                raise BadRequest(f"at most {limits.QUEUES_MAX} queues")
            found = await self._service.stats(caller, request.queues, request.group or None)
            queues = [convert.stats_of(each) for each in found]
            return queue_pb2.StatsResponse(queues=queues)

        return await self._call(context, work)

    async def _consume(self, _: Any, context: Any) -> None:
        async def work(caller: Caller) -> None:
            consume = partial(self._stream, context, caller)
            await self._service.access.while_admitted(caller, consume)

        await self._call(context, work, limit_s=None)

    async def _stream(self, context: Any, caller: Caller) -> None:
        first = await receive(context, queue_pb2.ConsumeRequest.FromString, limits.HEADER_S)
        if first is None or not first.HasField("subscribe"):
            raise BadRequest("the first message is subscribe")
        name = f"{first.subscribe.consumer[:100] or 'stream'}#{next(self._streams)}"
        stream = Stream(self._service, caller, name, first.subscribe, context)
        await stream.run(self.draining)

    async def _call(
        self,
        context: Any,
        work: Callable[[Caller], Awaitable[T]],
        limit_s: float | None = limits.RPC_S_MAX,
    ) -> T:
        """Admit the caller and run `work` for it; every error becomes its gRPC status."""
        peer = context.peer()
        try:
            given = dict(context.invocation_metadata() or ()).get("authorization")
            shown = given if isinstance(given, str) else None
            await self._service.access.prepare(shown)
            caller = self._service.access.admit(
                shown,
                names_of_peer(context.auth_context() or {}),
                interface="grpc",
                address=address_of(peer),
            )
            self.admitted(peer)
            async with asyncio.timeout(limit_s):
                return await work(caller)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "it took too long")
        except Exception as error:
            await _abort(context, error)
        raise AssertionError("abort raises")


async def _abort(context: Any, error: Exception) -> None:
    code = errors.code_of(error)
    if code is errors.UNEXPECTED:
        logger.error("a call failed: %s", type(error).__name__, exc_info=error)
    after_s = errors.retry_after_s(error, code)
    trailing = () if after_s is None else (("retry-after", str(max(1, ceil(after_s)))),)
    status = getattr(grpc.StatusCode, code.grpc)
    await context.abort(status, errors.message_of(error, code), trailing)
