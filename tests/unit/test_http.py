"""The HTTP API: put, receive, ack, nack, extend and look, as a client sees them."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

import late
from late.model.ids import shard_of
from tests.unit.api_kit import Served, served
from tests.unit.dispatcher_kit import attempt

QUEUE = "/v1/queues/payments"


async def pulled(it: Served, **asked: object) -> dict[str, object]:
    receiving = asyncio.create_task(it.call("POST", f"{QUEUE}/receive", {"wait_s": 20, **asked}))
    await it.rig.room()
    it.rig.pool.submit([attempt("charge", headers='{"traceparent":"00-a-b-01"}', trip=7)])
    answer = await receiving
    assert answer.status == 200, answer.body
    (task,) = answer.json["tasks"]
    return dict(task)


async def test_a_task_is_put_and_is_in_the_log(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        put = {"name": "charge", "payload": {"trip": 7}, "delay_s": 60, "headers": {"a": "b"}}
        answer = await it.call("POST", f"{QUEUE}/tasks", put)
        assert (answer.status, answer.json["created"]) == (201, True)
        assert shard_of(answer.json["task_id"]) < it.app.shards
        stats = (await it.call("GET", QUEUE)).json
        assert (stats["queue"], stats["ready"], stats["dead"]) == ("payments", 1, 0)
        assert [q["queue"] for q in (await it.call("GET", "/v1/queues")).json["queues"]] == [
            "payments"
        ]


async def test_a_batch_is_put_as_a_whole(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        good = [{"name": "charge", "queue": "payments", "payload": {"n": n}} for n in range(3)]
        bad = [*good, {"name": "no name", "queue": "payments"}]
        assert (await it.call("POST", "/v1/tasks", {"tasks": bad})).status == 400
        assert (await it.call("GET", QUEUE)).json["ready"] == 0
        answer = await it.call("POST", "/v1/tasks", {"tasks": good})
        assert answer.status == 201
        assert len({task["task_id"] for task in answer.json["tasks"]}) == 3


async def test_a_repeat_gets_the_first_id_and_another_body_a_conflict(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        key = {"Idempotency-Key": "order-1"}
        put = {"name": "charge", "payload": {"trip": 7}}
        first = await it.call("POST", f"{QUEUE}/tasks", put, headers=key)
        again = await it.call("POST", f"{QUEUE}/tasks", {**put, "unique_key": "order-1"})
        assert (first.status, again.status) == (201, 200)
        assert again.json == {"task_id": first.json["task_id"], "created": False}
        put["payload"] = {"trip": 8}
        other = await it.call("POST", f"{QUEUE}/tasks", put, headers=key)
        assert (other.status, other.json["error"]) == (409, "key_conflict")
        put["on_conflict"] = "replace"
        newer = await it.call("POST", f"{QUEUE}/tasks", put, headers=key)
        assert (newer.status, newer.json["created"]) == (201, True)
        put |= {"on_conflict": "reject", "unique_for_s": 60}
        third = await it.call("POST", f"{QUEUE}/tasks", put, headers=key)
        assert (third.status, third.json["error"]) == (409, "key_conflict")


async def test_a_conflict_names_the_key_that_the_caller_gave(tmp_path: Path) -> None:
    """With a token of some queues another key is stored, and nobody knows that one."""
    async with served(tmp_path, auth=True) as it:
        it.call.token = it.token("node", "enqueue", queues=("payments",))
        await it.service.access.load()
        put = {"name": "charge", "payload": {"trip": 7}, "unique_key": "ik1"}
        first = await it.call("POST", f"{QUEUE}/tasks", put)
        other = await it.call("POST", f"{QUEUE}/tasks", {**put, "payload": {"trip": 8}})
        assert (first.status, other.status) == (201, 409)
        task_id = first.json["task_id"]
        assert (
            other.json["message"] == f"unique key 'ik1' is held by task {task_id} with another body"
        )
        two = {"tasks": [{**put, "queue": "payments", "payload": {"n": n}} for n in (1, 2)]}
        both = await it.call("POST", "/v1/tasks", two)
        assert both.json["message"].startswith("unique key 'ik1' is given to two different tasks")


async def test_a_list_says_that_a_token_of_some_queues_must_name_one(tmp_path: Path) -> None:
    async with served(tmp_path, auth=True) as it:
        it.call.token = it.token("olga", "view", queues=("payments",))
        await it.service.access.load()
        for path in ("/v1/tasks?state=parked", "/v1/dead"):
            answer = await it.call("GET", path)
            assert (answer.status, answer.json["message"].startswith("give `queue`")) == (404, True)
            known = f"{path}{'&' if '?' in path else '?'}queue="
            assert (await it.call("GET", f"{known}payments")).status == 200
            assert "give" not in (await it.call("GET", f"{known}mail")).json["message"]


async def test_a_task_is_received_and_acknowledged(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        task = await pulled(it, visibility_s=60)
        assert (task["name"], task["payload"], task["attempt"]) == ("charge", {"trip": 7}, 1)
        assert task["headers"] == {"traceparent": "00-a-b-01"}
        ends = datetime.fromisoformat(str(task["visible_until"]))
        assert (ends - datetime.fromisoformat(str(task["due_at"]))).total_seconds() == 61
        receipt = {"receipt": task["receipt"]}
        assert (await it.call("POST", "/v1/ack", receipt)).status == 204
        (outcome,) = await it.rig.ended(1)
        assert outcome.kind == "done"
        again = await it.call("POST", "/v1/ack", receipt)
        assert (again.status, again.json["error"]) == (409, "stale_receipt")


@pytest.mark.parametrize(
    ("raw", "status", "kind", "result"),
    [
        (b'{"total":1.50}', 204, "done", b'{"total":1.50}'),
        (b"null", 204, "done", b"null"),
        (b'"%b"' % (b"x" * 300_000), 400, None, None),
        (b"1e400", 400, None, None),
        (b"[" * 100_000, 400, None, None),
    ],
)
async def test_a_result_comes_with_the_acknowledgement(
    tmp_path: Path, raw: bytes, status: int, kind: str | None, result: bytes | None
) -> None:
    async with served(tmp_path) as it:
        for keeps in (True, False):
            receiving = asyncio.create_task(it.call("POST", f"{QUEUE}/receive", {"wait_s": 20}))
            await it.rig.room()
            sent = msgspec.structs.replace(attempt(), keeps_result=keeps, is_replay=keeps)
            it.rig.pool.submit([sent])
            (task,) = (await receiving).json["tasks"]
            assert (task.get("keeps_result", False), task.get("is_replay", False)) == (keeps, keeps)
            body = b'{"receipt":"%b","result":%b}' % (task["receipt"].encode(), raw)
            assert (await it.call("POST", "/v1/ack", raw=body)).status == status
            if kind is None:
                return
        kept, unkept = await it.rig.ended(2)
        assert (kept.kind, kept.result) == (kind, result)
        assert (unkept.kind, unkept.result) == ("done", None)


@pytest.mark.parametrize(
    "counts", ['{"a":-1}', '{"a":1000000000001}', '{"bad name":1}', '{"":1}', '{"a":"1"}']
)
async def test_counts_that_cannot_be_added_up_are_refused_while_the_receipt_is_good(
    tmp_path: Path, counts: str
) -> None:
    """An answer that was accepted and then refused would be work that is done twice."""
    async with served(tmp_path) as it:
        task = await pulled(it)
        body = f'{{"receipt":"{task["receipt"]}","counts":{counts}}}'.encode()
        refused = await it.call("POST", "/v1/ack", raw=body)
        assert (refused.status, refused.json["error"]) == (400, "bad_request")
        good = {"receipt": task["receipt"], "counts": {"orders": 2}}
        assert (await it.call("POST", "/v1/ack", good)).status == 204
        (outcome,) = await it.rig.ended(1)
        assert (outcome.kind, dict(outcome.counts)) == ("done", {"orders": 2})


async def test_what_a_consumer_can_say_instead(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, object], tuple[object, ...]]] = [
        ({"outcome": "retry", "reason": "busy", "after_s": 5}, ("failed", "busy", 5_000_000)),
        ({"outcome": "snooze", "after_s": 60}, ("snooze", None, 60_000_000)),
        ({"outcome": "discard", "reason": "late"}, ("discard", None, None)),
        ({"outcome": "fail", "reason": "no\nway"}, ("failed", "no\\nway", None)),
        ({"outcome": "not_capable"}, ("not_capable", None, None)),
    ]
    async with served(tmp_path) as it:
        for count, (word, wanted) in enumerate(cases, 1):
            task = await pulled(it)
            answer = await it.call("POST", "/v1/nack", {"receipt": task["receipt"], **word})
            assert answer.status == 204, answer.body
            outcome = (await it.rig.ended(count))[-1]
            assert (outcome.kind, outcome.error, outcome.after_us) == wanted
            assert outcome.retryable == (word["outcome"] != "fail")


async def test_a_task_is_extended(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        task = await pulled(it, visibility_s=30)
        it.rig.now += 20
        asked = {"receipt": task["receipt"], "visibility_s": 60}
        answer = await it.call("POST", "/v1/extend", asked)
        assert answer.status == 200
        assert answer.json["visible_until"] > str(task["visible_until"])
        it.rig.now += 59
        assert (await it.call("POST", "/v1/ack", {"receipt": task["receipt"]})).status == 204
        assert (await it.call("POST", "/v1/extend", asked)).status == 409


async def test_whoever_leaves_while_waiting_takes_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.call.port)
        body = b'{"wait_s": 60}'
        writer.write(
            f"POST {QUEUE}/receive HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
            f"\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        await it.rig.room()
        writer.close()
        async with asyncio.timeout(120):
            while it.rig.pool.room:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        del reader
        task = await pulled(it)
        assert task["name"] == "charge"


async def test_an_unreadable_payload_is_a_dead_letter_and_no_delivery(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        receiving = asyncio.create_task(it.call("POST", f"{QUEUE}/receive", {"wait_s": 20}))
        await it.rig.room()
        it.rig.pool.submit([attempt(payload=b"{nonsense")])
        assert (await receiving).json == {"tasks": []}
        (outcome,) = await it.rig.ended(1)
        assert (outcome.kind, outcome.reason) == ("dead", "undecodable")


async def test_registered_tasks_are_checked_by_their_signature(tmp_path: Path) -> None:
    app = late.App(f"sqlite:///{tmp_path}/served.db")

    @app.task(queue="mail")
    async def send(to: str, copies: int = 1) -> None: ...

    async with served(tmp_path, app=app) as it:
        path = "/v1/queues/mail/tasks"
        good = {"name": "send", "payload": {"to": "a@b"}}
        assert (await it.call("POST", path, good)).status == 201
        assert (await it.call("POST", "/v1/queues/pay/tasks", good)).status == 400
        wrong = await it.call("POST", path, {"name": "send", "payload": {"copies": 2}})
        assert (wrong.status, wrong.json["error"]) == (400, "invalid_task")
        unknown = await it.call("POST", path, {"name": "sned"})
        assert (unknown.status, unknown.json["error"]) == (422, "unknown_task")


async def test_the_document_is_the_one_in_docs(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        shown = (await it.call("GET", "/openapi.json")).json
    kept = Path(__file__).parents[2] / "docs" / "openapi.json"
    assert json.loads(kept.read_text()) == shown
