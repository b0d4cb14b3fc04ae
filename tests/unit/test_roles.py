"""What each role may do, on every route of the page and of the interfaces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Route

from late.api.access.auth import demand
from late.api.errors import Forbidden
from late.api.http import routes as interface
from late.model.access.rights import ALL, Caller, Right, Role, implied, of_token
from late.model.task import Record
from late.web.access.rules import RULES
from tests.conformance.kit import task
from tests.integration.control_kit import insert
from tests.unit.api_kit import served
from tests.unit.test_web_routes import filled
from tests.unit.web_kit import Page, add_schedule


def person(name: str, role: Role, queues: tuple[str, ...] = ALL, *lanes: str) -> Caller:
    rights = tuple(Right(word, queues, lanes) for word in implied(role))
    return Caller(name, rights, actor=f"oidc:{name}", expires_at_us=10**18)


PEOPLE = {
    "view": person("view", "view"),
    "operate": person("operate", "operate"),
    "admin": person("admin", "admin"),
    "mail view": person("mail view", "view", ("mail",)),
    "mail operate": person("mail operate", "operate", ("mail",)),
    "mail admin": person("mail admin", "admin", ("mail",)),
    "pay admin": person("pay admin", "admin", ("pay*",)),
    "lane": person("lane", "view", (), "default"),
}
# In the order of PEOPLE. 303 is done, 404 is another's, 403 lacks the role.
SCREEN = (200, 200, 200, 200, 200, 200, 200, 200)
MAIL = (200, 200, 200, 200, 200, 200, 404, 404)
WHOLE = (200, 200, 200, 404, 404, 404, 404, 404)
LANE = (200, 200, 200, 404, 404, 404, 404, 200)
# Who only looks is refused before it is known whose the task is.
OPERATE = (403, 303, 303, 403, 303, 303, 404, 403)
KNOBS = (403, 303, 303, 403, 303, 303, 404, 404)
PURGE = (403, 403, 303, 403, 403, 303, 404, 403)
ADMIN = (403, 403, 303, 404, 404, 404, 404, 404)
EXPECTED: dict[str, tuple[int, ...]] = {
    "GET ": SCREEN,
    "GET live": SCREEN,
    "GET queues": SCREEN,
    "GET queues/{name:text}": MAIL,
    "GET targets": WHOLE,
    "GET targets/{name:text}": WHOLE,
    "GET groups": WHOLE,
    "GET groups/{group:text}": WHOLE,
    "GET shards": LANE,
    "GET shards/{group:text}/{shard:shard}": LANE,
    "GET search": SCREEN,
    "GET tasks": SCREEN,
    "GET tasks/{task_id:text}": MAIL,
    "GET workflows": SCREEN,
    "GET workflows/{task_id:text}": (404,) * 8,  # The task is in none.
    "GET dead": SCREEN,
    "GET schedules": SCREEN,
    "GET workers": WHOLE,
    "GET conflicts": WHOLE,
    "GET autoscaler": WHOLE,
    "GET celery": WHOLE,
    "GET cost": SCREEN,
    "GET cost/report": (404,) * 8,
    "POST tasks/cancel": OPERATE,
    "POST tasks/reschedule": OPERATE,
    "POST tasks/redrive": OPERATE,
    "POST tasks/{task_id:text}/cancel": OPERATE,
    "POST tasks/{task_id:text}/redrive": OPERATE,
    "POST tasks/{task_id:text}/edit": OPERATE,
    "POST workflows/{task_id:text}/cancel": (403, 404, 404, 403, 404, 404, 404, 403),
    "POST queues/{name:text}/knobs": KNOBS,
    "POST queues/{name:text}/undo": KNOBS,
    "POST targets/{name:text}/knobs": ADMIN,
    "POST targets/{name:text}/undo": ADMIN,
    "POST dead/redrive": OPERATE,
    "POST dead/purge": PURGE,
    "POST groups/{group:text}/pause": ADMIN,
    "POST groups/{group:text}/resume": ADMIN,
    "POST groups/{group:text}/reset": ADMIN,
    "POST groups/{group:text}/replay": ADMIN,
    "POST groups/{group:text}/stop-replay": ADMIN,
    "POST schedules/{schedule:text}/pause": OPERATE,
    "POST schedules/{schedule:text}/resume": OPERATE,
    "POST schedules/{schedule:text}/run": OPERATE,
}
OPEN = {
    "GET login", "POST login", "POST logout", "GET static/{name}",
    # The answer to an unknown path, for whoever may look.
    "GET {path:path}",
}  # fmt: skip
"""Routes of the page without a role."""


def routes_of(it: Page) -> Iterator[tuple[str, str]]:
    for route in it.site.routes():
        assert isinstance(route, Route)
        if route.path in ("/", "/ui"):
            continue
        for method in (route.methods or set()) - {"HEAD"}:
            yield method, route.path.removeprefix("/ui/")


def as_person(it: Page, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = it.site._context.gate
    monkeypatch.setattr(gate, "admit", lambda *_, **__: caller)
    monkeypatch.setattr(gate, "check", lambda _: None)


def fields_for(path: str, it: Page, records: list[Record]) -> dict[str, str]:
    known = it.control.audit.entries(subject=f"{path.partition('s/')[0]}:mail")
    return {
        **({"before": "{}"} if path.endswith("knobs") else {}),
        "do": "apply", "queue": "mail", "group": "default", "payload": "{}", "place": "now",
        "confirm": "purge" if path == "dead/purge" else "default", "state": "parked",
        f"id.{records[3].task_id}": "1",
        "audit": known[0].audit_id if known else "",
    }  # fmt: skip


def real(path: str, records: list[Record]) -> str:
    dead = str(records[3].task_id)
    values = {"name": "mail", "group": "default", "shard": "3", "task_id": dead,
              "schedule": "nightly"}  # fmt: skip
    return re.sub(r"\{(\w+)[^}]*\}", lambda found: values[found[1]], path)


async def test_every_route_of_the_page_has_a_rule_and_an_expectation(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, _):
        found = {f"{method} {path}" for method, path in routes_of(it)}
        assert found == EXPECTED.keys() | OPEN
        assert {name.partition(" ")[2] for name in EXPECTED} == RULES.keys()


@pytest.mark.parametrize("who", PEOPLE)
async def test_every_route_answers_a_role_as_the_table_says(
    tmp_path: Path, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = list(PEOPLE).index(who)
    async with filled(tmp_path) as (it, records):
        as_person(it, PEOPLE[who], monkeypatch)
        # A stream would not end.
        it.site.drain()
        add_schedule(it.url)
        seed = (await it.client.get("/ui/")).cookies.get("late_seed")
        assert seed is not None
        token = it.site._context.visitor(PEOPLE[who], seed).token
        for name, expected in EXPECTED.items():
            method, _, path = name.partition(" ")
            where = real(path, records)
            if method == "GET":
                answer = await it.get(where)
            else:
                sent = {"token": token, **fields_for(path, it, records)}
                answer = await it.client.post(f"/ui/{where}", data=sent)
            # 409, 400: it was let in, and there is nothing to do any more.
            status = (
                303
                if method == "POST" and answer.status_code in (400, 409)
                else (answer.status_code)
            )
            assert status == expected[place], (who, name, answer.status_code, answer.text)
        changed = {entry.actor for entry in it.control.audit.entries()}
        assert changed <= {f"oidc:{who}"}
        assert bool(changed) is (303 in {row[place] for row in EXPECTED.values()})


async def test_a_restricted_visitor_reads_no_name_of_others_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(tmp_path) as (it, records):
        add_schedule(it.url)
        insert(it.url, task(4, queue="pay.in"))
        as_person(it, PEOPLE["pay admin"], monkeypatch)
        for name in EXPECTED:
            method, _, path = name.partition(" ")
            if method != "GET" or path == "live":
                continue
            text = (await it.get(real(path, records))).text
            assert "mail" not in text, path
            assert "count" not in re.findall(r"<td>([a-z]+)</td>", text), path
            assert "nightly" not in text, path
        assert "pay.in" in await it.shown("queues")
        # What there is not, and what is another's, are told alike.
        other = await it.get(f"tasks/{records[3].task_id}")
        never = await it.get(f"tasks/{str(records[3].task_id)[:-4]}0000")
        assert (other.status_code, never.status_code) == (404, 404)
        assert other.text.replace(str(records[3].task_id), "") == never.text.replace(
            f"{str(records[3].task_id)[:-4]}0000", ""
        )


async def test_a_payload_is_read_by_operators_of_its_queue_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Caller("both", (*PEOPLE["view"].rights, *PEOPLE["pay admin"].rights), actor="x")
    async with filled(tmp_path) as (it, records):
        for caller, shown in ((both, False), (PEOPLE["mail operate"], True)):
            as_person(it, caller, monkeypatch)
            text = (await it.get(f"tasks/{records[3].task_id}?payload=1")).text
            assert ("<h2>Payload</h2>" in text) is shown


async def test_a_person_produces_and_consumes_nothing_by_a_role(tmp_path: Path) -> None:
    calls = {
        "/v1/queues": ("GET", None, 200),
        "/v1/queues/{queue}": ("GET", None, 200),
        "/v1/queues/{queue}/tasks": ("POST", {"name": "charge", "payload": {}}, 403),
        "/v1/queues/{queue}/receive": ("POST", {"wait_s": 0}, 403),
        "/v1/queues/{queue}/put": ("POST", {}, 404),  # Signed URLs are not served here.
        "/v1/tasks": ("POST", {"tasks": [{"name": "charge", "queue": "payments"}]}, 403),
        "/v1/ack": ("POST", {"receipt": "x"}, 403),
        "/v1/nack": ("POST", {"receipt": "x"}, 403),
        "/v1/extend": ("POST", {"receipt": "x"}, 403),
    }
    async with served(tmp_path, auth=True) as it:
        made = interface.make(it.service, metrics=None).routes
        paths = {each.path for each in made if isinstance(each, Route)}
        assert paths == calls.keys() | {"/openapi.json", "/livez", "/readyz"}
        for role in ("view", "operate", "admin"):
            it.service.access.admit = lambda *_, r=role, **__: PEOPLE[r]  # type: ignore[method-assign]
            it.service.access.holds = lambda _: True  # type: ignore[method-assign]
            for path, (method, body, status) in calls.items():
                answer = await it.call(method, path.format(queue="payments"), body)
                assert answer.status == status, (role, path, answer.body)


def test_a_right_for_one_thing_does_not_widen_another() -> None:
    caller = Caller("svc", (Right("view"), Right("enqueue", ("orders",)), Right("consume", ("b",))))
    demand(caller, "enqueue", "orders")
    for scope, queue in (("enqueue", "refunds"), ("consume", "orders"), ("operate", None)):
        with pytest.raises(Forbidden):
            demand(caller, scope, queue)  # type: ignore[arg-type]
    assert not caller.may_all("enqueue")


def test_a_token_of_all_queues_administers_as_it_always_did() -> None:
    whole, some = (
        Caller("a", of_token(["operate"], ALL)),
        Caller("b", of_token(["operate"], ("x",))),
    )
    assert (whole.may_all("admin"), whole.may_all("view")) == (True, True)
    assert (some.may("admin"), some.may("operate", "x"), some.may("view", "x")) == (
        False, True, True,
    )  # fmt: skip
