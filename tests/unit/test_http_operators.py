"""The routes for operators, as a client sees them: waits, results, filters, the audit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from late.api.operator.operators import Operators
from late.control import Control
from late.schema.tables import result
from tests.integration.control_kit import transaction
from tests.unit.api_kit import Served, served
from tests.unit.web_kit import fill

TASKS = "/v1/queues/payments/tasks"


async def put(it: Served) -> str:
    answer = await it.call("POST", TASKS, {"name": "charge", "payload": {"trip": 7}})
    return str(answer.json["task_id"])


def keep_result(url: str, task_id: str) -> None:
    with transaction(url) as connection:
        row = {"consumer_group": "default", "task_id": task_id, "expires_at_us": 10**16,
               "value": b'{"outcome":"done","value":{"total":1.5}}'}  # fmt: skip
        connection.execute(insert(result).values(**row))


def audit(url: str) -> list[tuple[str, str]]:
    with Control(url) as control:
        return [(entry.actor, entry.action) for entry in control.audit.entries()]


async def test_a_word_of_a_path_is_no_task_id(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        for word in ("cancel", "reschedule"):
            answer = await it.call("GET", f"/v1/tasks/{word}")
            assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert (await it.call("GET", "/v1/tasks/other")).status == 400


async def test_a_task_from_its_state_to_its_cancellation(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        task_id = await put(it)
        path = f"/v1/tasks/{task_id}"
        shown = (await it.call("GET", f"{path}?payload=true")).json
        assert (shown["queue"], shown["payload"]) == ("payments", '{"trip":7}')
        assert [each["state"] for each in shown["groups"]] == ["logged"]
        assert (await it.call("GET", path)).json["payload"] is None
        moved = (await it.call("POST", f"{path}/reschedule", {"delay_s": 60})).json
        assert moved["note"] is None
        assert moved["due_at_us"] > shown["enqueued_at_us"] + 59_000_000
        assert (await it.call("POST", f"{path}/cancel", {})).status == 200
        assert audit(it.url) == [("anybody@api", "task.cancel"), ("anybody@api", "task.reschedule")]
        for body in ({}, {"delay_s": 1, "at": "2026-05-01T12:00:00Z"}):
            assert (await it.call("POST", f"{path}/reschedule", body)).status == 400
        absent = await it.call("POST", f"{path}/cancel", {"group": "nope"})
        assert (absent.status, absent.json["error"]) == (404, "not_found")
        never = f"/v1/tasks/{task_id[:-4]}0000"
        assert (await it.call("GET", never)).status == 404
        useless = (await it.call("POST", f"{never}/cancel", {})).json
        assert "will change nothing" in useless["note"]


async def test_tasks_are_listed_and_commanded_together(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        ids = [await put(it) for _ in range(3)]
        first = (await it.call("GET", "/v1/tasks?state=logged&limit=2")).json
        assert (len(first["tasks"]), first["stopped"]) == (2, False)
        assert "payload" not in first["tasks"][0]
        rest = (await it.call("GET", f"/v1/tasks?state=logged&after={first['after']}")).json
        assert (len(rest["tasks"]), rest["after"]) == (1, None)
        assert {each["task_id"] for each in first["tasks"] + rest["tasks"]} == set(ids)
        dry = {"state": "logged", "queue": "payments", "dry_run": True}
        assert (await it.call("POST", "/v1/tasks/cancel", dry)).json["count"] == 3
        assert audit(it.url) == []
        later = {"state": "logged", "all": True, "delay_s": 60, "rate": 5}
        assert (await it.call("POST", "/v1/tasks/reschedule", later)).json["count"] == 3
        assert audit(it.url) == [("anybody@api", "tasks.reschedule")]
        for wrong in ({"state": "logged"}, {"state": "dead", "all": True}, {"all": True}):
            assert (await it.call("POST", "/v1/tasks/cancel", wrong)).status == 400
        assert (await it.call("GET", "/v1/tasks?state=logged&header=x")).status == 400
        assert (await it.call("GET", "/v1/tasks?state=logged&header=a%3Db")).json["tasks"] == []


async def waiting(it: Served, monkeypatch: pytest.MonkeyPatch, path: str) -> asyncio.Task[Any]:
    """Ask, and return when the request has looked once and waits to look again."""
    sleeps = asyncio.Event()
    look = Operators._wait

    async def looked(self: Any, poll: Any) -> Any:
        first = await self._call(poll.look)
        assert not poll.over(first)
        sleeps.set()
        return await look(self, poll)

    monkeypatch.setattr(Operators, "_wait", looked)
    asking = asyncio.create_task(it.call("GET", path))
    async with asyncio.timeout(120):
        await sleeps.wait()
    return asking


async def test_a_request_waits_for_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as it:
        task_id = await put(it)
        path = f"/v1/tasks/{task_id}/result"
        none = {"task_id": task_id, "group": "default", "outcome": None, "value": None}
        assert (await it.call("GET", path)).json == none
        asking = await waiting(it, monkeypatch, f"{path}?wait_s=60")
        await asyncio.to_thread(keep_result, it.url, task_id)
        assert (await asking).json == {**none, "outcome": "done", "value": {"total": 1.5}}
        assert (await it.call("GET", f"{path}?wait_s=61")).status == 400


async def test_a_wait_for_a_group_ends_with_its_time_and_with_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as it:
        token = await put(it)
        path = f"/v1/groups/default/wait?until={token}"
        found = (await it.call("GET", f"{path}&wait_s=0")).json
        assert (found["state"], found["left"]) == ("waiting", {"n": 1, "capped": False})
        asking = await waiting(it, monkeypatch, f"{path}&wait_s=60")
        reset = await it.call("POST", "/v1/groups/default/reset", {"place": "now"})
        assert reset.status == 200
        assert (await asking).json["state"] == "settled"
        assert (await it.call("GET", "/v1/groups/default/wait?until=x")).status == 400
        assert (await it.call("GET", "/v1/groups/default/wait")).status == 400


async def test_a_wait_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path, auth=True) as it:
        it.call.token = it.token("olga", "operate", "enqueue")
        await it.service.access.load()
        path = f"/v1/tasks/{await put(it)}?wait_s=60"
        asking = await waiting(it, monkeypatch, path)
        with Control(it.url) as control:
            control.tokens.revoke("olga")
        await it.service.access.load()
        assert (await asking).status == 401


async def test_dead_letters_are_moved_by_a_filter_or_all(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        letter = (await fill(it.url))[3].task_id
        (found,) = (await it.call("GET", "/v1/dead?queue=mail&limit=5")).json["dead"]
        assert (found["task_id"], found["payload"]) == (letter, None)
        assert (await it.call("GET", "/v1/dead?until=2020-01-01T00:00:00Z")).json == {"dead": []}
        for body in ({}, {"all": True, "queue": "mail"}, {"limit": 1}):
            answer = await it.call("POST", "/v1/dead/purge", body)
            assert (answer.status, answer.json["error"]) == (400, "bad_request"), body
        dry = {"queue": "mail", "dry_run": True}
        assert (await it.call("POST", "/v1/dead/redrive", dry)).json["task_ids"] == [letter]
        moved = await it.call("POST", "/v1/dead/purge", {"all": True})
        assert moved.json["count"] == 1
        assert (await it.call("GET", "/v1/dead")).json == {"dead": []}
        assert audit(it.url) == [("anybody@api", "dead.purge")]


async def test_a_group_begins_at_one_place(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        for start in ({"place": "now", "at": "2026-05-01T12:00:00Z"},
                      {"at": "2999-01-01T00:00:00Z"}, {"at": "2026-05-01T12:00:00"}):  # fmt: skip
            answer = await it.call("POST", "/v1/groups", {"name": "audit", **start})
            assert answer.status == 400, answer.body
        made = {"name": "audit", "place": "beginning", "queues": ["mail"]}
        assert (await it.call("POST", "/v1/groups", made)).json["queues"] == ["mail"]
        assert (await it.call("GET", "/v1/groups/audit")).json["state"] == "idle"
        assert (await it.call("DELETE", "/v1/groups/audit")).json == {"deleted": "audit"}
        assert (await it.call("GET", "/v1/groups/audit")).status == 404


async def test_a_change_of_one_queue_is_not_undone_by_another(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        body = {"knobs": {"rate": 50, "concurrency": "auto", "burst": 5}}
        turned = (await it.call("PATCH", "/v1/queues/mail/knobs", body)).json
        assert turned["after"] == {"rate": 50.0, "concurrency": "auto", "burst": 5}
        undo = {"change": turned["audit_id"]}
        assert (await it.call("POST", "/v1/queues/payments/undo", undo)).status == 404
        assert (await it.call("POST", "/v1/queues/mail/undo", undo)).json["after"] == {}
        wrong = await it.call("PATCH", "/v1/queues/mail/knobs", {"knobs": {"rate": -1}})
        assert (wrong.status, wrong.json["error"]) == (400, "invalid_task")
        changes = (await it.call("GET", "/v1/queues/mail/changes")).json["changes"]
        assert [each["action"] for each in changes] == ["queue.rollback", "queue.set"]


async def test_a_queue_is_deleted_when_it_has_no_tasks(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        await put(it)
        path = "/v1/queues/payments/delete"
        told = (await it.call("POST", path, {"dry_run": True})).json
        assert (told["waiting"]["n"], told["audit_id"]) == (1, None)
        refused = await it.call("POST", path, {"force": True})
        assert (refused.status, refused.json["error"]) == (409, "conflict")
        assert (await it.call("POST", "/v1/queues/mail/delete", {})).json["refused"] is None
        assert audit(it.url) == [("anybody@api", "queue.delete")]


async def test_a_group_is_created_with_a_highest_age(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        body = {"name": "quick", "place": "now", "max_age_s": 3_600}
        assert (await it.call("POST", "/v1/groups", body)).json["max_age_s"] == 3_600.0
        refused = await it.call("POST", "/v1/groups", {**body, "name": "b", "max_age_s": 0.5})
        assert refused.status == 400


async def test_a_group_gets_an_objective_and_loses_it(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        path = "/v1/groups/default"
        set_ = await it.call("PATCH", path, {"settings": {"objective_s": 30}})
        assert (set_.status, set_.json["objective_s"]) == (200, 30.0)
        assert (await it.call("PATCH", path, {"settings": {"objective_s": 0}})).status == 400
        assert (await it.call("PATCH", path, {"settings": {"nope": 1}})).status == 400
        assert (await it.call("PATCH", "/v1/groups/no", {"settings": {"a": 1}})).status == 404
        absent = await it.call("POST", "/v1/lanes/no/resize", {"shards": 4})
        assert (absent.status, absent.json["message"]) == (404, "no lane 'no'; known: default")
        gone = await it.call("PATCH", path, {"settings": {"objective_s": None}})
        assert gone.json["objective_s"] is None
