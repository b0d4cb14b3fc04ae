"""The screens of workflows: the list, one with its stages, its cancel, and the retry of its dead
letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from late.control import workflows as control
from late.control.views import StageView
from late.model.access.rights import Caller
from late.model.ids import new_id
from late.web.models import workflows
from tests.unit.test_roles import as_person, person
from tests.unit.web_kit import Page, fields_of, page
from tests.unit.workflow_kit import Shop


class Browsed(Shop):
    """The shop beside the page of its database."""

    def __init__(self, it: Page) -> None:
        super().__init__(it.url)
        self.page = it


@asynccontextmanager
async def shop(folder: Path) -> AsyncIterator[Browsed]:
    async with page(folder) as it:
        yield Browsed(it)


async def test_the_list_has_the_progress_of_each_and_those_of_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(tmp_path) as it:
        assert "No workflows." in await it.page.shown("workflows")
        bad, good = it.put("charge", side=2), it.put("send")
        await it.drain()
        later = it.put("send", delay=3_600)
        text = await it.page.shown("workflows")
        places = [text.index(ids[0]) for ids in (later, good, bad)]
        assert places == sorted(places), "the newest first"
        assert [word in text for word in ("0 of 3", "2 of 2", "0 of 2")] == [True] * 3
        failed = await it.page.shown("workflows?state=failed")
        assert [ids[0] in failed for ids in (bad, good, later)] == [True, False, False]
        named = await it.page.shown("workflows?name=charge&state=")
        assert [ids[0] in named for ids in (bad, good)] == [True, False]
        assert "None of them matches" in await it.page.shown("workflows?state=cancelled")
        refused = await it.page.get("workflows?state=lost")
        assert (refused.status_code, "no state" in refused.text) == (400, True)
        monkeypatch.setattr(workflows, "PAGE", 1)
        text = await it.page.shown("workflows?name=send&state=running")
        assert f"/ui/workflows?state=running&name=send&after={later[0]}" not in text
        text = await it.page.shown("workflows?name=send")
        assert f"/ui/workflows?name=send&after={later[0]}" in text
        assert good[0] in await it.page.shown(f"workflows?name=send&after={later[0]}")
        # A page ends at its bound, with none that match.
        monkeypatch.setattr(control, "ROWS", 3)
        monkeypatch.setattr(control, "LOOKED", 3)
        text = await it.page.shown("workflows?name=charge")
        assert "None among these" in text
        assert "Looked at 3 tasks" in text


async def test_one_workflow_shows_its_stages_and_is_retried_and_cancelled(tmp_path: Path) -> None:
    async with shop(tmp_path) as it:
        ids, other = it.put("charge", side=2), it.put("charge")
        await it.drain()
        text = await it.page.shown(f"workflows/{ids[2]}")
        assert "0 of 3" in text
        assert all(f"/ui/tasks/{each}" in text for each in ids)
        assert "after 0, 1" in text
        letters = f"dead?workflow={ids[0]}&group=default"
        assert f'<a href="/ui/{letters}">2</a>' in text
        assert "Cancel the workflow" in text
        # Its tasks lead to it, and so do its dead letters to its retry.
        assert f"/ui/workflows/{ids[0]}" in await it.page.shown(f"tasks/{ids[1]}")
        text = await it.page.shown(letters)
        assert [each in text for each in (ids[0], ids[1], other[0])] == [True, True, False]
        sent = {"workflow": ids[0], "group": "default", "do": "preview"}
        preview = await it.page.post("dead/redrive", sent)
        assert "This would retry: 2" in preview.text.replace("</h2>", "")
        assert other[0] not in preview.text
        it.broken = False
        done = await it.page.post("dead/redrive", {**fields_of(preview.text), "do": "apply"})
        assert done.headers["location"] == f"/ui/workflows/{ids[0]}?done=redriven&count=2"
        await it.drain()
        text = await it.page.shown(f"workflows/{ids[0]}?done=redriven&count=2")
        assert ("3 of 3" in text, "2 dead letters retried" in text) == (True, True)
        assert "Cancel the workflow" not in text
        assert "Preview retry" not in text

        done = await it.page.post(f"workflows/{other[1]}/cancel")
        assert done.headers["location"] == f"/ui/workflows/{other[1]}?done=workflow_cancelled"
        [entry] = it.page.control.audit.entries(subject=f"task:{other[1]}")
        assert (entry.action, entry.actor) == ("task.cancel", "anybody@page")
        await it.drain()
        found = it.page.control.workflows.show(other[0])
        assert found is not None
        assert found.stages[1].state == "cancelled"
        for path in (f"workflows/{new_id(0)}", f"dead?workflow={new_id(0)}"):
            answer = await it.page.get(path)
            assert (answer.status_code, ids[0] in answer.text) in ((404, False), (200, False))
        assert (await it.page.get(f"workflows/{new_id(0)}")).status_code == 404
        assert (await it.page.get("workflows/x")).status_code == 400


async def test_a_role_for_some_queues_sees_their_stages_and_changes_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(tmp_path) as it:
        mixed, own = it.put("charge", side=2), it.put("send")
        await it.drain()

        seed = (await it.page.get("")).cookies["late_seed"]

        def visitor(caller: Caller) -> str:
            as_person(it.page, caller, monkeypatch)
            return it.page.site._context.visitor(caller, seed).token

        sent = {"workflow": mixed[0], "group": "default", "do": "preview"}
        token = visitor(person("ann", "operate", ("mail",)))
        text = await it.page.shown("workflows")
        assert [ids[0] in text for ids in (mixed, own)] == [True, True]
        assert "charge" not in text
        assert "0 of 1" in text
        for path in (f"workflows/{mixed[0]}", f"tasks/{mixed[2]}"):
            text = await it.page.shown(path)
            assert f"/ui/tasks/{mixed[2]}" in text
            assert f"/ui/tasks/{mixed[1]}" not in text, "no stage of another's queue"
            assert "charge" not in text
        assert "Cancel the workflow" not in await it.page.shown(f"workflows/{mixed[0]}")
        letters = await it.page.shown(f"dead?workflow={mixed[0]}")
        assert ("/ui/tasks/" in letters, "No dead letters" in letters) == (False, False)
        for path in (f"workflows/{mixed[2]}/cancel", "dead/redrive"):
            answer = await it.page.post(path, sent, token=token)
            assert answer.status_code == 404, path

        visitor(person("pia", "view", ("news",)))
        assert mixed[0] not in await it.page.shown("workflows")
        assert (await it.page.get(f"workflows/{mixed[0]}")).status_code == 404

        token = visitor(person("bob", "view", ("mail", "pay")))
        assert "Cancel the workflow" not in await it.page.shown(f"workflows/{mixed[0]}")
        for path in (f"workflows/{mixed[2]}/cancel", "dead/redrive"):
            assert (await it.page.post(path, sent, token=token)).status_code == 403, path

        token = visitor(person("olga", "operate", ("mail", "pay")))
        text = await it.page.shown(f"workflows/{mixed[0]}")
        assert ("Cancel the workflow" in text, "Preview retry" in text) == (True, True)
        assert mixed[1] in await it.page.shown(f"dead?workflow={mixed[0]}")
        preview = await it.page.post("dead/redrive", sent, token=token)
        assert (preview.status_code, mixed[1] in preview.text) == (200, True)
        done = await it.page.post(f"workflows/{mixed[0]}/cancel", {}, token=token)
        assert done.status_code == 303
        assert {each.actor for each in it.page.control.audit.entries()} == {"oidc:olga"}


def stage(number: int, state: str, *after: int) -> StageView:
    return StageView(number, f"id {number}", "work", "mail", state, after)


def test_of_a_wide_workflow_those_in_trouble_are_shown_and_the_others_are_counted() -> None:
    wide = [stage(n, "dead" if n in (70, 90) else "done") for n in range(98)]
    first, join = workflows.levels([*wide, stage(98, "waiting", *range(98))], "id 95")
    shown = [box.view.stage for box in first.boxes]
    assert shown == [*range(workflows.STAGES_SHOWN - 3), 70, 90, 95]
    assert first.more == "68 done"
    assert (join.more, join.boxes[0].note[-7:]) == ("", "88 more")


def test_a_page_has_room_for_each_level_of_a_workflow() -> None:
    deep = [stage(n, "waiting", *([n - 10] if n >= 10 else [])) for n in range(1_000)]
    found = workflows.levels(deep)
    assert len(found) == 100
    assert sum(len(level.boxes) for level in found) <= workflows.IN_ALL
    assert {level.more for level in found} == {"9 waiting"}


def test_a_stage_stands_by_those_before_it_that_are_known() -> None:
    found = workflows.levels([stage(3, "done", 0, 1), stage(4, "waiting", 2, 3)])
    assert [[box.view.stage for box in level.boxes] for level in found] == [[3], [4]]
