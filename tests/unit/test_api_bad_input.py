"""What bad input gets over HTTP: a code and a word, never a 500, and nothing in the database."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from late.api.pull.receipts import Receipt, seal
from late.app.app import App
from late.control import Control
from tests.unit.api_kit import KEY, Served, served
from tests.unit.dispatcher_kit import NOW_US, attempt

TASKS = "/v1/queues/payments/tasks"
DEEP = b'{"name":"n","payload":{"a":' + b"[" * 70 + b"]" * 70 + b"}}"
VERY_DEEP = b'{"name":"n","payload":{"a":' + b"[" * 100_000


def put(**more: Any) -> bytes:
    return json.dumps({"name": "charge", **more}).encode()


@pytest.mark.parametrize(
    ("raw", "status", "word"),
    [
        (put(payload={"x": "a" * 1024 * 1024}), 413, "payload_too_large"),
        (put(payload={"x": "a" * 2 * 1024 * 1024}), 413, "too_large"),
        (put(headers={"x": "a" * 9_000}), 413, "payload_too_large"),
        (b"{not json", 400, "bad_request"),
        (b"", 400, "bad_request"),
        (b"[]", 400, "bad_request"),
        (b"\xff\xfe", 400, "bad_request"),
        (DEEP, 400, "invalid_task"),
        (VERY_DEEP, 400, "bad_request"),
        (b'{"name":"n","name":"m"}', 400, "bad_request"),
        (b'{"name":"n","payload":{"a":[{"b":1,"c":2,"\\u0062":3}]}}', 400, "bad_request"),
        (b'{"name":"n","payload":{"a":NaN}}', 400, "bad_request"),
        (b'{"name":"n","payload":{"a":1e999}}', 400, None),
        (b'{"name":"n","payload":{"a":123456789012345678901234567890}}', 400, None),
        (b'{"name":"n","payload":{"a":"\\u0000"}}', 400, "invalid_task"),
        (b'{"name":"n","payload":{"a":"\\ud800"}}', 400, None),
        (b'{"name":"n","payload":[1]}', 400, "bad_request"),
        (put(surprise=1), 400, "bad_request"),
        (put(delay_s=367 * 86_400), 400, "invalid_task"),
        (put(delay_s=float("nan")), 400, "bad_request"),
        (put(delay_s="1"), 400, "bad_request"),
        (put(at="9999-12-31T23:59:59Z"), 400, "invalid_task"),
        (put(at="2026-05-01T12:00:00"), 400, "invalid_task"),
        (put(at="tomorrow"), 400, "bad_request"),
        (put(delay_s=1, at="2026-05-01T12:00:00Z"), 400, "invalid_task"),
        (put(expires_s=0), 400, "invalid_task"),
        (put(expires_s=1, expires_at="2026-05-01T12:00:00Z"), 400, "invalid_task"),
        (put(priority=101), 400, "invalid_task"),
        (put(ordering_key="no good"), 400, "invalid_task"),
        (put(unique_key="x" * 129), 400, "invalid_task"),
        (put(queue="another"), 400, "bad_request"),
        (put(unique_for_s=60), 400, "invalid_task"),
        (put(unique_key="k", unique_for_s=0), 400, "invalid_task"),
        (put(unique_key="k", on_conflict="forget"), 400, "bad_request"),
        (json.dumps({"name": "no good"}).encode(), 400, "invalid_task"),
        (json.dumps({"name": "x" * 129}).encode(), 400, "invalid_task"),
        (json.dumps({"name": "late.cancel"}).encode(), 400, "invalid_task"),
    ],
)
async def test_a_bad_put(tmp_path: Path, raw: bytes, status: int, word: str | None) -> None:
    async with served(tmp_path) as it:
        answer = await it.call("POST", TASKS, raw=raw)
        assert answer.status == status, answer.body
        assert word is None or answer.json["error"] == word
        assert len(answer.body) < 700
        assert b"aaaaaaaaaaaaaaaa" not in answer.body
        assert (await it.call("GET", "/v1/queues")).json == {"queues": []}


async def test_an_eta_in_the_past_runs_now(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        past = put(at="2001-01-01T00:00:00+02:00")
        assert (await it.call("POST", TASKS, raw=past)).status == 201
        assert (await it.call("POST", TASKS, raw=put(delay_s=-5))).status == 201


async def test_a_reserved_queue(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        refused = await it.call("POST", "/v1/queues/late.control/tasks", raw=put())
        assert (refused.status, refused.json["error"]) == (400, "invalid_task")


async def test_bad_batches(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        one = {"name": "charge", "queue": "payments"}
        many = await it.call("POST", "/v1/tasks", {"tasks": [one] * 1_001})
        assert (many.status, many.json["error"]) == (413, "batch_too_large")
        large = {**one, "payload": {"x": "a" * 1_000_000}}
        heavy = await it.call("POST", "/v1/tasks", {"tasks": [large] * 9})
        assert (heavy.status, heavy.json["error"]) == (413, "too_large")
        assert (await it.call("POST", "/v1/tasks", {"tasks": []})).status == 200
        wrong = await it.call("POST", "/v1/tasks", {"tasks": [one, {**one, "priority": 101}]})
        assert wrong.json["message"].startswith("tasks[1]: charge: priority must be")


async def flood(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(120):
        while True:
            writer.write(b"10000\r\n" + b"a" * 65_536 + b"\r\n")
            await writer.drain()


async def test_an_endless_body_is_refused_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends chunks without end gets its answer, and after a while no more."""
    monkeypatch.setattr("late.api.http.protocol.LINGER_S", 0.3)
    async with served(tmp_path) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
        writer.write(
            f"POST {TASKS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        answer = asyncio.ensure_future(reader.readline())
        with pytest.raises(ConnectionError):
            await flood(writer)
        assert b" 413 " in await answer


async def test_the_head_of_a_request_is_bounded(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
        writer.write(b"GET /v1/queues HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 33_000)
        async with asyncio.timeout(120):
            assert b" 400 " in await reader.readline()
        writer.close()


async def test_a_connection_is_kept_for_the_next_request(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
        for _ in range(3):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(120):
                assert b" 200 " in await reader.readline()
                assert (await reader.readuntil(b'{"live":true}')).count(b"HTTP/1.1") == 0
        writer.close()


async def test_an_endless_head_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("late.api.http.protocol.HEADER_S", 0.2)
    async with served(tmp_path) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
        writer.write(b"GET /v1/queues HTTP/1.1\r\nHost: localhost\r\n")
        async with asyncio.timeout(120):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("receive", {"limit": 0}),
        ("receive", {"limit": 101}),
        ("receive", {"wait_s": 61}),
        ("receive", {"wait_s": -1}),
        ("receive", {"visibility_s": 0.5}),
        ("receive", {"visibility_s": 43_201}),
        ("receive", {"limit": True}),
        ("receive", {"consumer": "x" * 129}),
    ],
)
async def test_a_bad_receive(tmp_path: Path, path: str, value: dict[str, object]) -> None:
    async with served(tmp_path) as it:
        answer = await it.call("POST", f"/v1/queues/payments/{path}", value)
        assert (answer.status, answer.json["error"]) == (400, "bad_request")


async def test_what_is_not_there(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        for method, path, status in (
            ("POST", "/v1/queues/other/receive", 404),
            ("POST", "/v1/queues/no%20good/receive", 400),
            ("GET", "/v1/queues/no%20good", 400),
            ("GET", "/nowhere", 404),
            ("DELETE", "/v1/tasks", 405),
        ):
            answer = await it.call(method, path, {"wait_s": 0} if method == "POST" else None)
            assert answer.status == status, (path, answer.body)
            assert answer.json["error"]
        group = await it.call("POST", "/v1/queues/payments/receive", {"group": "none"})
        assert group.status == 404


async def test_only_json_is_taken(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            headers = {"Content-Type": kind}
            answer = await it.call("POST", TASKS, raw=put(), headers=headers)
            assert (answer.status, answer.json["error"]) == (415, "unsupported_media_type")


async def out(it: Served) -> str:
    receiving = asyncio.create_task(it.call("POST", "/v1/queues/payments/receive", {"wait_s": 20}))
    await it.rig.room()
    it.rig.pool.submit([attempt()])
    return str((await receiving).json["tasks"][0]["receipt"])


async def test_receipts_that_are_not_good(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        good = await out(it)
        forged = [
            good[:-1] + ("A" if good[-1] != "A" else "B"),
            "B" + good[1:] if good[0] != "B" else "C" + good[1:],
            good + "A",
            good + "=",
            "nonsense",
            "ä",
            "A" * 1_024,
        ]
        for text in forged:
            for path in ("ack", "nack", "extend"):
                answer = await it.call("POST", f"/v1/{path}", {"receipt": text})
                assert answer.status == 404, text
                assert answer.json["error"] == "unknown_receipt"
                assert answer.json["message"] == "unknown receipt"
        assert (await it.call("POST", "/v1/ack", {"receipt": ""})).status == 400
        assert it.rig.outcomes == []
        assert (await it.call("POST", "/v1/ack", {"receipt": good})).status == 204


async def test_receipts_that_are_stale(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        other = Receipt("w-1", "payments", "default", 0, 1, "task", 1, 1, NOW_US * 2)
        elsewhere = Receipt("w-2", "payments", "default", 0, 1, "task", 1, 1, NOW_US * 2)
        stale = [seal(KEY, other), seal(KEY, elsewhere)]
        expired = await out(it)
        it.rig.now += 31
        await it.rig.ended(1)
        fenced = await out(it)
        it.rig.pool.abandon("default", 0, 1)
        for text in [*stale, expired, fenced]:
            for path in ("ack", "nack", "extend"):
                answer = await it.call("POST", f"/v1/{path}", {"receipt": text})
                assert (answer.status, answer.json["error"]) == (409, "stale_receipt")
                assert answer.json["message"] == "stale receipt"
        assert it.rig.kinds == ["failed"]


async def test_a_receipt_of_a_foreign_queue_looks_like_a_forged_one(tmp_path: Path) -> None:
    async with served(tmp_path, auth=True) as it:
        it.call.token = it.token("payer", "consume", queues=("pay*",))
        stranger = it.token("stranger", "consume", queues=("mail",))
        await it.service.access.load()
        receipt = await out(it)
        it.call.token = stranger
        answer = await it.call("POST", "/v1/ack", {"receipt": receipt})
        assert answer.status == 404
        assert answer.json["message"] == "unknown receipt"


async def test_a_full_queue_refuses(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/served.db", max_backlog={"payments": 2})
    async with served(tmp_path, app=app) as it:
        for _ in range(2):
            assert (await it.call("POST", TASKS, raw=put())).status == 201
        await it.call("GET", "/v1/queues")  # a look publishes the depth
        answer = await it.call("POST", TASKS, raw=put())
        assert (answer.status, answer.json["error"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await it.call("POST", "/v1/queues/mail/tasks", raw=put())).status == 422


async def test_a_database_that_is_away_is_503_and_says_nothing_of_itself(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        (tmp_path / "served.db").rename(tmp_path / "away.db")
        it.service._producer._engine.dispose()  # what was open still sees the file
        answer = await it.call("POST", TASKS, raw=put())
        assert (answer.status, answer.json["error"]) == (503, "unavailable")
        assert "served.db" not in answer.body.decode()
        assert answer.headers["retry-after"] == "1"


async def test_nothing_is_written_for_what_was_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        assert (await it.call("POST", TASKS, raw=put(priority=1_000))).status == 400
        with Control(it.url) as control:
            assert control.status.read().queues == ()
