"""HTTP push: what a target gets, and what its answers mean."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import late
from late.model.task import Outcome
from tests.integration.push_kit import pool_of
from tests.unit.dispatcher_kit import NOW_US, attempt

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Request:
    """One request as it came."""

    def __init__(self, line: str, headers: dict[str, str], body: bytes) -> None:
        self.line, self.headers, self.body = line, headers, body


Reply = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


class Service:
    """A server by hand, so that it can misbehave below HTTP too."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.gone = asyncio.Event()
        self.reply: Reply = plain(b"HTTP/1.1 204 No Content\r\n\r\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                line, *rest = head.strip().split("\r\n")
                pairs = (text.split(": ", 1) for text in rest)
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append(Request(line, headers, body))
                await self.reply(self.requests[-1], writer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, EOFError):
            pass
        finally:
            self.gone.set()
            writer.close()


def plain(raw: bytes) -> Reply:
    async def reply(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return reply


def answer(status: int, body: Any = None, **headers: str) -> Reply:
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Some Words", f"content-length: {len(raw)}"]
    given = {"content_type": "application/json"} | headers
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
    return plain("\r\n".join([*lines, "", ""]).encode() + raw)


@asynccontextmanager
async def service(**settings: Any) -> AsyncIterator[tuple[Service, late.HttpTarget]]:
    made = Service()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield made, late.HttpTarget("mail", f"http://127.0.0.1:{port}/tasks", **settings)
    finally:
        server.close()


async def ask(reply: Reply, **settings: Any) -> Outcome:
    async with service(**settings) as (made, target), pool_of(target) as pool:
        made.reply = reply
        return await pool.one(attempt("welcome"))


async def test_a_task_comes_as_a_signed_post() -> None:
    headers = '{"traceparent":"00-ab-cd-01","tracestate":"a\\r\\nx-evil: 1","host":"evil","a":"b"}'
    sent = attempt("welcome", headers=headers, number=2, deadline_us=NOW_US + 5_000_000, user=7)
    settings = {"secret": SECRET, "headers": {"x-team": "mail"}}
    async with service(**settings) as (made, target), pool_of(target) as pool:
        outcome = await pool.one(sent)
    assert (outcome.kind, outcome.target) == ("done", "mail")
    [request] = made.requests
    found = request.headers
    key = f"default:{sent.record.task_id}"
    assert request.line == "POST /tasks HTTP/1.1"
    assert late.verify_webhook(found, request.body, SECRET) == key
    assert found["idempotency-key"] == key
    assert (found["traceparent"], found["x-team"]) == ("00-ab-cd-01", "mail")
    assert "evil" not in str(found), "what a producer gave must not become a header"
    body = json.loads(request.body)
    assert (body["type"], body["data"]) == ("welcome", {"user": 7})
    task = body["task"]
    assert (task["id"], task["attempt"], task["queue"]) == (sent.record.task_id, 2, "payments")
    assert task["headers"]["host"] == "evil"
    assert task["expires_at"].startswith("2027-01-15T08:00:05")


async def test_numbers_arrive_as_they_were_given() -> None:
    async with service() as (made, target), pool_of(target) as pool:
        await pool.one(attempt("welcome", payload=b'{"n": 18446744073709551615, "x": 0.10}'))
    assert b'{"n": 18446744073709551615, "x": 0.10}' in made.requests[0].body


async def test_a_group_with_a_full_stop_is_signed_too() -> None:
    async with service(secret=SECRET) as (made, target), pool_of(target) as pool:
        outcome = await pool.one(msgspec.structs.replace(attempt("welcome"), group="mail.eu"))
    assert outcome.kind == "done"
    assert late.verify_webhook(made.requests[0].headers, made.requests[0].body, SECRET)


STATUS = [
    (200, "done", True, None),
    (202, "done", True, None),
    (204, "done", True, None),
    (301, "failed", False, "target_blocked"),
    (307, "failed", False, "target_blocked"),
    (400, "failed", False, "refused"),
    (401, "failed", True, None),
    (403, "failed", True, None),
    (404, "failed", True, None),
    (408, "failed", True, "timeout"),
    (409, "failed", True, None),
    (410, "failed", False, "refused"),
    (413, "failed", False, "refused"),
    (422, "failed", False, "refused"),
    (429, "failed", True, "overloaded"),
    (500, "failed", True, None),
    (501, "not_capable", True, "not_capable"),
    (502, "failed", True, "unavailable"),
    (503, "failed", True, "overloaded"),
    (504, "failed", True, "timeout"),
]


@pytest.mark.parametrize(("status", "kind", "retryable", "reason"), STATUS)
async def test_every_status_has_its_outcome(
    status: int, kind: str, retryable: bool, reason: str | None
) -> None:
    words = {"reason": "not today\nlevel=fake"}
    # HTTP allows no body here: what follows such an answer is read as the beginning of the next.
    outcome = await ask(answer(status, None if status == 204 else words))
    assert (outcome.kind, outcome.retryable, outcome.reason) == (kind, retryable, reason)
    assert outcome.overloaded == (reason in ("overloaded", "timeout"))
    if kind == "failed" and status >= 400:
        assert f"HTTP {status}: not today\\nlevel=fake" in (outcome.error or "")


@pytest.mark.parametrize("status", [429, 503, 500])
async def test_retry_after_is_kept(status: int) -> None:
    assert (await ask(answer(status, retry_after="30"))).after_us == 30_000_000
    assert (await ask(answer(status, retry_after="soon"))).after_us is None
    assert (await ask(answer(status, retry_after="99999999999"))).after_us == 86_400_000_000


@pytest.mark.parametrize(
    ("body", "kind", "after_us"),
    [
        ({"outcome": "done"}, "done", None),
        ({"outcome": "retry", "after_s": 7, "reason": "later"}, "failed", 7_000_000),
        ({"outcome": "snooze", "after_s": 2.5}, "snooze", 2_500_000),
        ({"outcome": "snooze", "after_s": 0}, "snooze", 100_000),
        ({"outcome": "snooze"}, "snooze", 1_000_000),
        ({"outcome": "discard", "reason": "gone"}, "discard", None),
        ({"outcome": "not_capable"}, "not_capable", None),
        ({"outcome": "fail", "reason": "no"}, "failed", None),
        ({"outcome": "retrry"}, "failed", None),
        ({"outcome": "retry", "after_s": "x"}, "failed", None),
        ({"ok": True}, "done", None),
        ([1, 2], "done", None),
        (b"{", "done", None),
        (b"[" * 100_000, "done", None),
        (b"\xff\xfe", "done", None),
    ],
)
async def test_a_2xx_may_say_how_it_ended(body: Any, kind: str, after_us: int | None) -> None:
    outcome = await ask(answer(200, body))
    assert (outcome.kind, outcome.after_us) == (kind, after_us)
    if body == {"outcome": "fail", "reason": "no"}:
        assert (outcome.retryable, outcome.reason) == (False, "refused")


@pytest.mark.parametrize(
    ("body", "kind", "result"),
    [
        ({"result": {"total": 3}}, "done", b'{"total": 3}'),
        (b'{"outcome":"done","result":1.50}', "done", b"1.50"),
        ({"outcome": "done", "result": None}, "done", b"null"),
        ({"total": 3}, "done", None),
        (None, "done", None),
        ({"outcome": "discard", "result": 1}, "discard", None),
        ({"result": "x" * 300_000}, "dead", None),
    ],
)
async def test_a_2xx_may_carry_a_result(body: Any, kind: str, result: bytes | None) -> None:
    wanted = msgspec.structs.replace(attempt(), keeps_result=True)
    async with service() as (target, made), pool_of(made) as pool:
        target.reply = answer(200, body)
        outcome = await pool.one(wanted)
        assert (outcome.kind, outcome.result) == (kind, result)
        assert outcome.reason == ("invalid_result" if kind == "dead" else None)
        assert json.loads(target.requests[0].body)["task"]["keeps_result"] is True
        unasked = await pool.one(attempt())
        assert (unasked.kind, unasked.result) == (kind if kind == "discard" else "done", None)


async def test_a_redirect_is_not_followed_wherever_it_leads() -> None:
    async with service() as (other, elsewhere), service() as (made, target), pool_of(target) as p:
        made.reply = answer(302, location=elsewhere.url)
        outcome = await p.one(attempt("welcome"))
        assert (outcome.reason, outcome.retryable) == ("target_blocked", False)
        assert other.connections == 0


async def test_nothing_in_a_task_becomes_an_address() -> None:
    """Not its arguments, not its headers, not its name."""
    async with service() as (other, elsewhere), service() as (made, target), pool_of(target) as p:
        url = elsewhere.url
        headers = json.dumps({"host": url, "location": url, "url": url, "baggage": url})
        outcome = await p.one(attempt("welcome", url=url, target=url, headers=headers))
        assert outcome.kind == "done"
        tampered = await p.one(attempt(url))
        assert (tampered.kind, tampered.reason) == ("dead", "invalid_name")
        assert (other.connections, len(made.requests)) == (0, 1)


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service() as (other, elsewhere), service() as (made, target):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, elsewhere.url.removesuffix("/tasks"))
        async with pool_of(target) as pool:
            assert (await pool.one(attempt("welcome"))).kind == "done"
        assert (other.connections, len(made.requests)) == (0, 1)


async def test_of_a_huge_answer_no_more_is_read_than_is_of_use() -> None:
    written = 0

    async def flood(_: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[")
        while True:
            writer.write(b"1," * 32_768)
            await writer.drain()
            written += 65_536

    outcome = await ask(flood)
    assert outcome.kind == "done"
    assert written < 64 * 2**20


async def test_an_answer_that_drips_ends_with_the_time_out() -> None:
    async def drip(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    app = late.App("sqlite:///shop.db")
    slow = app.remote("slow", target="mail", timeout_s=0.4)
    async with service() as (made, target), pool_of(target, {"slow": slow}) as pool:
        made.reply = drip
        outcome = await pool.one(attempt("slow"))
        assert (outcome.kind, outcome.retryable, outcome.overloaded) == ("failed", True, True)
        await asyncio.wait_for(made.gone.wait(), 120)


async def test_a_connection_serves_many_attempts_and_a_broken_one_none() -> None:
    async with service() as (made, target), pool_of(target) as pool:
        for _ in range(5):
            assert (await pool.one(attempt("welcome"))).kind == "done"
        assert made.connections == 1
        made.reply = plain(b"this is no HTTP\r\n\r\n")
        broken = await pool.one(attempt("welcome"))
        assert (broken.kind, broken.reason) == ("failed", "unavailable")
        made.reply = answer(200)
        assert (await pool.one(attempt("welcome"))).kind == "done"


async def test_nobody_there_is_unavailable() -> None:
    target = late.HttpTarget("mail", "http://127.0.0.1:1/")
    async with pool_of(target) as pool:
        outcome = await pool.one(attempt("welcome"))
    assert (outcome.kind, outcome.retryable, outcome.reason) == ("failed", True, "unavailable")
