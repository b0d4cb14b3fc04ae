"""`late.v1.Operator`, as a client sees it: the answers and the refusals are those of HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from sqlalchemy import insert

from late.api import limits
from late.api.grpc import operators
from late.api.operator.operators import Operators
from late.control import Control
from late.schema.tables import result
from late.v1 import operator_pb2
from tests.integration.control_kit import transaction
from tests.unit.api_kit import Served, served
from tests.unit.operator_rpc_kit import request, rpc
from tests.unit.test_http_operators import audit, put
from tests.unit.web_kit import add_schedule, fill

BIG = 2**53 + 1
"""No double is this number."""
STARTED_US = 1_700_000_000_000_000


async def test_a_task_from_its_state_to_its_cancellation(tmp_path: Path) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        task_id = await put(it)
        shown = await call("ShowTask", task_id=task_id, payload=True)
        assert (shown.queue, shown.payload, len(shown.groups)) == ("payments", '{"trip":7}', 1)
        assert shown.groups[0].state == "logged"
        assert shown.enqueued_at_us == shown.created_at_us > STARTED_US
        bare = await call("ShowTask", task_id=task_id)
        assert not bare.HasField("payload")
        moved = await call("RescheduleTask", task_id=task_id, delay_s=60)
        assert not moved.HasField("note")
        assert moved.due_at_us > shown.enqueued_at_us + 59_000_000
        at = await call("RescheduleTask", task_id=task_id, at="2020-05-01T12:00:00.000001Z")
        assert at.due_at_us == 1_588_334_400_000_001
        assert (await call("CancelTask", task_id=task_id)).command
        commands = ["task.cancel", "task.reschedule", "task.reschedule"]
        assert audit(it.url) == [("anybody@api", each) for each in commands]


def answer_of(message: Any) -> Any:
    """An answer as HTTP has it, as far as its fields are set; JSON in a text is read."""
    found = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return of_json(found)


def of_json(value: Any) -> Any:
    """Without null, empty lists and maps, zeros and false, which a message does not tell apart."""
    if isinstance(value, dict):
        kept = {key: of_json(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each not in (None, False, "", [], {}, 0)}
    if isinstance(value, list):
        return [of_json(each) for each in value]
    return int(value) if isinstance(value, str) and value.isdecimal() else value


@pytest.mark.parametrize(
    ("path", "name", "fields"),
    [
        ("/v1/dead?queue=mail", "ListDead", {"queue": "mail"}),
        ("/v1/tasks?state=parked", "ListTasks", {"state": "parked"}),
        ("/v1/tasks?state=logged&limit=1", "ListTasks", {"state": "logged", "limit": 1}),
        ("/v1/knobs", "ListKnobs", {}),
        ("/v1/changes", "ListChanges", {}),
        ("/v1/queues/mail/knobs", "ShowQueueKnobs", {"queue": "mail"}),
        ("/v1/targets/local/knobs", "ShowTargetKnobs", {"target": "local"}),
        ("/v1/groups/audit", "ShowGroup", {"group": "audit"}),
        ("/v1/schedules", "ListSchedules", {}),
        ("/v1/lanes", "ListLanes", {}),
        ("/v1/retention", "ShowRetention", {}),
    ],
)
async def test_an_answer_is_that_of_http(
    tmp_path: Path, path: str, name: str, fields: dict[str, Any]
) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        await fill(it.url)
        add_schedule(it.url)
        with Control(it.url) as control:
            control.queues.change("queue", "mail", {"rate": 1.5, "concurrency": "auto"})
            control.queues.change("target", "local", {"concurrency": 7, "paused": True})
            control.groups.create("audit", queues=["mail"], start="now")
            control.groups.set_retention(60)
        answer = of_json((await it.call("GET", path)).json)
        assert answer, "nothing to compare"
        told = answer_of(await call(name, **fields))
        for each in (answer, told):
            each.pop("now_us", None)  # two looks have two times
        assert told == answer


async def test_a_result_keeps_every_digit(tmp_path: Path) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        task_id = await put(it)
        none = await call("TaskResult", task_id=task_id)
        assert (none.group, none.HasField("outcome"), none.HasField("value")) == (
            "default", False, False,
        )  # fmt: skip
        with transaction(it.url) as connection:
            row = {"consumer_group": "default", "task_id": task_id, "expires_at_us": 10**16,
                   "value": b'{"outcome":"done","value":{"total":%d}}' % BIG}  # fmt: skip
            connection.execute(insert(result).values(**row))
        found = await call("TaskResult", task_id=task_id)
        assert (found.outcome, json.loads(found.value)) == ("done", {"total": BIG})


class Waiting:
    """Tells when a call has looked once and waits, and when its wait has ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()
        wait = Operators._wait

        async def told(it: Any, poll: Any) -> Any:
            assert not poll.over(await it._call(poll.look))
            self.begun.set()
            try:
                return await wait(it, poll)
            finally:
                self.ended.set()

        monkeypatch.setattr(Operators, "_wait", told)


