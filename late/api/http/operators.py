"""The routes for operators: each operation of the table, for callers that its rule admits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from late.api import schemas
from late.api.http.answers import json_of
from late.api.http.requests import body_of, gone, query_of
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
            return query_of(request, operation.takes)
        if operation.method == "DELETE":
            return Nothing()
        body = await body_of(request, operation.most)
        self._operators.access.check(caller)
        return schemas.parse(body, operation.takes)
