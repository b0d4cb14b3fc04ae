"""A proxy between a consumer and the server: it notes what passes, and loses what it is told to."""

from __future__ import annotations

import json
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
from aiohttp import web

Loss = Literal["request", "answer", "busy"]
"""The request is cut off before the server has it; or its answer is; or the answer is 503."""
ANSWERS = ("ack", "nack")


@dataclass
class Exchange:
    """One request of the consumer. `word` is the last one of its path, such as `receive` or `ack`.

    `status` and `answer` are the server's; None as long as it has not answered.
    """

    word: str
    body: dict[str, Any]
    at: float
    """Monotonic seconds, as it arrived."""
    status: int | None = None
    answer: Any = None
    answered_at: float = 0.0
    loss: Loss | None = None


@dataclass
class Proxy:
    """One consumer's requests, and their answers."""

    target: str
    address: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    _losses: defaultdict[str, deque[Loss]] = field(default_factory=lambda: defaultdict(deque))

    def lose(self, word: str, *losses: Loss) -> None:
        """Lose the next requests of this word, one after the other."""
        self._losses[word].extend(losses)

    def of(self, *words: str) -> list[Exchange]:
        return [each for each in self.exchanges if each.word in words]

    def tasks(self) -> list[dict[str, Any]]:
        """The tasks that the consumer was given, in their order, each with `given_at`, as `at`."""
        return [
            {**task, "given_at": each.answered_at}
            for each in self.of("receive")
            if each.status == 200 and each.loss is None
            for task in each.answer["tasks"]
        ]

    def answers_to(self, task_id: str) -> list[Exchange]:
        """The acks and nacks of a task, in their order."""
        receipts = {task["receipt"] for task in self.tasks() if task["task_id"] == task_id}
        return [each for each in self.of(*ANSWERS) if each.body.get("receipt") in receipts]

    def unanswered(self) -> list[str]:
        """The ids of the tasks whose last receipt the server has no answer for."""
        heard = {
            each.body.get("receipt") for each in self.of(*ANSWERS) if each.status in (204, 409)
        }
        return [task["task_id"] for task in self.tasks() if task["receipt"] not in heard]

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else {}
        word = request.path.rpartition("/")[2]
        exchange = Exchange(word, body, time.monotonic())
        self.exchanges.append(exchange)
        if self._losses[word]:
            exchange.loss = self._losses[word].popleft()
        if exchange.loss == "busy":
            told = {"error": "unavailable", "message": "not now"}
            return web.json_response(told, status=503, headers={"Retry-After": "1"})
        if exchange.loss == "request":
            return _cut(request)
        kept = ("Content-Type", "Authorization")
        head = {name: request.headers[name] for name in kept if name in request.headers}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, f"{self.target}{request.path_qs}", data=raw, headers=head
            ) as found,
        ):
            text = await found.read()
        exchange.answer = json.loads(text) if text else None
        exchange.status, exchange.answered_at = found.status, time.monotonic()
        if exchange.loss == "answer":
            return _cut(request)
        kept = ("Content-Type", "Retry-After")
        head = {name: found.headers[name] for name in kept if name in found.headers}
        return web.Response(body=text, status=found.status, headers=head)


def _cut(request: web.Request) -> web.Response:
    """End the connection without an answer. The one that is returned reaches nobody."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


@asynccontextmanager
async def between(target: str) -> AsyncIterator[Proxy]:
    """Serve a proxy to `target` on a free port of this machine."""
    proxy = Proxy(target)
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", proxy._pass_on)
    # With the cancellation, the server learns that a consumer went away while it waited.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield proxy
    finally:
        await runner.cleanup()
