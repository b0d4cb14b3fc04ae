"""The gRPC API: `late.v1.Queue`, which translates for `Service`, and `late.v1.Operator`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from late.api import errors, limits, schemas
from late.api.errors import BadRequest
from late.api.grpc import convert
from late.api.grpc.admission import Admission
from late.api.grpc.calls import receive, receive_one, service
from late.api.grpc.operators import OperatorCalls
from late.api.grpc.port import TlsFiles, bounds, open_port
from late.api.grpc.strangers import Strangers
from late.api.grpc.stream import Stream
from late.api.operator.operators import Operators
from late.api.service import Service
from late.model.access.rights import Caller
from late.observability import traces
from late.v1 import queue_pb2
from late.worker.file_limit import file_limit
from late.worker.refusals import Refusals

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
    """A server of `late.v1.Queue`, of `late.v1.Operator`, and of the protocol between processes.

    Args:
        service: None serves other processes only.
        operators: the operations that are served beside the queue; none when None.
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
        operators: Operators | None = None,
        tls: TlsFiles | None = None,
        peers: Callable[[Callable[[str], None]], grpc.GenericRpcHandler] | None = None,
    ) -> None:
        self.host, self.port = host, port
        self._tls = tls
        self._service = service
        self._operators = operators
        self._draining = asyncio.Event()
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
        if self._service is not None:
            admission = Admission(self._service.access, strangers.admitted)
            handlers = [_Queue(self._service, admission, self._draining).handler()]
            if self._operators is not None:
                handlers.append(OperatorCalls(self._operators, admission).handler())
            server.add_generic_rpc_handlers(handlers)
        if self._peers is not None:
            server.add_generic_rpc_handlers((self._peers(strangers.admitted),))
        self.port = open_port(server, self.host, self.port, self._tls)
        await server.start()
        self._server = server
        self._watch = asyncio.create_task(strangers.run(self.port), name="late-grpc-strangers")

    def drain(self) -> None:
        """Send no more tasks; answers are still taken."""
        self._draining.set()

    async def stop(self) -> None:
        """Close every stream; those with a running call are closed after one second."""
        self.drain()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        if self._server is not None:
            await self._server.stop(1.0)


class _Queue:
    def __init__(self, service: Service, admission: Admission, draining: asyncio.Event) -> None:
        self._service = service
        self._admission = admission
        self._draining = draining
        self._streams = itertools.count(1)

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

        return await self._admission.call(context, work)

    async def _stats(self, _: Any, context: Any) -> queue_pb2.StatsResponse:
        async def work(caller: Caller) -> queue_pb2.StatsResponse:
            request = await receive_one(context, queue_pb2.StatsRequest.FromString)
            if len(request.queues) > limits.QUEUES_MAX:
                raise BadRequest(f"at most {limits.QUEUES_MAX} queues")
            found = await self._service.stats(caller, request.queues, request.group or None)
            queues = [convert.stats_of(each) for each in found]
            return queue_pb2.StatsResponse(queues=queues)

        return await self._admission.call(context, work)

    async def _consume(self, _: Any, context: Any) -> None:
        async def work(caller: Caller) -> None:
            consume = partial(self._stream, context, caller)
            await self._service.access.while_admitted(caller, consume)

        await self._admission.call(context, work, limit_s=None)

    async def _stream(self, context: Any, caller: Caller) -> None:
        first = await receive(context, queue_pb2.ConsumeRequest.FromString, limits.HEADER_S)
        if first is None or not first.HasField("subscribe"):
            raise BadRequest("the first message is subscribe")
        name = f"{first.subscribe.consumer[:100] or 'stream'}#{next(self._streams)}"
        stream = Stream(self._service, caller, name, first.subscribe, context)
        await stream.run(self._draining)
