"""The routes for operators: each operation of the table, for callers that its rule admits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from late.api import schemas
from late.api.errors import BadRequest
from late.api.http.answers import json_of
from late.api.http.requests import body_of, gone
from late.api.operator.operation import Nothing, Operation, Poll
from late.api.operator.operators import Operators
from late.api.operator.table import OPERATIONS
from late.concurrency import run_until
from late.model.access.rights import Caller


class OperatorRoutes:
    """The operations as handlers of HTTP."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    def handlers(self) -> dict[tuple[str, str], Callable[[Request, Caller], Awaitable[Response]]]:
        """The handlers by method and path."""
        return {(each.method, each.path): partial(self._handle, each) for each in OPERATIONS}

    async def _handle(self, operation: Operation, request: Request, caller: Caller) -> Response:
        path = request.path_params
        self._operators.check(operation, caller, path)
        value = await self._value(operation, request, caller)
        found = await self._operators.run(operation, caller, path, value)
        if isinstance(found, Poll):
            # A client that goes, or whose token ends, does not wait any longer.
            found = await run_until(gone(request), self._operators.wait(caller, found))
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
        self._operators.access.check(caller)
        return schemas.parse(body, operation.takes)


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
