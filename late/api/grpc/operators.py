"""`late.v1.Operator`: each operation of the table as a method, as over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from late.api import limits
from late.api.errors import BadRequest, TooLarge
from late.api.grpc.admission import Admission
from late.api.grpc.calls import receive_one, service
from late.api.grpc.operator_values import Encode, encoder, request_of, rpc_of
from late.api.operator.operation import Operation, Poll
from late.api.operator.operators import Operators
from late.api.operator.table import OPERATIONS
from late.concurrency import in_thread
from late.model.access.rights import Caller
from late.v1 import operator_pb2

CALL_S = limits.WAIT_S_MAX + limits.RPC_S_MAX
DEADLINE_ROOM_S = 0.5
"""A wait ends by so much before its caller's deadline, so that the answer arrives in time."""


class OperatorCalls:
    """The operations as methods of gRPC."""

    def __init__(self, operators: Operators, admission: Admission) -> None:
        self._operators = operators
        self._admission = admission

    def handler(self) -> grpc.GenericRpcHandler:
        """Make the handler of `late.v1.Operator`."""
        methods = {rpc_of(each): (self._method(each), bytes) for each in OPERATIONS}
        return service("late.v1.Operator", methods)

    def _method(self, operation: Operation) -> Callable[[Any, Any], Any]:
        encode = encoder(operation.gives, getattr(operator_pb2, operation.gives.__name__))
        decode = getattr(operator_pb2, f"{rpc_of(operation)}Request").FromString

        async def method(_: Any, context: Any) -> bytes:
            work = partial(self._handle, operation, decode, encode, context)
            return await self._admission.call(context, work, CALL_S)

        return method

    async def _handle(
        self,
        operation: Operation,
        decode: Callable[[bytes], Any],
        encode: Encode,
        context: Any,
        caller: Caller,
    ) -> bytes:
        message = await receive_one(context, bytes)
        if len(message) > operation.most:
            raise TooLarge(f"the message is above {operation.most} bytes")
        self._operators.access.check(caller)
        path, value = request_of(operation, _decoded(message, decode))
        self._operators.check(operation, caller, path)
        found = await self._operators.run(operation, caller, path, value)
        if isinstance(found, Poll):
            found = await self._operators.wait(caller, _within(found, context.time_remaining()))
        return await in_thread(encode, found)


def _decoded(message: bytes, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(message)
    except Exception:  # each library has its own
        raise BadRequest("the message cannot be decoded") from None


def _within(poll: Poll[Any], left_s: float | None) -> Poll[Any]:
    """Return a poll that ends before its caller's deadline."""
    if left_s is None:
        return poll
    return poll._replace(wait_s=max(0.0, min(poll.wait_s, left_s - DEADLINE_ROOM_S)))
