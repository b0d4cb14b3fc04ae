"""Calls over gRPC: the caller is admitted by the metadata, before its message is read.

grpc.aio reads and decodes the message of a unary method before it runs the handler, for callers
without a token too, and without a time limit. So every method is registered as one that takes a
stream, which is the same for clients: its handler admits the caller first, and then reads with
`receive`. An answer that a handler returns goes out together with the status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import grpc

from late.api import limits
from late.api.errors import BadRequest

T = TypeVar("T")

Handler = Callable[[Any, Any], Any]


Methods = Mapping[str, tuple[Handler, Callable[[Any], bytes]]]
"""The handler of each, called as `handler(messages, context)`, and the function that encodes its
answers. The handler leaves `messages` alone and uses `receive`."""


def service(name: str, unary: Methods, streams: Methods | None = None) -> grpc.GenericRpcHandler:
    """Make a gRPC service.

    Args:
        unary: methods whose handlers return one answer.
        streams: methods whose handlers write answers.
    """
    made: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method: grpc.stream_unary_rpc_method_handler(_quiet(handler), response_serializer=encode)
        for method, (handler, encode) in unary.items()
    }
    made |= {
        method: grpc.stream_stream_rpc_method_handler(_quiet(handler), response_serializer=encode)
        for method, (handler, encode) in (streams or {}).items()
    }
    return grpc.method_handlers_generic_handler(name, made)


def _quiet(handler: Handler) -> Handler:
    """Let a call end without a word in the log if gRPC has answered it before the handler could.

    It does so for a message that is too large, or is compressed in a way that it does not know.
    """

    async def run(messages: Any, context: Any) -> Any:
        try:
            return await handler(messages, context)
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None

    return run


async def receive(context: Any, decode: Callable[[bytes], T], limit_s: float | None) -> T | None:
    """Read the next message; None if there is none and the client has closed its half.

    Raises:
        TimeoutError: it did not come whole in time.
        BadRequest: it cannot be decoded.
    """
    async with asyncio.timeout(limit_s):
        message = await context.read()
    if not isinstance(message, bytes):
        return None
    try:
        return decode(message)
    except Exception:  # each library has its own
        raise BadRequest("the message cannot be decoded") from None


async def receive_one(context: Any, decode: Callable[[bytes], T]) -> T:
    """Read the message of a unary call.

    Raises:
        TimeoutError: it did not come whole in time.
        BadRequest: there is none, or it cannot be decoded.
    """
    message = await receive(context, decode, limits.MESSAGE_S)
    if message is None:
        raise BadRequest("the call has no message")
    return message


async def receive_or_abort(context: Any, decode: Callable[[bytes], T]) -> T:
    """Read the message of a unary call; without one, the call ends with its status."""
    try:
        return await receive_one(context, decode)
    except TimeoutError:
        code, text = grpc.StatusCode.DEADLINE_EXCEEDED, "the message did not come in time"
    except BadRequest as error:
        code, text = grpc.StatusCode.INVALID_ARGUMENT, str(error)
    await context.abort(code, text)
    raise AssertionError("abort raises")
