"""Admit the callers of public calls, and end each call with the status of its error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import ceil
from typing import Any, TypeVar

import grpc

from late.api import errors, limits
from late.api.access.auth import Access
from late.api.access.certificates import names_of_peer
from late.api.access.sign_ins import address_of
from late.model.access.rights import Caller

logger = logging.getLogger("late.api")
T = TypeVar("T")


class Admission:
    """The way into every public service of one port.

    Args:
        admitted: told of the other end of each call that was admitted.
    """

    def __init__(self, access: Access, admitted: Callable[[str], None]) -> None:
        self._access = access
        self._admitted = admitted

    async def call(
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
            await self._access.prepare(shown)
            caller = self._access.admit(
                shown,
                names_of_peer(context.auth_context() or {}),
                interface="grpc",
                address=address_of(peer),
            )
            self._admitted(peer)
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
