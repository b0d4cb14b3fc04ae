"""Numbers and texts that nothing can have: the page and the API never end in an error of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import drop_database, migrated_database, postgres_url
from tests.unit.api_kit import served
from tests.unit.web_kit import page

NUMBERS = (
    "99999999999999999999", "9" * 18, "9223372036854775807", "9223372036854775808", "-1", "-0",
    "1e400", "nan", "inf", "9" * 5_000, "9" * 19 + "x", "%D9%A3", "4096", "253402300800000000",
)  # fmt: skip
TEXTS = ("%00", "a%00b", "%ff", "%ED%A0%80", "%F4%90%80%80", "a" * 4_000, "%2e%2e", "%")
SCREENS = (
    "queues/{}", "targets/{}", "groups/{}", "shards/default/{}", "shards/{}/0", "tasks/{}",
    "tasks?id={}", "shards?after={}", "shards?group={}", "queues?after={}", "queues?text={}",
    "queues?group={}", "tasks?after={}", "tasks?group={}", "tasks?state={}", "tasks?older={}",
    "tasks?state=parked&key={}", "schedules?after={}", "dead?before={}",
    "dead?group={}", "dead?queue={}", "dead?name={}", "dead?reason={}", "dead?error={}",
    "?done=redriven&count={}&rate={}", "?done=paced&count=3&rate={}", "static/{}",
    "targets?name={}", "search?q={}", "workflows/{}", "workflows?state={}", "workflows?name={}",
    "workflows?after={}", "dead?workflow={}",
)  # fmt: skip
LETTERS = ("group", "queue", "name", "reason", "error", "workflow", "before", "limit")
FORMS = {
    "dead/redrive": (*LETTERS, "rate"),
    "dead/purge": (*LETTERS, "confirm"),
    "tasks/cancel": ("state", "group", "queue", "key", "older", "id.x", "after"),
    "tasks/reschedule": ("state", "group", "name", "at", "rate"),
    "tasks/redrive": ("state", "group", "id.x"),
    "groups/default/reset": ("place", "moment", "confirm"),
    "groups/default/replay": ("since", "until", "rate", "before"),
    "groups/{}/stop-replay": (),
    "queues/mail/undo": ("audit",),
    "queues/mail/knobs": ("knob.rate", "knob.max_concurrency", "before"),
    "tasks/x/redrive": ("group",),
    "tasks/x/edit": ("group", "payload"),
    "groups/{}/pause": (),
    "schedules/{}/run": (),
    "queues/{}/knobs": (),
    "tasks/{}/cancel": ("group",),
    "workflows/{}/cancel": (),
}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    if request.param == "sqlite":
        yield None
        return
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    made = migrated_database(admin)
    yield made
    drop_database(admin, made)


async def test_no_address_of_the_page_is_an_error_of_the_server(
    tmp_path: Path, url: str | None
) -> None:
    async with page(tmp_path, url=url) as it:
        for screen in SCREENS:
            for value in NUMBERS + TEXTS:
                answer = await it.get(screen.replace("{}", value))
                assert answer.status_code < 500, (screen, value[:40], answer.text[-500:])
        for value in NUMBERS:
            if value == "4096":  # It could be one.
                continue
            assert (await it.get(f"shards/default/{value}")).status_code == 404, value[:40]
        for screen in ("queues/{}", "targets/{}", "groups/{}"):
            assert (await it.get(screen.replace("{}", "a%00b"))).status_code == 404


async def test_no_form_of_the_page_is_an_error_of_the_server(
    tmp_path: Path, url: str | None
) -> None:
    values = ("9" * 20, "9" * 5_000, "-1", "nan", "1e400", "a\0b", "\ud7ff\uffff")
    async with page(tmp_path, url=url) as it:
        token = await it.token()
        for form, fields in FORMS.items():
            for do in ("preview", "apply"):
                for field in fields or ("do",):
                    for value in values:
                        sent = {"do": do, field: value}
                        path = form.replace("{}", "9" * 20)
                        answer = await it.post(path, sent, token=token)
                        assert answer.status_code < 500, (form, field, value[:40])


BODIES: dict[str, dict[str, Any]] = {
    "POST /v1/queues/payments/tasks": {
        "name": "charge", "delay_s": 0, "expires_s": 9, "priority": 0, "ordering_key": "k",
        "unique_key": "k", "unique_for_s": 1, "at": "2026-01-01T00:00:00Z", "queue": "payments",
        "on_conflict": "reject", "headers": {"a": "b"}, "payload": {"a": 1},
    },
    "POST /v1/queues/payments/receive": {
        "limit": 1, "wait_s": 0, "visibility_s": 1, "group": "default", "names": ["a"],
        "consumer": "c",
    },
    "POST /v1/ack": {"receipt": "r", "result": 1},
    "POST /v1/nack": {"receipt": "r", "outcome": "retry", "after_s": 1, "reason": "r"},
    "POST /v1/extend": {"receipt": "r", "visibility_s": 1},
}  # fmt: skip
VALUES: tuple[Any, ...] = (
    10**20, -(10**20), 2**63, 1e308, -1, "9" * 30, "a\0b", "\ud800", "", "..", [], {}, [[]], True,
    "9999-12-31T23:59:59.999999+00:00", "0001-01-01T00:00:00+14:00", {"\0": "\0"},
)  # fmt: skip


async def test_no_value_over_the_api_is_an_error_of_the_server(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        for place, body in BODIES.items():
            method, path = place.split()
            for field in body:
                for value in VALUES:
                    answer = await it.call(method, path, {**body, field: value})
                    assert answer.status < 500, (place, field, value, answer.body)
        for value in NUMBERS + TEXTS:
            for path in (f"/v1/queues/{value}", f"/v1/queues?group={value}"):
                answer = await it.call("GET", path)
                assert answer.status < 500, (path[:60], answer.body)