async def test_a_call_waits_for_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call, asyncio.timeout(120):
        token = await put(it)
        now = await call("WaitForGroup", group="default", until=token, wait_s=0)
        assert (now.state, now.left.n, now.left.capped) == ("waiting", 1, False)
        waiting = Waiting(monkeypatch)
        asking = asyncio.create_task(
            call("WaitForGroup", group="default", until=token, wait_s=60, timeout_s=300)
        )
        await waiting.begun.wait()
        await call("ResetGroup", group="default", place="now")
        assert (await asking).state == "settled"


async def test_a_wait_ends_before_the_deadline_of_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "DEADLINE_ROOM_S", 1_000.0)
    async with served(tmp_path) as it, rpc(it.rpc.port) as call, asyncio.timeout(50):
        token = await put(it)
        found = await call("WaitForGroup", group="default", until=token, wait_s=60, timeout_s=300)
        assert found.state == "waiting"


async def test_a_wait_ends_with_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call, asyncio.timeout(50):
        waiting = Waiting(monkeypatch)
        asking = asyncio.create_task(call("ShowTask", task_id=await put(it), wait_s=60))
        await waiting.begun.wait()
        asking.cancel()
        await waiting.ended.wait()


async def test_a_wait_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path, auth=True) as it, asyncio.timeout(50):
        it.call.token = it.token("olga", "operate", "enqueue")
        await it.service.access.load()
        async with rpc(it.rpc.port, it.call.token) as call:
            waiting = Waiting(monkeypatch)
            asking = asyncio.create_task(
                call.refused("ShowTask", task_id=await put(it), wait_s=60, timeout_s=300)
            )
            await waiting.begun.wait()
            with Control(it.url) as control:
                control.tokens.revoke("olga")
            await it.service.access.load()
            assert (await asking)[0] == "UNAUTHENTICATED"


async def test_dead_letters_are_moved_by_a_filter_or_all(tmp_path: Path) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        letter = (await fill(it.url))[3].task_id
        (found,) = (await call("ListDead", queue="mail", limit=5)).dead
        assert (found.task_id, found.HasField("payload"), dict(found.headers)) == (
            letter, False, {"a": "b"},
        )  # fmt: skip
        assert not (await call("ListDead", until="2020-01-01T00:00:00Z")).dead
        for fields in ({}, {"all": True, "queue": "mail"}, {"limit": 1}):
            for name in ("PurgeDead", "RedriveDead"):
                assert (await call.refused(name, **fields))[0] == "INVALID_ARGUMENT"
        dry = await call("RedriveDead", queue="mail", dry_run=True)
        assert list(dry.task_ids) == [letter]
        payload = json.dumps({"trip": BIG})
        assert len((await call("EditTask", task_id=letter, payload=payload)).commands) == 1
        assert (await call("PurgeDead", all=True)).count == 1
        assert audit(it.url) == [("anybody@api", "dead.purge"), ("anybody@api", "task.redrive")]


