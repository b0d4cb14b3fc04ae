"""HTTP push in the form of CloudEvents: what a target gets, and that an event stays the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import late
from late.api.http.cloud_events import put_of
from late.dispatcher.push.cloud_event import EVENT
from late.model.task import Attempt, Options
from tests.integration.push_kit import pool_of
from tests.integration.test_http_push import SECRET, answer, service
from tests.unit.api_kit import served
from tests.unit.dispatcher_kit import NOW_US, attempt

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CAME: dict[str, Any] = {
    "specversion": "1.0",
    "id": "A234-1234",
    "source": "https://shop.example/trips",
    "type": "welcome",
    "time": "2018-04-05T17:31:00Z",
    "subject": "trip/7",
    "partitionkey": "trip-7",
    "traceparent": PARENT,
    "comexample": "x",
    "data": {"user": 7},
}


def task(event: dict[str, Any], **options: Any) -> Attempt:
    """The attempt of a task that was put as this event."""
    made = put_of(event, "payments")
    headers = json.dumps(made.headers)
    found = attempt(made.name, payload=json.dumps(made.payload).encode(), headers=headers)
    return msgspec.structs.replace(found, options=Options(**options))


async def pushed(sent: Attempt, **settings: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Push an attempt, and return the event and the headers that the target gets."""
    async with service(format="cloudevents", **settings) as (made, target), pool_of(target) as pool:
        made.reply = answer(201, {"task_id": "x", "created": True})
        outcome = await pool.one(sent)
    assert outcome.kind == "done"
    [request] = made.requests
    if "secret" in settings:
        assert late.verify_webhook(request.headers, request.body, SECRET)
    return json.loads(request.body), request.headers


async def test_a_task_comes_as_an_event_under_the_same_signature() -> None:
    headers = json.dumps({"traceparent": PARENT, "tracestate": "a=b", "shop": "x", "ce-evil": "y"})
    sent = attempt("welcome", headers=headers, number=2, deadline_us=NOW_US + 5_000_000, user=7)
    sent = msgspec.structs.replace(sent, options=Options(ordering_key="trip-7"))
    event, found = await pushed(sent, secret=SECRET)
    task_id = sent.record.task_id
    assert found["content-type"] == EVENT
    assert (found["webhook-id"], found["traceparent"]) == (f"default:{task_id}", PARENT)
    assert event.pop("expirytime").startswith("2027-01-15T08:00:05")
    assert event.pop("latedueat").startswith("2027-01-15T07:59:59")
    assert event.pop("time").startswith("2027-01-15T07:59:58")
    assert event == {
        "specversion": "1.0",
        "id": f"default:{task_id}",
        "source": "/queues/payments",
        "type": "welcome",
        "subject": task_id,
        "datacontenttype": "application/json",
        "partitionkey": "trip-7",
        "traceparent": PARENT,
        "tracestate": "a=b",
        "latetaskid": task_id,
        "lategroup": "default",
        "latequeue": "payments",
        "lateattempt": 2,
        "latedeaths": 0,
        "latereplay": False,
        "latekeepsresult": False,
        "data": {"user": 7},
    }


async def test_the_source_is_the_targets() -> None:
    event, _ = await pushed(attempt("welcome"), source="https://shop.example/late")
    assert event["source"] == "https://shop.example/late"
    assert not {"partitionkey", "expirytime", "traceparent", "latemaxattempts"} & event.keys()


async def test_an_event_stays_what_it_was() -> None:
    event, found = await pushed(task(CAME, ordering_key="of-the-queue.1"), source="/elsewhere")
    assert {name: event[name] for name in CAME} == CAME
    assert event["lateattempt"] == 1
    assert found["idempotency-key"] != event["id"]


async def test_what_a_producer_invents_replaces_nothing_of_ours() -> None:
    """Headers can have anything: what is no attribute, or is one of ours, is left out."""
    headers = {f"ce-{name}": "evil" for name in CAME} | {
        "ce-lateattempt": "9",
        "ce-Upper": "x",
        "ce-control": "a\nb",
        "ce-empty": "",
        "ce-data_base64": "AA==",
        "ce-": "x",
    }
    event, _ = await pushed(attempt("welcome", headers=json.dumps(headers), user=7))
    assert (event["specversion"], event["type"], event["data"]) == ("1.0", "welcome", {"user": 7})
    assert (event["lateattempt"], event["source"]) == (1, "evil")
    assert not {"Upper", "control", "empty", "data_base64", ""} & event.keys()


async def test_numbers_arrive_as_they_were_given() -> None:
    async with service(format="cloudevents") as (made, target), pool_of(target) as pool:
        await pool.one(attempt("welcome", payload=b'{"n": 18446744073709551615, "x": 0.10}'))
    assert b'"data":{"n": 18446744073709551615, "x": 0.10}' in made.requests[0].body


@pytest.mark.parametrize("sent", [attempt("welcome", user=7), task(CAME)], ids=["task", "event"])
async def test_another_queue_takes_it_as_one_task(tmp_path: Path, sent: Attempt) -> None:
    """A target may be the queue of another deployment: each attempt is the same event there."""
    async with served(tmp_path) as it:
        url = f"http://127.0.0.1:{it.call.port}/v1/queues/payments/tasks"
        target = late.HttpTarget("other", url, format="cloudevents", source="/here")
        async with pool_of(target) as pool:
            for number in (1, 2):
                outcome = await pool.one(msgspec.structs.replace(sent, number=number))
                assert outcome.kind == "done", outcome.error
        assert (await it.call("GET", "/v1/queues/payments")).json["ready"] == 1
