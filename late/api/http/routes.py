"""The HTTP API: Starlette routes that translate for `Service`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from late.api import limits, schemas
from late.api.access.auth import demand
from late.api.access.web_auth import Gate
from late.api.errors import BadRequest, Forbidden
from late.api.http import signed_puts
from late.api.http.answers import HEADERS, failed, json_of, no_route
from late.api.http.cloud_events import EVENT, named, put_of
from late.api.http.event_modes import BATCH, event_of, puts_of_batch
from late.api.http.openapi import document
from late.api.http.operators import OperatorRoutes
from late.api.http.requests import JSON, body_of, gone, kind_of
from late.api.pull.deliveries import Delivery, TakeRequest
from late.api.service import Service
from late.concurrency import run_until
from late.errors import LateError
from late.model import validation as validate
from late.model.access.rights import Caller
from late.observability import traces
from late.observability.metrics import CONTENT_TYPE

Handler = Callable[[Request, Caller], Awaitable[Response]]


def make(
    service: Service | None,
    *,
    state: Callable[[], tuple[bool, str]] = lambda: (True, ""),
    metrics: Callable[[], Awaitable[bytes]] | None = None,
    operators: OperatorRoutes | None = None,
    signed_urls: bool = False,
    more: Sequence[Route] = (),
) -> Any:
    """Make the ASGI application.

    Args:
        service: None for a process without the API. It has `/livez`, `/readyz` and `more`.
        more: further routes, which check their callers themselves.
        state: returns for `/readyz` whether this process is ready, and the reason if not.
        metrics: makes the page of `/metrics`, for callers that may `operate` every queue.
        operators: the routes for operators; none when None.
        signed_urls: whoever has a signed URL may put its task.
    """

    async def livez(request: Request) -> Response:
        return json_of({"live": True})

    async def readyz(request: Request) -> Response:
        ready, reason = state()
        return json_of({"ready": ready, "reason": reason}, 200 if ready else 503)

    api = [] if service is None else _Api(service, metrics, operators, signed_urls).routes()
    routes = [*api, Route("/livez", livez), Route("/readyz", readyz), *more]
    return Starlette(routes=routes, exception_handlers={HTTPException: no_route})


class _Literal(Route):
    """A path without a parameter. It answers every method of its path: `GET /v1/tasks/cancel` is
    405, and no look for a task of the name `cancel`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        return (Match.FULL if match is Match.PARTIAL else match), child