async def test_knobs_are_turned_and_taken_back(tmp_path: Path) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        knobs = {"rate": 50, "concurrency": "auto", "max_backlog": 10**12, "paused": True}
        turned = await call("SetQueueKnobs", queue="mail", knobs=knobs)
        assert turned.after.rate == 50
        assert turned.after.max_backlog == 10**12
        assert turned.after.concurrency.string_value == "auto"
        back = await call("SetQueueKnobs", queue="mail", knobs={"concurrency": 5, "paused": None})
        assert back.after.concurrency.number_value == 5
        assert not back.after.HasField("paused")
        other = await call.refused("UndoQueueChange", queue="payments", change=turned.audit_id)
        assert other[0] == "NOT_FOUND"
        undone = await call("UndoQueueChange", queue="mail", change=back.audit_id)
        assert undone.after.paused
        for knob in ({"rate": float("nan")}, {"rate": float("inf")}, {"rate": -1}, {"nope": 1}):
            message = request("SetQueueKnobs", {"queue": "mail"})
            for key, value in knob.items():
                message.knobs[key].number_value = value
            assert (await call.refused("SetQueueKnobs", message))[0] == "INVALID_ARGUMENT"
        for empty in ("a value of no kind", "a list"):
            message = request("SetQueueKnobs", {"queue": "mail"})
            message.knobs["rate"].SetInParent()
            if empty == "a list":
                message.knobs["rate"].list_value.values.add().number_value = 1
            assert (await call.refused("SetQueueKnobs", message))[0] == "INVALID_ARGUMENT"
        assert (await call("ShowQueueKnobs", queue="mail")).set.rate == 50
        assert (await call("PauseQueue", queue="mail", timeout_s=60)).after.paused


async def test_groups_schedules_and_the_deployment(tmp_path: Path) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        add_schedule(it.url)
        made = await call("CreateGroup", name="audit", place="beginning", queues=["mail"])
        assert (list(made.queues), made.state) == (["mail"], "idle")
        assert (await call("PauseGroup", group="audit")).state == "paused"
        assert {each.name for each in (await call("ListGroups")).groups} == {"audit", "default"}
        assert (await call("DeleteGroup", group="audit")).deleted == "audit"
        assert (await call.refused("ShowGroup", group="audit"))[0] == "NOT_FOUND"
        assert (await call("PauseSchedule", schedule="nightly")).paused
        assert (await call("RunSchedule", schedule="nightly")).task_id
        day = {"since": "2001-01-01T00:00:00Z", "until": "2001-01-02T00:00:00Z", "dry_run": True}
        assert (await call("BackfillSchedule", schedule="nightly", **day)).enqueued == 1
        assert (await call("RemoveSchedule", schedule="nightly")).removed == "nightly"
        assert (await call("SetRetention", retention_s=60)).retention_s == 60
        # A number that is left out is no zero, which would keep nothing.
        unset = await call.refused("SetRetention")
        assert unset == ("INVALID_ARGUMENT", "Object missing required field `retention_s`")
        assert (await call("ShowRetention")).retention_s == 60
        assert (await call("SetRetention", retention_s=0)).retention_s == 0
        (lane,) = (await call("ResizeLane", lane="default", shards=9)).lanes
        assert lane.shards == 9
        status = await call("ShowStatus")
        assert [each.queue for each in status.queues] == ["mail"]
        assert status.now_us > STARTED_US


