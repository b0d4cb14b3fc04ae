"""A token that was revoked, or whose time is over, while its stream, its long poll or its page is
open: it gets nothing more, and what it has goes to others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

import late
from late.api.access.auth import Access
from late.api.server import Server
from late.api.settings import ServeSettings
from late.control import Control
from late.errors import StoreUnavailable
from late.model.access import tokens
from late.model.access.tokens import CERTIFICATE, Token
from late.v1 import queue_pb2, queue_pb2_grpc
from late.web import routes
from late.worker.background import BackgroundService
from tests.integration.serve_kit import Serving, fleet, serving
from tests.support import sqlite
from tests.unit.api_kit import Client, Served, served
from tests.unit.dispatcher_kit import NOW_US, attempt
from tests.unit.web_kit import page

RECEIVE = "/v1/queues/payments/receive"
TWELVE_HOURS_S = 43_200
End = Callable[[Served, str], Awaitable[None]]


async def revoked(it: Served, name: str) -> None:
    with Control(it.url) as control:
        control.tokens.revoke(name)
    await it.service.access.load()


async def expired(it: Served, name: str) -> None:
    """Its time is over by the database's clock; nothing is read."""
    access = it.service.access
    found = access._tokens[name]
    access._tokens[name] = msgspec.structs.replace(found, expires_at_us=NOW_US + 1)
    await access.end()
    assert access.holds(tokens.caller(found))
    access._now_us = lambda: NOW_US + 1
    await access.end()


async def replaced(it: Served, name: str) -> None:
    """Somebody has written another secret into its row."""
    found = [
        msgspec.structs.replace(each, digest="0" * 64) if each.name == name else each
        for each in it.service.access._tokens.values()
    ]
    it.service.access._read = lambda: found
    await it.service.access.load()


ENDS = pytest.mark.parametrize("end", [revoked, expired, replaced])


class Talk:
    """A `Consume` stream of a token, spoken by hand."""

    def __init__(self, queue: Any, token: str) -> None:
        self.call = queue.Consume(metadata=(("authorization", f"Bearer {token}"),))

    async def say(self, **message: Any) -> None:
        await self.call.write(queue_pb2.ConsumeRequest(**message))

    async def hear(self, word: str) -> Any:
        async with asyncio.timeout(120):
            message = await self.call.read()
        assert message is not grpc.aio.EOF, (await self.call.code(), await self.call.details())
        return getattr(message, word)

    async def begin(self, credit: int) -> None:
        await self.say(subscribe=queue_pb2.Subscribe(queues=["payments"], consumer="c"))
        await self.hear("subscribed")
        await self.say(credit=queue_pb2.Credit(tasks=credit))

    async def code(self) -> grpc.StatusCode:
        async with asyncio.timeout(120):
            found: grpc.StatusCode = await self.call.code()
            return found


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[tuple[Served, Any, str, str]]:
    """The interfaces, a stub, and the tokens of a thief and of an honest consumer."""
    async with (
        served(folder, auth=True) as it,
        grpc.aio.insecure_channel(f"127.0.0.1:{it.rpc.port}") as channel,
    ):
        thief, honest = it.token("thief", "consume"), it.token("thief.not", "consume")
        await it.service.access.load()
        yield it, queue_pb2_grpc.QueueStub(channel), thief, honest


@ENDS
async def test_a_stream_ends_with_its_token_and_others_get_its_tasks(
    tmp_path: Path, end: End
) -> None:
    async with guarded(tmp_path) as (it, queue, thief, honest):
        stolen = Talk(queue, thief)
        await stolen.begin(credit=2)
        await it.rig.room(2)
        it.rig.pool.submit([attempt()])
        (got,) = (await stolen.hear("deliveries")).deliveries
        other = Talk(queue, honest)
        await other.begin(credit=2)

        await end(it, "thief")

        assert await stolen.code() is grpc.StatusCode.UNAUTHENTICATED
        (outcome,) = await it.rig.ended(1)
        assert outcome.kind == "interrupted"  # which costs no attempt
        it.call.token = thief
        assert (await it.call("POST", "/v1/ack", {"receipt": got.receipt})).status == 401
        assert await Talk(queue, thief).code() is grpc.StatusCode.UNAUTHENTICATED
        # Who has a right still gets what comes.
        it.rig.pool.submit([attempt()])
        (task,) = (await other.hear("deliveries")).deliveries
        await other.say(ack=queue_pb2.Ack(receipts=[got.receipt, task.receipt]))
        stale, accepted = (await other.hear("receipts")).results
        assert stale.status == queue_pb2.ReceiptResult.STALE
        assert accepted.status == queue_pb2.ReceiptResult.ACCEPTED
        assert it.rig.pool.room == 1


