"""A CloudEvent as a task, put over HTTP: what becomes of each attribute, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import late
from late.api.errors import BadRequest
from late.api.http.cloud_events import put_of
from late.api.http.event_modes import BATCH, event_of
from late.control import Control
from late.errors import LateError
from tests.unit.api_kit import Answer, Served, served

TASKS = "/v1/queues/payments/tasks"
KIND = {"Content-Type": "application/cloudevents+json; charset=UTF-8"}
MODE = "application/cloudevents+json"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HOP = "00-0af7651916cd43dd8448eb211c80319c-b9c7c989f97918e1-01"
EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "id": "A234-1234",
    "source": "https://shop.example/trips",
    "type": "com.example.trip.paid",
    "data": {"trip": 7},
}


async def put(it: Served, event: Any, **headers: str) -> Answer:
    sent = {**KIND, **{name.replace("_", "-"): text for name, text in headers.items()}}
    raw = event if isinstance(event, bytes) else json.dumps(event).encode()
    return await it.call("POST", TASKS, raw=raw, headers=sent)


def of(**attributes: Any) -> Any:
    return put_of({**EVENT, **attributes}, "payments")


async def test_an_event_is_a_task_and_a_repeat_of_it_is_the_same(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        first = await put(it, {**EVENT, "subject": "trip/7", "comexamplenumber": 5})
        assert (first.status, first.json["created"]) == (201, True)
        again = await put(it, EVENT, idempotency_key="another one", traceparent=HOP)
        assert (again.status, again.json["created"]) == (200, False)
        assert again.json["task_id"] == first.json["task_id"]
        other = await put(it, {**EVENT, "source": "https://shop.example/refunds"})
        assert (other.status, other.json["created"]) == (201, True)
        clash = await put(it, {**EVENT, "data": {"trip": 8}})
        assert (clash.status, clash.json["error"]) == (409, "key_conflict")
        assert clash.json["message"].startswith("id, source: ")


def test_the_attributes_are_fields_or_travel_in_the_headers() -> None:
    made = of(
        datacontenttype="application/json; charset=utf-8",
        dataschema="https://shop.example/schema",
        subject="trip/7",
        time="2018-04-05T17:31:00Z",
        partitionkey="trip-7",
        expirytime="2026-12-01T00:00:00+02:00",
        traceparent=PARENT,
        tracestate="a=b",
        latepriority=-5,
        latedelay="60",
        comexampleflag=True,
        comexamplenumber=-7,
        unset=None,
    )
    assert (made.name, made.queue, made.payload) == (EVENT["type"], "payments", {"trip": 7})
    assert (made.ordering_key, made.priority, made.delay_s, made.at) == ("trip-7", -5, 60, None)
    assert made.expires_at.isoformat() == "2026-12-01T00:00:00+02:00"
    assert made.unique_for_s == 86_400
    assert made.on_conflict is None
    assert made.headers == {
        "traceparent": PARENT,
        "tracestate": "a=b",
        "ce-id": EVENT["id"],
        "ce-source": EVENT["source"],
        "ce-subject": "trip/7",
        "ce-time": "2018-04-05T17:31:00Z",
        "ce-datacontenttype": "application/json; charset=utf-8",
        "ce-dataschema": "https://shop.example/schema",
        "ce-partitionkey": "trip-7",
        "ce-comexampleflag": "true",
        "ce-comexamplenumber": "-7",
    }


def test_the_key_is_of_source_and_id_and_nothing_else() -> None:
    keys = {
        of(id=key, source=source, data={}).unique_key
        for key, source in (("a", "/b"), ("a", "/bc"), ("ca", "/b"), ("/b", "a"))
    }
    assert len(keys) == 4
    assert of(subject="x", time="2018-04-05T17:31:00Z").unique_key == of().unique_key
    assert (of(lateuniquefor=60).unique_for_s, of(lateuniquefor=0).unique_for_s) == (60, None)


def test_what_a_push_adds_may_come_back_and_is_not_kept() -> None:
    made = of(lateattempt=2, latetaskid="x", lategroup="default", latereplay=False)
    assert set(made.headers) == {"ce-id", "ce-source"}


@pytest.mark.parametrize("data", [None, {}])
def test_no_data_is_no_arguments(data: Any) -> None:
    assert of(data=data).payload == {}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"specversion": None}, "specversion"),
    ({"specversion": "0.3"}, "specversion"),
    ({"specversion": 1.0}, "specversion"),
    ({"id": None}, "id"),
    ({"id": ""}, "id"),
    ({"id": 5}, "id"),
    ({"id": "a\nb"}, "id"),
    ({"id": "\uffff"}, "id"),
    ({"source": None}, "source"),
    ({"source": ""}, "source"),
    ({"source": "not a uri"}, "source"),
    ({"source": "/%zz"}, "source"),
    ({"type": None}, "type"),
    ({"type": "two words"}, "type"),
    ({"type": "x" * 129}, "type"),
    ({"data": [1]}, "data"),
    ({"data": "text"}, "data"),
    ({"data": 5}, "data"),
    ({"data_base64": "AA=="}, "data_base64"),
    ({"datacontenttype": "application/xml"}, "datacontenttype"),
    ({"datacontenttype": "json"}, "datacontenttype"),
    ({"time": "yesterday"}, "time"),
    ({"time": "2018-04-05T17:31:00"}, "time"),
    ({"time": 1_522_949_460}, "time"),
    ({"subject": ["a"]}, "subject"),
    ({"subject": ""}, "subject"),
    ({"dataschema": ""}, "dataschema"),
    ({"lateattempt": [1]}, "lateattempt"),
    ({"subject": "\u0007"}, "subject"),
    ({"partitionkey": ""}, "partitionkey"),
    ({"partitionkey": "two words"}, "partitionkey"),
    ({"expirytime": "soon"}, "expirytime"),
    ({"traceparent": "00-a-b-01"}, "traceparent"),
    ({"tracestate": "a" * 600}, "tracestate"),
    ({"latepriority": 101}, "latepriority"),
    ({"latepriority": True}, "latepriority"),
    ({"latepriority": 1.5}, "latepriority"),
    ({"latedelay": -1}, "latedelay"),
    ({"latedelay": "0x10"}, "latedelay"),
    ({"latedelay": 10**12}, "latedelay"),
    ({"lateat": "2026-05-01T12:00"}, "lateat"),
    ({"lateat": "2026-05-01T12:00:00Z", "latedelay": 5}, "lateat"),
    ({"lateuniquefor": "day"}, "lateuniquefor"),
    ({"latepriorty": 5}, "latepriorty"),
    ({"myExtension": "a"}, "myExtension"),
    ({"my_extension": "a"}, "my_extension"),
    ({"number": 1.5}, "number"),
    ({"number": 2**31}, "number"),
    ({"nested": {"a": 1}}, "nested"),
    ({"long": "a" * 9_000}, "long"),
]


@pytest.mark.parametrize(("attributes", "name"), BAD, ids=str)
def test_a_bad_event_is_refused_by_the_name_of_its_attribute(
    attributes: dict[str, Any], name: str
) -> None:
    with pytest.raises(LateError) as raised:
        of(**attributes)
    assert str(raised.value).strip("'").startswith(name)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"null", b"\xff", b'{"id": "\\ud800"}'])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        put_of(event_of(raw, MODE, []) or {}, "payments")


async def test_what_the_task_itself_refuses_names_the_attribute_too(tmp_path: Path) -> None:
    app = late.App(f"sqlite:///{tmp_path}/served.db")

    @app.task(queue="mail")
    async def send(to: str) -> None: ...

    async with served(tmp_path, app=app) as it:
        tasks = "/v1/queues/mail/tasks"

        async def ask(**attributes: Any) -> Answer:
            raw = json.dumps({**EVENT, **attributes}).encode()
            return await it.call("POST", tasks, raw=raw, headers=KIND)

        unknown = await ask()
        assert (unknown.status, unknown.json["error"]) == (422, "unknown_task")
        assert unknown.json["message"].startswith("type: ")
        wrong = await ask(type="send", data={"too": "ann"})
        assert wrong.status == 400
        assert wrong.json["message"].startswith("data: ")
        large = await ask(type="send", data={"to": "a" * (1024 * 1024)})
        assert (large.status, large.json["error"]) == (413, "payload_too_large")
        assert large.json["message"].startswith("data: ")
        far = await ask(type="send", data={"to": "ann"}, lateat="2999-01-01T00:00:00Z")
        assert far.status == 400
        assert (await ask(type="send", data={"to": "ann"})).status == 201


async def test_the_trace_is_the_events_or_else_the_requests(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        found = []
        for number, event in enumerate(({"traceparent": PARENT}, {})):
            answer = await put(it, {**EVENT, "id": str(number), **event}, traceparent=HOP)
            with Control(it.url) as control:
                record = control.tasks.show(answer.json["task_id"])
            found.append(record.headers["traceparent"])
        assert found == [PARENT, HOP]


BINARY = {f"ce-{name}": value for name, value in EVENT.items() if name != "data"}


async def test_an_event_in_headers_is_the_same_task_as_one_in_json(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        sent = {**BINARY, "ce-latepriority": "5", "ce-subject": "trip%207%25", "traceparent": HOP}
        first = await it.call("POST", TASKS, {"trip": 7}, headers=sent)
        assert (first.status, first.json["created"]) == (201, True)
        again = await put(it, EVENT)
        assert (again.status, again.json["task_id"]) == (200, first.json["task_id"])
        with Control(it.url) as control:
            record = control.tasks.show(first.json["task_id"])
        assert record.headers["traceparent"] == HOP
        assert record.headers["ce-subject"] == "trip 7%"
        assert record.headers["ce-datacontenttype"] == "application/json"
        clash = await it.call("POST", TASKS, {"trip": 8}, headers=sent)
        assert (clash.status, clash.json["message"][:12]) == (409, "id, source: ")


async def test_one_in_json_counts_before_headers_and_other_headers_are_none(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        answer = await put(it, EVENT, ce_specversion="0.3", ce_type="other")
        assert answer.status == 201
        plain = {"name": "plain", "payload": {}}
        answer = await it.call("POST", TASKS, plain, headers={"ce-type": "other"})
        assert answer.status == 201
        with Control(it.url) as control:
            assert control.tasks.show(answer.json["task_id"]).name == "plain"


def binary(body: bytes = b"", *, without: str = "", **headers: str) -> Any:
    given = {**BINARY, "content-type": "application/json", **headers}
    pairs = [(name.replace("_", "-"), value) for name, value in given.items() if name != without]
    return event_of(body, "application/json", pairs)


def test_the_texts_of_headers_are_decoded_once() -> None:
    event = binary(b"", ce_a='"a \\"b\\""', ce_b="%25C3%25A6", ce_c="%C3%A6", ce_d='a"b')
    assert put_of(event | {"latepriority": "5"}, "payments").priority == 5
    assert [event[name] for name in "abcd"] == ['a "b"', "%C3%A6", "\xe6", 'a"b']
    assert put_of(event, "payments").payload == {}


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"ce_subject": "\xe6"}, "subject"),
        ({"ce_subject": "%ff"}, "subject"),
        ({"ce_data": "{}"}, "data: the body"),
        ({"ce_datacontenttype": "application/json"}, "datacontenttype: send it"),
        ({"ce-type": "a", "ce_type": "b"}, "type: it is there twice"),
        ({"ce_": "a"}, "''"),
        ({"ce_myName": "a"}, "myName"),
        ({"ce_specversion": "0.3"}, "specversion"),
        ({"ce_subject": "%07"}, "subject"),
        ({"content-type": "application/xml"}, "datacontenttype"),
        ({"without": "ce-id"}, "id"),
    ],
)
def test_a_bad_header_is_refused_by_the_name_of_its_attribute(
    headers: dict[str, str], name: str
) -> None:
    with pytest.raises(BadRequest) as raised:
        put_of(binary(b"{}", **headers), "payments")
    assert str(raised.value).strip("'").startswith(name.strip("'"))


BATCH_KIND = {"Content-Type": BATCH}


async def test_events_of_a_batch_are_put_together(tmp_path: Path) -> None:
    async with served(tmp_path) as it:

        async def ask(*events: dict[str, Any], path: str = "/v1/tasks?queue=payments") -> Answer:
            raw = json.dumps(events).encode()
            return await it.call("POST", path, raw=raw, headers=BATCH_KIND)

        first = await ask(EVENT, {**EVENT, "id": "2"}, EVENT)
        assert first.status == 201
        made = first.json["tasks"]
        assert [each["created"] for each in made] == [True, True, False]
        assert made[0]["task_id"] == made[2]["task_id"]
        again = await ask(EVENT)
        assert (again.status, again.json["token"]) == (200, made[0]["task_id"])
        with Control(it.url) as control:
            assert control.tasks.show(made[1]["task_id"]).queue == "payments"
        assert (await ask()).json["tasks"] == []

        wrong = await ask({**EVENT, "id": "3"}, {**EVENT, "id": "4", "latepriorty": 1})
        assert wrong.status == 400
        assert wrong.json["message"].startswith("tasks[1]: latepriorty: ")
        assert (await ask({**EVENT, "id": "3"})).status == 201, "nothing of the batch was put"
        clash = await ask({**EVENT, "data": {"trip": 8}})
        assert (clash.status, clash.json["message"][:12]) == (409, "id, source: ")
        assert (await ask({**EVENT, "id": "5"}, path="/v1/tasks?queue=a+b")).status == 400


async def test_the_queue_of_the_query_is_for_tasks_that_name_none(tmp_path: Path) -> None:
    app = late.App(f"sqlite:///{tmp_path}/served.db")

    @app.task(name="b", queue="mail")
    async def send() -> None: ...

    async with served(tmp_path, app=app) as it:
        tasks = [{"name": "a"}, {"name": "b", "queue": "mail"}]
        answer = await it.call("POST", "/v1/tasks?queue=payments", {"tasks": tasks})
        with Control(it.url) as control:
            assert answer.status == 201, answer.json
            ids = [each["task_id"] for each in answer.json["tasks"]]
            assert [control.tasks.show(each).queue for each in ids] == ["payments", "mail"]
        # The query is looked at even where no task needs its queue.
        for queue in ("", "late.x", "a+b"):
            assert (await it.call("POST", f"/v1/tasks?queue={queue}", {"tasks": []})).status == 400


async def test_what_a_task_of_a_batch_refuses_names_its_place_and_the_attribute(
    tmp_path: Path,
) -> None:
    app = late.App(f"sqlite:///{tmp_path}/served.db")

    @app.task(queue="mail")
    async def send(to: str) -> None: ...

    async with served(tmp_path, app=app) as it:
        events = [{**EVENT, "type": "send", "data": {"to": "ann"}}, EVENT]
        answer = await it.call(
            "POST", "/v1/tasks?queue=mail", raw=json.dumps(events).encode(), headers=BATCH_KIND
        )
        assert answer.status == 422
        assert answer.json["message"].startswith("tasks[1]: type: ")


async def test_each_path_takes_its_own_forms_of_events(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        for kind in (BATCH, "text/plain"):
            answer = await it.call("POST", TASKS, raw=b"[]", headers={"Content-Type": kind})
            assert (answer.status, answer.json["error"]) == (415, "unsupported_media_type")
        batch = await it.call("POST", "/v1/tasks", raw=b"{}", headers=KIND)
        assert batch.status == 415
