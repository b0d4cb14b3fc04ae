"""The HTTP API: Starlette routes that translate for `Service`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from math import ceil
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from late.api import errors, limits, schemas
from late.api.auth import demand
from late.api.deliveries import Delivery, TakeRequest
from late.api.errors import BadRequest, Forbidden, TooLarge, Unsupported
from late.api.http.openapi import document
from late.api.service import Service
from late.api.web_auth import Gate
from late.concurrency import run_until
from late.dispatcher.push import responses
from late.model.rights import Caller
from late.observability import traces
from late.observability.metrics import CONTENT_TYPE

logger = logging.getLogger("late.api")

Handler = Callable[[Request, Caller], Awaitable[Response]]
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def make(
    service: Service | None,
    *,
    state: Callable[[], tuple[bool, str]] = lambda: (True, ""),
    metrics: Callable[[], Awaitable[bytes]] | None = None,
    more: Sequence[Route] = (),
) -> Any:
    """Make the ASGI application.

    Args:
        service: None for a process without the API. It has `/livez`, `/readyz` and `more`.
        more: further routes, which check their callers themselves.
        state: returns for `/readyz` whether this process is ready, and the reason if not.
        metrics: makes the page of `/metrics`, for callers that may `operate` every queue.
    """

    async def livez(request: Request) -> Response:
        return _json({"live": True})

    async def readyz(request: Request) -> Response:
        ready, reason = state()
        return _json({"ready": ready, "reason": reason}, 200 if ready else 503)

    api = [] if service is None else _Api(service, metrics).routes()
    routes = [*api, Route("/livez", livez), Route("/readyz", readyz), *more]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_route})


class _Api:
    def __init__(self, service: Service, metrics: Callable[[], Awaitable[bytes]] | None) -> None:
        self._service = service
        self._metrics = metrics

    def routes(self) -> list[Route]:
        guarded = self._guarded
        routes = [
            Route("/v1/queues", guarded(self.queues)),
            Route("/v1/queues/{queue}", guarded(self.queue)),
            Route("/v1/queues/{queue}/tasks", guarded(self.put), methods=["POST"]),
            Route("/v1/queues/{queue}/receive", guarded(self.receive), methods=["POST"]),
            Route("/v1/tasks", guarded(self.put_many), methods=["POST"]),
            Route("/v1/ack", guarded(self.ack), methods=["POST"]),
            Route("/v1/nack", guarded(self.nack), methods=["POST"]),
            Route("/v1/extend", guarded(self.extend), methods=["POST"]),
            Route("/openapi.json", self.openapi),
        ]
        if self._metrics is not None:
            routes.append(Route("/metrics", guarded(self.metrics)))
        return routes

    # -- enqueue ---------------------------------------------------------------------------------

    async def put(self, request: Request, caller: Caller) -> Response:
        put = schemas.parse(await self._body(request, caller, limits.BODY_BYTES), schemas.Put)
        queue = request.path_params["queue"]
        if put.queue not in (None, queue):
            raise BadRequest("the body names another queue than the path")
        put.queue = queue
        key = request.headers.get("idempotency-key")
        if key is not None and put.unique_key not in (None, key):
            raise BadRequest("Idempotency-Key and unique_key differ")
        put.unique_key = put.unique_key or key
        _trace([put], request)
        (accepted,) = await self._service.put(caller, [put])
        return _json(accepted, 201 if accepted.created else 200)

    async def put_many(self, request: Request, caller: Caller) -> Response:
        many = schemas.parse(await self._body(request, caller, limits.BATCH_BYTES), schemas.PutMany)
        _trace(many.tasks, request)
        accepted = await self._service.put(caller, many.tasks)
        answer = {"tasks": accepted, "token": schemas.token_of(accepted)}
        return _json(answer, 201 if any(a.created for a in accepted) else 200)

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
        found = await run_until(_gone(request), taking)
        if found is None:
            raise ClientDisconnect
        return _json({"tasks": [_pulled(delivery) for delivery in found]})

    async def ack(self, request: Request, caller: Caller) -> Response:
        asked = schemas.parse(await self._body(request, caller, limits.BODY_BYTES), schemas.Ack)
        result = b"" if isinstance(asked.result, msgspec.UnsetType) else bytes(asked.result)
        await self._service.answer(caller, asked.receipt, responses.done(result))
        return Response(status_code=204, headers=_HEADERS)

    async def nack(self, request: Request, caller: Caller) -> Response:
        asked = schemas.parse(await self._body(request, caller, limits.BODY_BYTES), schemas.Nack)
        verdict = schemas.verdict(asked.outcome, asked.after_s, asked.reason)
        await self._service.answer(caller, asked.receipt, verdict)
        return Response(status_code=204, headers=_HEADERS)

    async def extend(self, request: Request, caller: Caller) -> Response:
        asked = schemas.parse(await self._body(request, caller, limits.BODY_BYTES), schemas.Extend)
        until_us = await self._service.extend(caller, asked.receipt, asked.visibility_s)
        return _json({"receipt": asked.receipt, "visible_until": schemas.moment(until_us)})

    # -- look ------------------------------------------------------------------------------------

    async def queues(self, request: Request, caller: Caller) -> Response:
        group = request.query_params.get("group")
        return _json({"queues": await self._service.stats(caller, group=group)})

    async def queue(self, request: Request, caller: Caller) -> Response:
        group = request.query_params.get("group")
        (stats,) = await self._service.stats(caller, [request.path_params["queue"]], group)
        return _json(stats)

    async def metrics(self, request: Request, caller: Caller) -> Response:
        demand(caller, "operate")
        if not caller.may_all("operate"):
            raise Forbidden("metrics are of all queues, and this token is not for all of them")
        assert self._metrics is not None
        return Response(await self._metrics(), headers={**_HEADERS, "Content-Type": CONTENT_TYPE})

    async def openapi(self, request: Request) -> Response:
        return _json(document())

    # -- around all of them ----------------------------------------------------------------------

    def _guarded(self, handler: Handler) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Make an endpoint: it admits the caller, and every error becomes its answer."""

        async def endpoint(request: Request) -> Response:
            try:
                return await handler(request, await self._admit(request))
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                return _failed(error)

        return endpoint

    async def _body(self, request: Request, caller: Caller, most: int) -> bytes:
        """Read the body; see `_body`. It may come slowly, and the token end before it does."""
        body = await _body(request, most)
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


