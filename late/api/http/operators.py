"""The routes for operators: each operation of the table, for callers that its rule admits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from late.api import schemas
from late.api.access.auth import Access
from late.api.errors import BadRequest
from late.api.http.answers import json_of
from late.api.http.requests import body_of, gone
from late.api.limits import OPERATOR_CALLS
from late.api.operator.operation import Ask, Nothing, Operation, Poll
from late.api.operator.table import OPERATIONS
from late.concurrency import in_thread, run_until
from late.control import Control, audit
from late.model import validation as validate
from late.model.access.rights import ANYBODY, Caller
from late.model.access.rules import Denied
from late.model.ids import shard_of
from late.model.targets import Target

READ_ONLY = "this API shows and does not change: late serve --api-changes"
PAUSE_S, PAUSE_MAX_S = 0.1, 1.0
"""Seconds between two looks of a request that waits."""


class OperatorRoutes:
    """The operations as handlers of HTTP.

    Args:
        group: the group of a request that names none.
        targets: the targets that this process is configured with.
        changes: callers with the role may change things; otherwise nobody may.
    """

    def __init__(
        self,
        control: Control,
        access: Access,
        *,
        group: str,
        targets: Mapping[str, Target],
        changes: bool,
    ) -> None:
        self._control = control
        self._access = access
        self._group = group
        self._targets = targets
        self._changes = changes
        # Threads are for all that this process does: a crowd of operators must leave some over.
        self._slots = asyncio.Semaphore(OPERATOR_CALLS)

    def handlers(self) -> dict[tuple[str, str], Callable[[Request, Caller], Awaitable[Response]]]:
        """The handlers by method and path."""
        return {(each.method, each.path): partial(self._handle, each) for each in OPERATIONS}

    async def _handle(self, operation: Operation, request: Request, caller: Caller) -> Response:
        path = request.path_params
        operation.rule.check(caller, {"name": path.get("queue", "")})
        if operation.changes and not self._changes:
            raise Denied(READ_ONLY)
        _check_path(path)
        value = await self._value(operation, request, caller)
        ask = Ask(self._control, caller, path, value, self._group, self._targets)
        # The interface has no page, so its audit does not name one.
        with audit.acting("anybody@api" if caller is ANYBODY else caller.actor):
            found = await self._call(operation.run, ask)
        if isinstance(found, Poll):
            # A client that goes, or whose token ends, does not wait any longer.
            waiting = self._access.while_admitted(caller, partial(self._wait, found))
            found = await run_until(gone(request), waiting)
            if found is None:
                raise ClientDisconnect
        return json_of(found)

    async def _value(self, operation: Operation, request: Request, caller: Caller) -> Any:
        """Read the query of a GET, and the body of all others but DELETE, which has none."""
        if operation.method == "GET":
            return _query(request, operation.takes)
        if operation.method == "DELETE":
            return Nothing()
        body = await body_of(request, operation.most)
        self._access.check(caller)
        return schemas.parse(body, operation.takes)

    async def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        async with self._slots:
            return await in_thread(call, *args)

    async def _wait(self, poll: Poll[Any]) -> Any:
        """Look again and again until it is over, or the time of the request is."""
        ends, pause_s = asyncio.get_running_loop().time() + poll.wait_s, PAUSE_S
        while True:
            found = await self._call(poll.look)
            if poll.over(found) or asyncio.get_running_loop().time() + pause_s > ends:
                return found
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 1.5 * pause_s)


def _check_path(path: Mapping[str, str]) -> None:
    """Raise `InvalidName` for what nothing can have as its name or id, before any SQL."""
    for kind, text in path.items():
        shard_of(text) if kind == "task_id" else validate.name(text, kind)


def _query(request: Request, kind: type[msgspec.Struct]) -> Any:
    """Read the query of a request.

    Raises:
        BadRequest: a parameter is unknown, given twice, or not of its type.
    """
    pairs = request.query_params.multi_items()
    given = dict(pairs)
    if len(given) != len(pairs):
        raise BadRequest("a parameter is given twice")
    try:
        found = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)[:200]) from None
    # The conversion takes the text "null" for nothing, and a filter would be left out unseen.
    if any(getattr(found, name) is None for name in given):
        raise BadRequest("leave a parameter out instead of null")
    # It takes numbers for times, too.
    for name, text in given.items():
        if isinstance(getattr(found, name), datetime) and "T" not in text.upper():
            raise BadRequest(f"{name}: a time such as 2026-05-01T12:00:00Z")
    return found