WRONG: list[tuple[str, str, Any, str, dict[str, Any]]] = [
    ("GET", "/v1/dead?limit=0", None, "ListDead", {"limit": 0}),
    ("GET", "/v1/dead?limit=1001", None, "ListDead", {"limit": 1001}),
    ("GET", "/v1/dead?group=nope", None, "ListDead", {"group": "nope"}),
    ("GET", "/v1/dead?queue=a%20b", None, "ListDead", {"queue": "a b"}),
    ("GET", "/v1/tasks/x", None, "ShowTask", {"task_id": "x"}),
    ("GET", "/v1/tasks?state=lost", None, "ListTasks", {"state": "lost"}),
    ("GET", "/v1/tasks?state=done&key=k", None, "ListTasks", {"state": "done", "key": "k"}),
    ("GET", "/v1/tasks?state=open&after=x", None, "ListTasks", {"state": "open", "after": "x"}),
    ("POST", "/v1/tasks/cancel", {"state": "parked"}, "CancelTasks", {"state": "parked"}),
    ("POST", "/v1/tasks/reschedule", {"state": "parked", "all": True}, "RescheduleTasks",
     {"state": "parked", "all": True}),
    ("GET", "/v1/groups/a%20b", None, "ShowGroup", {"group": "a b"}),
    ("GET", "/v1/groups/nope", None, "ShowGroup", {"group": "nope"}),
    ("GET", "/v1/groups/default/wait", None, "WaitForGroup", {"group": "default"}),
    ("GET", "/v1/groups/default/wait?until=x&wait_s=61", None, "WaitForGroup",
     {"group": "default", "until": "x", "wait_s": 61}),
    ("POST", "/v1/groups", {}, "CreateGroup", {}),
    ("POST", "/v1/groups", {"name": "a", "place": "end"}, "CreateGroup",
     {"name": "a", "place": "end"}),
    ("POST", "/v1/groups/default/reset", {}, "ResetGroup", {"group": "default"}),
    ("PATCH", "/v1/queues/mail/knobs", {}, "SetQueueKnobs", {"queue": "mail"}),
    ("PATCH", "/v1/queues/mail/knobs", {"knobs": {"rate": -1}}, "SetQueueKnobs",
     {"queue": "mail", "knobs": {"rate": -1}}),
    ("POST", "/v1/lanes/default/resize", {}, "ResizeLane", {"lane": "default"}),
    ("POST", "/v1/lanes/nope/resize", {"shards": 4}, "ResizeLane", {"lane": "nope", "shards": 4}),
    ("POST", "/v1/schedules/nope/pause", {}, "PauseSchedule", {"schedule": "nope"}),
    ("POST", "/v1/dead/purge", {}, "PurgeDead", {}),
]  # fmt: skip
CODES = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND"}


async def test_refusals_have_the_texts_of_http(tmp_path: Path) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        for method, path, body, name, fields in WRONG:
            answer = await it.call(method, path, body)
            text = answer.json["message"]
            assert await call.refused(name, **fields) == (CODES[answer.status], text), path
        assert audit(it.url) == []


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
async def test_numbers_that_json_does_not_have(tmp_path: Path, number: float) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        task_id = await put(it)
        for name, fields in (
            ("ShowTask", {"task_id": task_id, "wait_s": number}),
            ("RescheduleTask", {"task_id": task_id, "delay_s": number}),
            ("RedriveDead", {"all": True, "rate": number}),
            ("SetRetention", {"retention_s": number}),
        ):
            message = getattr(operator_pb2, f"{name}Request")(**fields)
            assert (await call.refused(name, message))[0] == "INVALID_ARGUMENT", name
        assert audit(it.url) == []


async def test_names_that_are_left_out_and_ids_that_are_none(tmp_path: Path) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        for name in ("ShowTask", "ShowGroup", "PauseQueue", "PauseTarget", "PauseSchedule"):
            assert (await call.refused(name))[0] == "INVALID_ARGUMENT", name
        for text in ("a\0b", "g" * 129, "ä", "*"):
            assert (await call.refused("ShowGroup", group=text))[0] == "INVALID_ARGUMENT"
        assert audit(it.url) == []


DEEP = '{"a":' + "[" * 50_000 + "]" * 50_000 + "}"