async def _body(request: Request, most: int) -> bytes:
    """Read the body, up to `most` bytes and within a limited time.

    Raises:
        TooLarge: the body has more bytes.
        Unsupported: its content type is not JSON.
        BadRequest: a part of it, or the whole, did not come in time.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # This also refuses forms of strange web pages, which cannot send this type.
        raise Unsupported("send application/json")
    said = request.headers.get("content-length", "")
    if said.isdigit() and int(said) > most:
        raise TooLarge(f"the body is above {most} bytes")
    parts: list[bytes] = []
    size = 0
    chunks = request.stream()
    ends = asyncio.get_running_loop().time() + limits.BODY_S
    while True:
        try:
            left_s = ends - asyncio.get_running_loop().time()
            async with asyncio.timeout(min(limits.HEADER_S, left_s)):
                part = await anext(chunks, None)
        except TimeoutError:
            raise BadRequest("the body did not come in time") from None
        if part is None:
            return b"".join(parts)
        size += len(part)
        if size > most:
            raise TooLarge(f"the body is above {most} bytes")
        parts.append(part)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


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


def _json(value: object, status: int = 200) -> Response:
    body = msgspec.json.encode(value)
    return Response(body, status, headers=_HEADERS, media_type="application/json")


def _failed(error: Exception) -> Response:
    code = errors.code_of(error)
    if code is errors.UNEXPECTED:
        logger.error("a request failed: %s", type(error).__name__, exc_info=error)
    elif code.word == "unavailable":
        logger.warning("a request failed: %s", error)
    response = _json(
        {"error": code.word, "message": errors.message_of(error, code)}, status=code.http
    )
    after_s = errors.retry_after_s(error, code)
    if after_s is not None:
        response.headers["Retry-After"] = str(max(1, ceil(after_s)))
    if code.http == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    word = {404: "not_found", 405: "method_not_allowed"}.get(status, "bad_request")
    response = _json({"error": word, "message": "no such path or method"}, status)
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response
