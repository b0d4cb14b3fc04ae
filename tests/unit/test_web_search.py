"""Suggestions of the search box: their order, their links, and what a caller may know of."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from late.control.views import Count, LimitedTasks
from late.model.access import tokens
from late.model.access.rights import ANYBODY
from late.model.access.tokens import Token
from late.model.task import DEFAULT_GROUP
from late.model.worker_report import Run
from late.web.models.search import MOST, suggestions
from late.web.usage import shared_read
from tests.unit.test_findings import reported, with_reports
from tests.unit.test_web_views import seen
from tests.unit.web_kit import Page, fill, page

JSON = {"accept": "application/json"}
ID = "0190a3b4-5678-7abc-8def-0123456789ab"


async def found(it: Page, text: str, **headers: str) -> list[tuple[str, str, str]]:
    answer = await it.get("search", params={"q": text}, headers=JSON | headers)
    assert answer.status_code == 200, answer.text
    return [(each["kind"], each["name"], each["href"]) for each in json.loads(answer.text)]


async def test_things_are_found_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_read, "GLANCE_S", 60.0)
    async with page(tmp_path) as it:
        await fill(it.url)
        it.control.queues.change("queue", "air.mail", {"paused": True})
        it.control.queues.change("target", "mailer", {"paused": True})
        assert (await found(it, " MAIL "))[:3] == [
            ("queue", "mail", "queues/mail"),
            ("target", "mailer", "targets/mailer"),
            ("queue", "air.mail", "queues/air.mail"),
        ], "the same, then its beginning, then the beginning of a word"
        assert ("task name", "count", "tasks?queue=mail&name=count") in await found(it, "cou")
        group = ("group", DEFAULT_GROUP, f"groups/{DEFAULT_GROUP}")
        assert group in await found(it, DEFAULT_GROUP)
        assert (await found(it, "dead"))[0] == ("screen", "Dead letters", "dead")
        assert await found(it, ID) == [("task", ID, f"tasks/{ID}")]
        assert await found(it, "k&1") == [
            ("tasks by key", "k&1", "tasks?state=parked&key=k%261"),
            ("tasks by tenant", "k&1", "tasks?state=parked&tenant=k%261"),
        ]
        assert await found(it, "") == []
        for number in range(30):
            it.control.queues.change("queue", f"many-{number}", {"paused": True})
        it.site._context.snapshots._at = 0.0
        assert len(await found(it, "many")) <= MOST + 2
        answer = await it.get("search", params={"q": ID})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/tasks/{ID}")


def test_what_runs_and_what_waits_is_found_by_the_name_of_its_task() -> None:
    run = Run("default", "mail", "shop.send", "id")
    told = reported(runs=(run,))
    held = (LimitedTasks("default", "mail", "shop.bill", Count(3)),)
    look = with_reports(seen(), told)
    look = msgspec.structs.replace(look, status=msgspec.structs.replace(look.status, limited=held))
    found = suggestions("shop.", look, caller=ANYBODY, sections=())
    assert [each.name for each in found if each.kind == "task name"] == ["shop.bill", "shop.send"]


async def test_nobody_finds_what_is_not_theirs(tmp_path: Path) -> None:
    text, digest = tokens.make("clerk")
    other, theirs = tokens.make("other")
    clerk = Token("clerk", digest, ("view",), ("letters",))
    whole = Token("other", theirs, ("view",), ("*",))
    async with page(tmp_path, tokens=[clerk, whole]) as it:
        await fill(it.url)
        for secret in ("mail", "count", DEFAULT_GROUP, "w1", "shards"):
            kinds = {kind for kind, _, _ in await found(it, secret, authorization=f"Bearer {text}")}
            assert kinds <= {"tasks by key", "tasks by tenant"}, secret
        kinds = {kind for kind, _, _ in await found(it, "mail", authorization=f"Bearer {other}")}
        assert "queue" in kinds
        answer = await it.get("search", params={"q": "mail"}, headers=JSON)
        assert answer.status_code in (303, 401)