@pytest.mark.parametrize(
    "payload",
    ["{", "nul", '{"a":1}, "group": "other"', "[1]", "{}x", "", pytest.param(DEEP, id="deep")],
)
async def test_arguments_that_are_no_json(tmp_path: Path, payload: str) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        letter = (await fill(it.url))[3].task_id
        refused = await call.refused("EditTask", task_id=letter, payload=payload)
        assert refused[0] == "INVALID_ARGUMENT"
        assert audit(it.url) == []


async def test_a_field_of_another_version_is_refused(tmp_path: Path) -> None:
    """A filter that a server does not know would match everything else that is asked for."""
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        await fill(it.url)
        known = request("PurgeDead", {"queue": "mail"}).SerializeToString()
        newer = operator_pb2.PurgeDeadRequest.FromString(known + b"\xfa\x07\x01x")
        code, text = await call.refused("PurgeDead", newer)
        assert (code, "does not know" in text) == ("INVALID_ARGUMENT", True)
        assert len((await call("ListDead")).dead) == 1


async def test_messages_have_bounds(tmp_path: Path) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        letter = (await fill(it.url))[3].task_id
        large = "x" * limits.OPERATOR_BYTES
        refused = await call.refused("ListDead", error=large)
        assert refused == ("RESOURCE_EXHAUSTED", f"the message is above {len(large)} bytes")
        payload = json.dumps({"a": large})
        assert (await call("EditTask", task_id=letter, payload=payload)).commands
        payload = json.dumps({"a": "x" * limits.BODY_BYTES})
        refused = await call.refused("EditTask", task_id=letter, payload=payload)
        assert refused[0] == "RESOURCE_EXHAUSTED"
        method = "/late.v1.Operator/ListDead"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{it.rpc.port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary(method, request_serializer=bytes)(b"\xff\xff")
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_without_the_option_nobody_changes_anything(tmp_path: Path) -> None:
    async with served(tmp_path, changes=False) as it, rpc(it.rpc.port) as call:
        assert not (await call("ListDead")).dead
        body = {"knobs": {"rate": 5}}
        text = (await it.call("PATCH", "/v1/queues/mail/knobs", body)).json["message"]
        refused = await call.refused("SetQueueKnobs", queue="mail", **body)
        assert refused == ("PERMISSION_DENIED", text)
        assert audit(it.url) == []


async def test_operators_over_both_ways_share_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests over HTTP that read the database leave less to gRPC, and all are answered."""
    monkeypatch.setattr("late.api.operator.operators.OPERATOR_CALLS", 1)
    running, most = 0, 0
    one = Operators._call

    async def counted(it: Served, *args: Any) -> Any:
        nonlocal running, most

        def call() -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                return args[0](*args[1:])
            finally:
                running -= 1

        return await one(it, call)  # type: ignore[arg-type]

    monkeypatch.setattr(Operators, "_call", counted)
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        asked = [it.call("GET", "/v1/knobs") for _ in range(4)]
        await asyncio.gather(*asked, *(call("ListKnobs") for _ in range(4)))
        assert most == 1


async def test_a_queue_is_deleted_when_it_has_no_tasks(tmp_path: Path) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        await put(it)
        told = await call("DeleteQueue", queue="payments", dry_run=True)
        assert told.waiting.n == 1
        assert "1 waiting" in told.refused
        assert not (await call("DeleteQueue", queue="mail")).HasField("refused")
        assert audit(it.url) == [("anybody@api", "queue.delete")]


async def test_a_group_gets_an_objective_and_loses_it(tmp_path: Path) -> None:
    async with served(tmp_path) as it, rpc(it.rpc.port) as call:
        found = await call("SetGroup", group="default", settings={"objective_s": 30.0})
        assert found.objective_s == 30.0
        found = await call("SetGroup", group="default", settings={"objective_s": None})
        assert not found.HasField("objective_s")
