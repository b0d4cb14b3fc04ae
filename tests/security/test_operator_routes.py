"""What each role may ask and change over HTTP: every operation, and what no browser may send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from sqlalchemy import insert as insert_into

from late.api import limits
from late.api.operator.table import OPERATIONS
from late.control import Control
from late.control.groups.groups import WINDOW_KEY
from late.control.groups.window import Progress
from late.model.access.rights import Caller
from late.model.task import Record
from late.schema.engine import make_engine, write
from late.schema.tables import meta, stage
from tests.conformance.kit import task
from tests.integration.control_kit import insert
from tests.unit.api_kit import Answer, Served, served
from tests.unit.test_roles import PEOPLE
from tests.unit.web_kit import add_schedule, fill

# In the order of PEOPLE. 404 is another's, 403 lacks the role.
LISTS = (200, 200, 200, 200, 200, 200, 200, 200)
MAIL = (200, 200, 200, 200, 200, 200, 404, 404)
WHOLE = (200, 200, 200, 404, 404, 404, 404, 404)
OPERATE = (403, 200, 200, 403, 200, 200, 404, 403)
KNOBS = (403, 200, 200, 403, 200, 200, 404, 404)
PURGE = (403, 403, 200, 403, 403, 200, 404, 403)
DELETE = (403, 403, 200, 403, 403, 200, 404, 404)
ADMIN = (403, 403, 200, 404, 404, 404, 404, 404)
NOTHING_RAN = tuple(400 if status == 200 else status for status in MAIL)
NAMED: dict[str, Any] = {"queue": "mail"}
TURN: dict[str, Any] = {"knobs": {"rate": 5}}
EXPECTED: dict[str, tuple[tuple[int, ...], dict[str, Any] | None]] = {
    "GET /v1/tasks/{task_id}": (MAIL, None),
    "GET /v1/tasks/{task_id}/result": (OPERATE, None),
    "GET /v1/tasks?state=parked&queue=mail": (MAIL, None),
    # The cancel of a stage takes tasks of other queues with it.
    "POST /v1/tasks/cancel": (
        (403, 200, 200, 403, 404, 404, 404, 403),
        {**NAMED, "state": "parked", "dry_run": True},
    ),
    "POST /v1/tasks/reschedule": (
        OPERATE,
        {**NAMED, "state": "parked", "delay_s": 60, "dry_run": True},
    ),
    "POST /v1/tasks/{task_id}/cancel": (OPERATE, {}),
    "POST /v1/tasks/{task_id}/reschedule": (OPERATE, {"delay_s": 60}),
    "POST /v1/tasks/{task_id}/edit": (OPERATE, {"payload": {"a": 1}}),
    "GET /v1/workflows": (LISTS, None),
    "GET /v1/workflows/{task_id}": (MAIL, None),
    "POST /v1/workflows/{task_id}/cancel": (OPERATE, {}),
    "POST /v1/workflows/{task_id}/redrive": (OPERATE, {"dry_run": True}),
    "GET /v1/dead?queue=mail": (MAIL, None),
    "POST /v1/dead/redrive": (OPERATE, {**NAMED, "dry_run": True}),
    "POST /v1/dead/purge": (PURGE, NAMED),
    "GET /v1/knobs": (LISTS, None),
    "GET /v1/changes": (WHOLE, None),
    "GET /v1/queues/{queue}/knobs": (MAIL, None),
    "PATCH /v1/queues/{queue}/knobs": (KNOBS, TURN),
    "POST /v1/queues/{queue}/pause": (KNOBS, {}),
    "POST /v1/queues/{queue}/resume": (KNOBS, {}),
    "POST /v1/queues/{queue}/delete": (DELETE, {"dry_run": True}),
    "GET /v1/queues/{queue}/simulation": (NOTHING_RAN, None),
    "GET /v1/queues/{queue}/changes": (MAIL, None),
    "POST /v1/queues/{queue}/undo": (KNOBS, {"change": "queue:mail"}),
    "GET /v1/conflicts": (WHOLE, None),
    "GET /v1/targets": (WHOLE, None),
    "GET /v1/targets/{target}/knobs": (WHOLE, None),
    "PATCH /v1/targets/{target}/knobs": (ADMIN, TURN),
    "POST /v1/targets/{target}/pause": (ADMIN, {}),
    "POST /v1/targets/{target}/resume": (ADMIN, {}),
    "POST /v1/targets/{target}/undo": (ADMIN, {"change": "target:local"}),
    "GET /v1/groups": (WHOLE, None),
    "POST /v1/groups": (ADMIN, {"name": "audit", "place": "now"}),
    "POST /v1/shadows": (ADMIN, {"name": "shadow", "of": "default"}),
    "GET /v1/groups/{group}/compare": (WHOLE, None),
    "GET /v1/groups/{group}": (WHOLE, None),
    "PATCH /v1/groups/{group}": (ADMIN, {"settings": {"objective_s": 60}}),
    "POST /v1/groups/{group}/pause": (ADMIN, {}),
    "POST /v1/groups/{group}/resume": (ADMIN, {}),
    "POST /v1/groups/{group}/reset": (ADMIN, {"place": "now", "dry_run": True}),
    "POST /v1/groups/{group}/replay": (
        ADMIN,
        {
            "since": "2001-01-01T00:00:00Z",
            "until": "2001-01-02T00:00:00Z",
            "rate": 1.0,
            "dry_run": True,
        },
    ),
    "POST /v1/groups/{group}/replay/cancel": (ADMIN, {}),
    "GET /v1/groups/{group}/wait?until={task_id}&wait_s=0": (WHOLE, None),
    "DELETE /v1/groups/{group}": (ADMIN, None),
    "GET /v1/retention": (WHOLE, None),
    "PUT /v1/retention": (ADMIN, {"retention_s": 60}),
    "GET /v1/schedules": (LISTS, None),
    "POST /v1/schedules/{schedule}/pause": (OPERATE, {}),
    "POST /v1/schedules/{schedule}/resume": (OPERATE, {}),
    "POST /v1/schedules/{schedule}/run": (OPERATE, {}),
    "POST /v1/schedules/{schedule}/backfill": (
        OPERATE,
        {"since": "2026-01-01T00:00:00Z", "until": "2026-01-03T00:00:00Z"},
    ),
    "DELETE /v1/schedules/{schedule}": (PURGE, None),
    "GET /v1/status": (LISTS, None),
    "GET /v1/owners": (WHOLE, None),
    "GET /v1/lanes": (WHOLE, None),
    "POST /v1/lanes/{lane}/resize": (ADMIN, {"shards": 9}),
    "GET /v1/autoscalers": (WHOLE, None),
    "GET /v1/autoscalers/decisions": (WHOLE, None),
}
CHANGES = {name: body for name, (_, body) in EXPECTED.items() if not name.startswith("GET")}


@asynccontextmanager
async def filled(folder: Path, **options: Any) -> AsyncIterator[tuple[Served, list[Record]]]:
    """Tasks, a workflow and a schedule of the queue `mail`, a group `audit`, and knobs that
    somebody turned."""
    async with served(folder, auth=True, **options) as it:
        records = await fill(it.url)
        await asyncio.to_thread(prepare, it.url)
        make_stage(it.url, records[3])
        yield it, records


def prepare(url: str) -> None:
    add_schedule(url)
    leave_a_replay(url)
    with Control(url) as control:
        control.groups.create("audit", queues=None, start="now")
        control.groups.shadow("trial", of="default", start="now")
        control.queues.change("queue", "mail", {"rate": 1.0})
        control.queues.change("target", "local", {"rate": 1.0})


def leave_a_replay(url: str) -> None:
    """Leave a replay of a window, of which nothing is put back yet, in the group default."""
    since, until = (datetime(2001, 1, day, tzinfo=UTC) for day in (1, 2))
    kept = Progress(*(round(at.timestamp() * 1_000_000) for at in (since, until)), rate=1.0)
    values = {"key": WINDOW_KEY + "default", "value": msgspec.json.encode(kept).decode()}
    row = insert_into(meta).values(**values)
    write(make_engine(url), lambda connection: connection.execute(row))


def make_stage(url: str, record: Record) -> None:
    """Make a dead task a workflow of its own."""
    row = {
        "workflow_id": record.task_id, "stage": 0, "task_id": record.task_id, "state": "dead",
        "missing": 0, "after": "[]", "next": "[]", "collects": 0, "shard_id": 3, "queue": "mail",
        "name": "count", "payload": b"{}",
    }  # fmt: skip
    write(make_engine(url), lambda connection: connection.execute(insert_into(stage).values(**row)))


def as_person(it: Served, caller: Caller) -> None:
    it.service.access.admit = lambda *_, **__: caller  # type: ignore[method-assign]
    it.service.access.holds = lambda _: True  # type: ignore[method-assign]


async def ask(
    it: Served, records: list[Record], name: str, body: dict[str, Any] | None, **more: Any
) -> Answer:
    method, _, path = name.partition(" ")
    where = path.format(
        task_id=records[3].task_id, queue="mail", target="local", group="default",
        schedule="nightly", lane="default",
    )  # fmt: skip
    if where.endswith("/compare"):
        where = where.replace("groups/default", "groups/trial")
    if method == "DELETE":
        where = where.replace("groups/default", "groups/audit")
    if name == "POST /v1/groups" and body is not None:
        body = {**body, "name": "another"}
    if body is not None and "change" in body:
        body = {"change": await asyncio.to_thread(last_change, it.url, str(body["change"]))}
    return await it.call(method, where, body, **more)


def last_change(url: str, subject: str) -> str:
    with Control(url) as control:
        return control.audit.entries(subject=subject)[0].audit_id


def actors(url: str) -> list[str]:
    with Control(url) as control:
        return [entry.actor for entry in control.audit.entries(limit=1_000)]


def test_every_operation_is_expected() -> None:
    found = {f"{each.method} {each.path}" for each in OPERATIONS}
    assert found == {name.partition("?")[0] for name in EXPECTED}


@pytest.mark.parametrize("who", PEOPLE)
async def test_every_operation_answers_a_role_as_the_table_says(tmp_path: Path, who: str) -> None:
    place = list(PEOPLE).index(who)
    async with filled(tmp_path) as (it, records):
        before = len(actors(it.url))
        as_person(it, PEOPLE[who])
        for name, (expected, body) in EXPECTED.items():
            answer = await ask(it, records, name, body)
            assert answer.status == expected[place], (who, name, answer.body)
        changed = actors(it.url)[: -before or None]
        assert set(changed) <= {f"oidc:{who}"}
        assert bool(changed) is any(EXPECTED[name][0][place] == 200 for name in CHANGES)


async def test_without_the_option_nobody_changes_anything(tmp_path: Path) -> None:
    async with filled(tmp_path, changes=False) as (it, records):
        before = actors(it.url)
        as_person(it, PEOPLE["admin"])
        for name, body in CHANGES.items():
            answer = await ask(it, records, name, body)
            assert (answer.status, answer.json["error"]) == (403, "forbidden"), name
            assert "--api-changes" in answer.json["message"]
        assert actors(it.url) == before


async def test_what_a_page_of_another_site_can_send_changes_nothing(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, records):
        before = actors(it.url)
        as_person(it, PEOPLE["admin"])
        for name in (each for each in CHANGES if each.startswith("POST")):
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
                answer = await ask(it, records, name, CHANGES[name], headers={"Content-Type": kind})
                assert answer.status == 415, name
        for name in CHANGES:  # all others are asked for first, and no answer allows them
            path = name.partition(" ")[2].replace("{", "").replace("}", "")
            asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "DELETE"}
            answer = await it.call("OPTIONS", path, headers=asked)
            assert answer.status == 405
            assert not any(header.startswith("access-control") for header in answer.headers)
        assert actors(it.url) == before


async def test_bodies_are_bounded(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, records):
        as_person(it, PEOPLE["admin"])
        for name in (each for each in CHANGES if not each.startswith("DELETE")):
            most = limits.BODY_BYTES if name.endswith("/edit") else limits.OPERATOR_BYTES
            raw = b'{"surprise":"%b"}' % (b"a" * most)
            answer = await ask(it, records, name, None, raw=raw)
            assert (answer.status, answer.json["error"]) == (413, "too_large"), name


async def test_a_caller_of_some_queues_reads_no_name_of_others(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, records):
        insert(it.url, task(4, queue="pay.in"))
        as_person(it, PEOPLE["pay admin"])
        for name in EXPECTED:
            if name.startswith("GET"):
                text = (await ask(it, records, name, None)).body.decode()
                assert "mail" not in text, name
                assert "nightly" not in text, name
        status = (await it.call("GET", "/v1/status")).json
        assert {each["queue"] for each in status["queues"]} == {"pay.in"}
        assert status["workers"] == status["shards"] == status["groups"] == []
        # What there is not, and what is another's, are told alike.
        gone = f"{str(records[3].task_id)[:-4]}0000"
        for method, of_others, of_none in (
            ("GET", f"/v1/tasks/{records[3].task_id}", f"/v1/tasks/{gone}"),
            ("GET", f"/v1/workflows/{records[3].task_id}", f"/v1/workflows/{gone}"),
            ("POST", f"/v1/workflows/{records[3].task_id}/cancel", f"/v1/workflows/{gone}/cancel"),
            ("POST", "/v1/schedules/nightly/pause", "/v1/schedules/never/pause"),
        ):
            body = None if method == "GET" else {}
            one, other = [await it.call(method, path, body) for path in (of_others, of_none)]
            assert (one.status, one.body) == (other.status, other.body) == (404, one.body)


@pytest.mark.parametrize(
    "query", ["until=null", "until=0.5",
              "limit=0", "limit=x", "limit=1001", "surprise=1", "queue=a&queue=b",
              "since=2026-05-01T12:00:00", "queue=a%20b"],
)  # fmt: skip
async def test_a_query_that_cannot_be_read(tmp_path: Path, query: str) -> None:
    async with served(tmp_path) as it:
        answer = await it.call("GET", f"/v1/dead?{query}")
        assert (answer.status, answer.json["error"]) == (400, "bad_request"), answer.body
        named = await it.call("GET", "/v1/dead?queue=null")
        assert named.status == 200


async def test_a_payload_is_read_by_operators_alone(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, records):
        for who, status in (("mail view", 403), ("mail operate", 200), ("pay admin", 404)):
            as_person(it, PEOPLE[who])
            path = f"/v1/tasks/{records[3].task_id}"
            answer = await it.call("GET", f"{path}?payload=true")
            assert answer.status == status
            assert ('"payload":"{' in answer.body.decode()) is (status == 200)
            assert (await it.call("GET", f"{path}?everywhere=true")).status == status


async def test_a_token_of_another_queue_and_one_that_only_looks(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, records):
        before = actors(it.url)
        tokens = [
            it.token("payer", "operate", queues=("pay*",)),
            it.token("eve", "view"),
            it.token("shop", "enqueue", "consume"),
        ]
        await it.service.access.load()
        for it.call.token in (*tokens, None):
            for name, body in CHANGES.items():
                answer = await ask(it, records, name, body)
                assert answer.status in (401, 403, 404), (name, answer.body)
        assert actors(it.url)[3:] == before  # the three tokens


@pytest.mark.parametrize(
    "text", ["a b", "a\0b", "g" * 129, "ä", "*"], ids=json.dumps
)  # fmt: skip
async def test_a_name_that_nothing_can_have(tmp_path: Path, text: str) -> None:
    bad = quote(text, safe="")
    paths = (f"tasks/{bad}", f"groups/{bad}", f"queues/{bad}/knobs", f"targets/{bad}/knobs")
    async with served(tmp_path) as it:
        for path in paths:
            answer = await it.call("GET", f"/v1/{path}")
            assert (answer.status, answer.json["error"]) == (400, "invalid_task"), path
        assert (await it.call("DELETE", f"/v1/schedules/{bad}")).status == 400