async def test_a_stream_that_says_nothing_ends_with_its_token(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (it, queue, thief, _):
        silent = Talk(queue, thief)
        async with asyncio.timeout(120):
            while not it.service.access._waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await revoked(it, "thief")
        assert await silent.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_consumer_that_does_not_read_keeps_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (it, queue, thief, _):
        deaf = Talk(queue, thief)
        await deaf.begin(credit=64)
        await it.rig.room(64)
        it.rig.pool.submit([attempt(filler="x" * 200_000) for _ in range(64)])
        async with asyncio.timeout(120):
            while it.rig.pool.out < 64:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await revoked(it, "thief")
        assert {outcome.kind for outcome in await it.rig.ended(64)} == {"interrupted"}


@ENDS
async def test_a_long_poll_ends_with_its_token(tmp_path: Path, end: End) -> None:
    async with guarded(tmp_path) as (it, _, thief, honest):
        it.call.token = thief
        polling = asyncio.create_task(it.call("POST", RECEIVE, {"wait_s": 60}))
        await it.rig.room(1)
        await end(it, "thief")
        answer = await polling
        assert (answer.status, answer.json["error"]) == (401, "unauthenticated")
        assert it.rig.pool.room == 0
        it.rig.pool.submit([attempt()])
        it.call.token = honest
        (task,) = (await it.call("POST", RECEIVE, {"wait_s": 20})).json["tasks"]
        assert (await it.call("POST", "/v1/ack", {"receipt": task["receipt"]})).status == 204


@pytest.mark.parametrize("consumer", ["", "c"])
@ENDS
async def test_what_was_taken_for_hours_goes_to_others(
    tmp_path: Path, end: End, consumer: str
) -> None:
    async with guarded(tmp_path) as (it, _, thief, honest):
        ask = {"wait_s": 20, "visibility_s": TWELVE_HOURS_S, "consumer": consumer}
        receipts = []
        for token in (thief, honest):
            it.call.token = token
            taking = asyncio.create_task(it.call("POST", RECEIVE, ask))
            await it.rig.room(1)
            it.rig.pool.submit([attempt()])
            (task,) = (await taking).json["tasks"]
            receipts.append(task["receipt"])
        await end(it, "thief")
        (outcome,) = await it.rig.ended(1)
        assert outcome.kind == "interrupted"
        assert it.rig.pool.out == 1  # of the honest one, whose name only begins alike
        codes = [(await it.call("POST", "/v1/ack", {"receipt": each})).status for each in receipts]
        assert codes == [409, 204]


async def test_a_task_that_was_on_its_way_goes_to_others(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (it, _, thief, _honest):
        source, access = it.service._source, it.service.access
        take = source.take

        async def slow(ask: Any) -> Any:
            found = await take(ask)
            # Nobody has looked at the clock since.
            given = msgspec.structs.replace(access._tokens["thief"], expires_at_us=NOW_US)
            access._tokens["thief"] = given
            return found

        source.take = slow  # type: ignore[method-assign]
        it.call.token = thief
        taking = asyncio.create_task(it.call("POST", RECEIVE, {"visibility_s": TWELVE_HOURS_S}))
        await it.rig.room(1)
        it.rig.pool.submit([attempt()])
        assert (await taking).status == 401
        (outcome,) = await it.rig.ended(1)
        assert outcome.kind == "interrupted"


@ENDS
async def test_a_body_that_ends_after_its_token_does_nothing(
    tmp_path: Path, end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    from late.api.http import routes

    read = routes.body_of

    async def slow(*arguments: Any) -> bytes:
        body = await read(*arguments)
        await end(it, "thief")
        return body

    async with guarded(tmp_path) as (it, _, thief, _honest):
        monkeypatch.setattr(routes, "body_of", slow)
        it.call.token = thief
        assert (await it.call("POST", "/v1/ack", {"receipt": "x"})).status == 401


async def test_a_page_hears_no_more_with_its_token(tmp_path: Path) -> None:
    text, digest = tokens.make("eve")
    stored = [Token("eve", digest, ("view",), ("*",))]
    async with page(tmp_path, tokens=stored) as it:
        gate = it.site._context.gate
        caller = gate.admit(f"Bearer {text}", "127.0.0.1", (), address="127.0.0.1")
        it.site._streams._every_s = 3_600
        stream = it.site._streams.run(lambda: gate.over(caller))
        assert await anext(stream) == b"retry: 3000\n\n"
        hearing = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        stored[0] = msgspec.structs.replace(stored[0], revoked_at_us=1)
        await gate._access.load()  # type: ignore[attr-defined]
        async with asyncio.timeout(120):
            assert await hearing == b"event: end\ndata: \n\n"
        answer = await it.get("live", headers={"Authorization": f"Bearer {text}"})
        assert answer.status_code == 401


async def test_a_form_that_ends_after_its_token_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, digest = tokens.make("eve")
    stored = [Token("eve", digest, ("operate",), ("*",))]
    async with page(tmp_path, tokens=stored) as it:
        it.client.headers["Authorization"] = f"Bearer {text}"
        token = await it.token()
        gate, form = it.site._context.gate, routes.read_form

        async def slow(*arguments: Any) -> Any:
            fields = await form(*arguments)
            stored[0] = msgspec.structs.replace(stored[0], revoked_at_us=1)
            await gate._access.load()  # type: ignore[attr-defined]
            return fields

        monkeypatch.setattr(routes, "read_form", slow)
        answer = await it.post("groups/default/pause", token=token)
        assert answer.status_code == 401
        assert "paused" not in {group.state for group in it.control.groups.all()}


async def test_a_certificate_ends_by_its_token() -> None:
    stored = [Token("host.example", CERTIFICATE, ("consume",), ("*",))]
    access = Access(lambda: stored, now_us=lambda: NOW_US)
    await access.load()
    caller = access.admit(None, ("host.example",))
    waiting = asyncio.create_task(access.over(caller))
    await asyncio.sleep(0)
    stored[0] = msgspec.structs.replace(stored[0], revoked_at_us=1)
    await access.load()
    async with asyncio.timeout(120):
        await waiting
    assert access._waiting == {}


async def test_without_the_database_a_lifetime_still_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.api.access.auth.END_EVERY_S", 0.02)
    monkeypatch.setattr("late.api.access.auth.READ_EVERY_S", 0.02)

    def away() -> list[Token]:
        raise StoreUnavailable("away")

    async with guarded(tmp_path) as (it, queue, thief, _):
        access = it.service.access
        stolen = Talk(queue, thief)
        await stolen.begin(credit=1)
        await it.rig.room(1)
        access._read = away
        found = access._tokens["thief"]
        access._tokens["thief"] = msgspec.structs.replace(found, expires_at_us=NOW_US)
        jobs = asyncio.create_task(BackgroundService(access.jobs()).run())
        assert await stolen.code() is grpc.StatusCode.UNAUTHENTICATED
        jobs.cancel()


async def test_a_server_without_a_worker_follows_the_databases_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.api.server.CLOCK_EVERY_S", 0.02)
    url = sqlite.database(tmp_path / "q.db")
    server = Server(late.App(url), ServeSettings(http_port=0, auth=True, roles=("web",)))
    await server.start()
    later_us = server._clock.now_us() + 3_600_000_000  # as after a pause of the machine
    monkeypatch.setattr(server._control, "now", lambda: later_us)
    async with asyncio.timeout(120):
        while server._clock.now_us() < later_us:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await server.stop()


@pytest.mark.parametrize("layout", [serving, fleet], ids=["one", "fleet"])
async def test_a_revoked_token_ends_what_is_open_in_a_deployment(url: str, layout: Any) -> None:
    """Nothing here calls the server: it reads the tokens by itself, on every store."""
    thief, honest = await asyncio.to_thread(made, url, "thief", "honest")
    async with layout(url, auth=True) as it:
        await both(it, thief, honest)


async def both(it: Serving, thief: str, honest: str) -> None:
    it.call.token = honest
    poll = Client(it.call.port, thief)
    async with grpc.aio.insecure_channel(it.at) as channel:
        stolen = Talk(queue_pb2_grpc.QueueStub(channel), thief)
        await stolen.begin(credit=1)
        task_id = await it.put()
        (got,) = (await stolen.hear("deliveries")).deliveries
        assert got.task.task_id == task_id
        polling = asyncio.create_task(poll("POST", RECEIVE, {"wait_s": 60}))

        await asyncio.to_thread(revoke, it.url, "thief")

        assert await stolen.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await polling).status == 401
        (task,) = await it.receive(visibility_s=60)
        assert (task["task_id"], task["attempt"]) == (task_id, 1)
        assert (await poll("POST", "/v1/ack", {"receipt": got.receipt})).status == 401
        assert (await it.call("POST", "/v1/ack", {"receipt": task["receipt"]})).status == 204


def made(url: str, *names: str) -> list[str]:
    with Control(url) as control:
        found = [control.tokens.create(n, scopes=["enqueue", "consume"], queues=["*"])[0]
                 for n in names]  # fmt: skip
    return [text for text in found if text is not None]


def revoke(url: str, name: str) -> None:
    with Control(url) as control:
        control.tokens.revoke(name)
