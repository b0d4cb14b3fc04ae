"""A client of `late.v1.Operator` that speaks in plain values, as those of HTTP are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import json_format

from late.v1 import operator_pb2, operator_pb2_grpc


def request(name: str, fields: Mapping[str, Any]) -> Any:
    """A request as grpcurl makes it from JSON."""
    return json_format.ParseDict(dict(fields), getattr(operator_pb2, f"{name}Request")())


@dataclass
class Rpc:
    """Calls by the name of the method."""

    stub: Any
    token: str | None = None

    async def __call__(
        self, name: str, message: Any = None, /, *, timeout_s: float = 60, **fields: Any
    ) -> Any:
        sent = () if self.token is None else (("authorization", f"Bearer {self.token}"),)
        method = getattr(self.stub, name)
        message = request(name, fields) if message is None else message
        return await method(message, timeout=timeout_s, metadata=sent)

    async def refused(self, name: str, message: Any = None, /, **fields: Any) -> tuple[str, str]:
        """The status and the text of a call that is refused."""
        try:
            found = await self(name, message, **fields)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        raise AssertionError(f"{name} was not refused: {found}")


@asynccontextmanager
async def rpc(at: str | int, token: str | None = None) -> AsyncIterator[Rpc]:
    """A client of the server on a port of this machine, or at an address."""
    address = f"127.0.0.1:{at}" if isinstance(at, int) else at
    async with grpc.aio.insecure_channel(address) as channel:
        yield Rpc(operator_pb2_grpc.OperatorStub(channel), token)
