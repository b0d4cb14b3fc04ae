"""A token for some queues reaches no other queue by a unique key or an ordering key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

import late
from late import config
from late.api.server import Server
from late.api.settings import ServeSettings
from late.control import Control
from late.schema.engine import make_engine, writing
from late.v1 import queue_pb2, queue_pb2_grpc
from tests.integration.serve_kit import Serving
from tests.support import sqlite
from tests.unit.api_kit import Served, served

KEY = "invoice-7"
PERIOD_S = 300 * 86_400
Attack = Callable[[Served, dict[str, Any]], Awaitable[str]]


async def by_http(it: Served, fields: dict[str, Any]) -> str:
    answer = await it.call("POST", "/v1/queues/payments/tasks", {"name": "send", **fields})
    assert answer.status == 201, answer.body
    assert answer.json["created"]
    return str(answer.json["task_id"])


async def by_header(it: Served, fields: dict[str, Any]) -> str:
    others = {name: value for name, value in fields.items() if name != "unique_key"}
    answer = await it.call(
        "POST",
        "/v1/queues/payments/tasks",
        {"name": "send", **others},
        headers={"Idempotency-Key": fields["unique_key"]},
    )
    assert answer.status == 201, answer.body
    return str(answer.json["task_id"])


async def by_batch(it: Served, fields: dict[str, Any]) -> str:
    put = {"name": "send", "queue": "payments", **fields}
    answer = await it.call("POST", "/v1/tasks", {"tasks": [put]})
    assert answer.json["tasks"][0]["created"]
    return str(answer.json["tasks"][0]["task_id"])


async def by_grpc(it: Served, fields: dict[str, Any]) -> str:
    task = queue_pb2.NewTask(queue="payments", name="send", unique_key=fields["unique_key"])
    if "unique_for_s" in fields:
        task.unique_for.FromSeconds(fields["unique_for_s"])
    if "on_conflict" in fields:
        task.on_conflict = queue_pb2.NewTask.REPLACE
    async with grpc.aio.insecure_channel(f"127.0.0.1:{it.rpc.port}") as channel:
        answer = await queue_pb2_grpc.QueueStub(channel).Enqueue(
            queue_pb2.EnqueueRequest(tasks=[task]),
            metadata=(("authorization", f"Bearer {it.call.token}"),),
        )
    return str(answer.task_ids[0])


def app_at(url: str) -> late.App:
    app = late.App(url)

    @app.task(queue="mail")
    async def send() -> None: ...

    return app


def enqueue(app: late.App, **options: Any) -> str:
    engine = make_engine(app.url)
    try:
        with writing(engine) as connection:
            return app.tasks["send"].options(**options).enqueue(connection)
    finally:
        engine.dispose()


@pytest.mark.parametrize("attack", [by_http, by_header, by_batch, by_grpc])
async def test_a_key_of_another_queue_is_neither_seen_nor_freed(
    tmp_path: Path, attack: Attack
) -> None:
    async with served(tmp_path, auth=True) as it:
        app = app_at(it.url)
        it.call.token = it.token("payer", "enqueue", queues=("payments",))
        await it.service.access.load()
        victim = await asyncio.to_thread(enqueue, app, unique_key=KEY, delay=3_600)
        found = await attack(it, {"unique_key": KEY})  # the same name and payload
        assert found != victim
        replacing = await attack(it, {"unique_key": KEY, "on_conflict": "replace"})
        assert replacing not in (found, victim)
        assert await asyncio.to_thread(enqueue, app, unique_key=KEY) == victim


@pytest.mark.parametrize("attack", [by_http, by_header, by_batch, by_grpc])
async def test_a_period_locks_out_no_other_queue(tmp_path: Path, attack: Attack) -> None:
    async with served(tmp_path, auth=True) as it:
        app = app_at(it.url)
        it.call.token = it.token("payer", "enqueue", queues=("pay*",))
        await it.service.access.load()
        taken = await attack(it, {"unique_key": KEY, "unique_for_s": PERIOD_S})
        assert await asyncio.to_thread(enqueue, app, unique_key=KEY) != taken


async def test_a_key_is_still_unique_in_its_queue(tmp_path: Path) -> None:
    """Also for another token, and apart from the key of a token for all queues."""
    async with served(tmp_path, auth=True) as it:
        texts = [
            it.token("one", "enqueue", queues=("payments",)),
            it.token("two", "enqueue", queues=("pay*", "mail")),
            it.token("all", "enqueue"),
        ]
        await it.service.access.load()
        found = []
        for text in texts:
            it.call.token = text
            put = {"name": "send", "unique_key": KEY}
            answer = await it.call("POST", "/v1/queues/payments/tasks", put)
            found.append((answer.status, answer.json["task_id"]))
        assert [status for status, _ in found] == [201, 200, 201]
        assert found[0][1] == found[1][1] != found[2][1]


async def test_an_ordering_key_holds_up_no_other_queue(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "served.db")
    app = app_at(url)
    app.route("payments", target="pull")
    with Control(url) as control:
        text, _ = control.tokens.create(
            "payer", scopes=["enqueue", "consume"], queues=["payments"], lifetime_us=None
        )
    listen = ServeSettings(http_port=0, grpc_port=0, auth=True)
    server = Server(app, listen, settings=config.load())
    await server.start()
    try:
        it = Serving(server, url)
        it.call.token = text
        await it.put(ordering_key=KEY)
        (held,) = await it.receive()
        victim = await asyncio.to_thread(enqueue, app, ordering_key=KEY)
        async with asyncio.timeout(120):
            while not await it.is_settled(victim):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert (await it.call("POST", "/v1/ack", {"receipt": held["receipt"]})).status < 300
    finally:
        await server.stop()