class _Api:
    def __init__(
        self,
        service: Service,
        metrics: Callable[[], Awaitable[bytes]] | None,
        operators: OperatorRoutes | None,
        signed_urls: bool,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._operators = operators
        self._signed_urls = signed_urls

    def routes(self) -> list[Route]:
        handlers: dict[tuple[str, str], Handler] = {
            ("GET", "/v1/queues"): self.queues,
            ("GET", "/v1/queues/{queue}"): self.queue,
            ("POST", "/v1/queues/{queue}/tasks"): self.put,
            ("POST", "/v1/queues/{queue}/receive"): self.receive,
            ("POST", "/v1/tasks"): self.put_many,
            ("POST", "/v1/ack"): self.ack,
            ("POST", "/v1/nack"): self.nack,
            ("POST", "/v1/extend"): self.extend,
            **({} if self._operators is None else self._operators.handlers()),
            **({} if self._metrics is None else {("GET", "/metrics"): self.metrics}),
        }
        paths: dict[str, dict[str, Handler]] = {}
        for (method, path), handler in handlers.items():
            paths.setdefault(path, {})[method] = handler
        # One route has all methods of its path, so that the answer to another method names them.
        return [
            Route("/openapi.json", self.openapi),
            Route("/v1/queues/{queue}/put", self.put_signed, methods=["POST"]),
            *(
                _Literal(path, self._guarded(by_method), methods=[*by_method])
                for path, by_method in paths.items()
                if "{" not in path
            ),
            *(
                Route(path, self._guarded(by_method), methods=[*by_method])
                for path, by_method in paths.items()
                if "{" in path
            ),
        ]

    # -- enqueue ---------------------------------------------------------------------------------

    async def put(self, request: Request, caller: Caller) -> Response:
        body = await self._body(request, caller, limits.BODY_BYTES, (JSON, EVENT))
        queue = request.path_params["queue"]
        event = event_of(body, kind_of(request), request.headers.items())
        if event is not None:
            (accepted,) = await self._put_events(request, caller, [put_of(event, queue)])
            return json_of(accepted, 201 if accepted.created else 200)
        put = schemas.parse(body, schemas.Put)
        if put.queue not in (None, queue):
            raise BadRequest("the body names another queue than the path")
        put.queue = queue
        key = request.headers.get("idempotency-key")
        if key is not None and put.unique_key not in (None, key):
            raise BadRequest("Idempotency-Key and unique_key differ")
        put.unique_key = put.unique_key or key
        _trace([put], request)
        (accepted,) = await self._service.put(caller, [put])
        return json_of(accepted, 201 if accepted.created else 200)

    async def _put_events(
        self, request: Request, caller: Caller, puts: list[schemas.Put]
    ) -> list[schemas.Accepted]:
        _trace(puts, request)
        try:
            return await self._service.put(caller, puts)
        except LateError as error:
            raise named(error) from None

    async def put_signed(self, request: Request) -> Response:
        """Put the task of a signed URL, which takes no token: the URL stands for one."""
        try:
            accepted = await signed_puts.put(self._service, request, served=self._signed_urls)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return failed(error)
        return json_of(accepted, 201)

    async def put_many(self, request: Request, caller: Caller) -> Response:
        body = await self._body(request, caller, limits.BATCH_BYTES, (JSON, BATCH))
        queue = request.query_params.get("queue")
        if queue is not None:
            validate.queue(queue)  # Also where no task needs it.
        if kind_of(request) == BATCH:
            puts = puts_of_batch(body, queue)
            accepted = await self._put_events(request, caller, puts)
        else:
            puts = schemas.parse(body, schemas.PutMany).tasks
            for put in puts:
                put.queue = queue if put.queue is None else put.queue
            _trace(puts, request)
            accepted = await self._service.put(caller, puts)
        answer = {"tasks": accepted, "token": schemas.token_of(accepted)}
        return json_of(answer, 201 if any(a.created for a in accepted) else 200)

    # -- pull ------------------------------------------------------------------------------------

    async def receive(self, request: Request, caller: Caller) -> Response:
        asked = schemas.parse(await self._body(request, caller, limits.BODY_BYTES), schemas.Receive)
        ask = TakeRequest(
            asked.group or "",
            (request.path_params["queue"],),
            limit=asked.limit,
            wait_s=asked.wait_s,
            visibility_s=asked.visibility_s,
            consumer=asked.consumer,
            names=frozenset(asked.names) if asked.names else None,
        )
        # When the client goes, its tasks go to others.
        take = partial(self._service.take, caller, ask)
        taking = self._service.access.while_admitted(caller, take)
        found = await run_until(gone(request), taking)
        if found is None:
            raise ClientDisconnect
        return json_of({"tasks": [_pulled(delivery) for delivery in found]})

    async def ack(self, request: Request, caller: Caller) -> Response:
        asked = schemas.parse(await self._body(request, caller, limits.BODY_BYTES), schemas.Ack)
        result = b"" if isinstance(asked.result, msgspec.UnsetType) else bytes(asked.result)
        await self._service.answer(caller, asked.receipt, schemas.done(result, asked.counts))
        return Response(status_code=204, headers=HEADERS)

    async def nack(self, request: Request, caller: Caller) -> Response:
        asked = schemas.parse(await self._body(request, caller, limits.BODY_BYTES), schemas.Nack)
        verdict = schemas.verdict(asked.outcome, asked.after_s, asked.reason)
        await self._service.answer(caller, asked.receipt, verdict)
        return Response(status_code=204, headers=HEADERS)

    async def extend(self, request: Request, caller: Caller) -> Response:
        asked = schemas.parse(await self._body(request, caller, limits.BODY_BYTES), schemas.Extend)
        until_us = await self._service.extend(caller, asked.receipt, asked.visibility_s)
        return json_of({"receipt": asked.receipt, "visible_until": schemas.moment(until_us)})

    # -- look ------------------------------------------------------------------------------------

    async def queues(self, request: Request, caller: Caller) -> Response:
        group = request.query_params.get("group")
        return json_of({"queues": await self._service.stats(caller, group=group)})

    async def queue(self, request: Request, caller: Caller) -> Response:
        group = request.query_params.get("group")
        (stats,) = await self._service.stats(caller, [request.path_params["queue"]], group)
        return json_of(stats)

    async def metrics(self, request: Request, caller: Caller) -> Response:
        demand(caller, "operate")
        if not caller.may_all("operate"):
            raise Forbidden("metrics are of all queues, and this token is not for all of them")
        assert self._metrics is not None
        return Response(await self._metrics(), headers={**HEADERS, "Content-Type": CONTENT_TYPE})

    async def openapi(self, request: Request) -> Response:
        return json_of(document())

    # -- around all of them ----------------------------------------------------------------------

    def _guarded(
        self, by_method: Mapping[str, Handler]
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Make an endpoint: it admits the caller, and every error becomes its answer."""

        async def endpoint(request: Request) -> Response:
            try:
                handler = by_method["GET" if request.method == "HEAD" else request.method]
                return await handler(request, await self._admit(request))
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                return failed(error)

        return endpoint

    async def _body(
        self, request: Request, caller: Caller, most: int, kinds: Collection[str] = (JSON,)
    ) -> bytes:
        """Read the body; see `body_of`. It may come slowly, and the token end before it does."""
        body = await body_of(request, most, kinds)
        self._service.access.check(caller)
        return body

    async def _admit(self, request: Request) -> Caller:
        names = tuple(request.scope.get("late.certificate", ()))
        given, host = request.headers.get("authorization"), request.headers.get("host")
        address = "" if request.client is None else request.client.host
        gate = Gate(self._service.access)
        await self._service.access.prepare(given)
        return gate.admit(given, host, names, address=address, interface="http")


def _trace(puts: Sequence[schemas.Put], request: Request) -> None:
    """Pass the caller's trace on to the tasks."""
    parent, state = request.headers.get(traces.PARENT), request.headers.get(traces.STATE)
    for put in puts:
        put.headers = traces.passed(put.headers, parent, state)


def _pulled(delivery: Delivery) -> schemas.Pulled:
    attempt, record = delivery.attempt, delivery.attempt.record
    ends = attempt.deadline_us
    return schemas.Pulled(
        task_id=record.task_id,
        group=attempt.group,
        queue=record.queue,
        name=record.name,
        payload=msgspec.Raw(delivery.payload),
        attempt=attempt.number,
        receipt=delivery.receipt,
        visible_until=schemas.moment(delivery.visible_until_us),
        enqueued_at=schemas.moment(record.created_at_us),
        due_at=schemas.moment(attempt.due_at_us),
        expires_at=None if ends is None else schemas.moment(ends),
        headers=delivery.headers,
        is_replay=attempt.is_replay,
        keeps_result=attempt.keeps_result,
    )
