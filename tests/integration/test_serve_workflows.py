"""Workflows over HTTP and gRPC: a list, one with its stages, a wait, a redrive, a cancel, and what
a role for some queues sees of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from late.model.ids import new_id
from tests.databases import PRESENT
from tests.security.test_operator_routes import as_person
from tests.unit.api_kit import served
from tests.unit.operator_rpc_kit import rpc
from tests.unit.test_http_operators import audit, waiting
from tests.unit.test_roles import person
from tests.unit.workflow_kit import Shop

# What the operations read and write is tested on every store, below them.
STORES = [each for each in PRESENT if each.name in ("sqlite", "postgres")]
LIST = "/v1/workflows"


@pytest.mark.parametrize("backend", STORES, ids=lambda each: each.name)
async def test_a_workflow_is_listed_shown_redriven_and_cancelled(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(url)
    async with served(tmp_path, url=url, app=shop.app) as it, rpc(it.rpc.port) as call:
        bad, good = shop.put("charge", side=2), shop.put("send")
        await shop.drain()
        page = (await it.call("GET", LIST)).json
        assert [each["workflow_id"] for each in page["workflows"]] == [good[0], bad[0]]
        assert (page["looked"], page["after"]) == (5, None)
        first = (await it.call("GET", f"{LIST}?limit=1")).json
        assert first["workflows"] == page["workflows"][:1]
        rest = await it.call("GET", f"{LIST}?after={first['after']}")
        assert rest.json["workflows"] == page["workflows"][1:]
        for asked in ("state=failed", "name=charge"):
            found = (await it.call("GET", f"{LIST}?{asked}")).json
            assert found["workflows"] == page["workflows"][1:], asked
        for wrong in ("state=lost", "after=x", "limit=0", "limit=1001"):
            assert (await it.call("GET", f"{LIST}?{wrong}")).status == 400, wrong
        [listed] = (await call("ListWorkflows", state="failed")).workflows
        assert (listed.workflow_id, listed.tasks, listed.dead) == (bad[0], 3, 2)

        one = f"{LIST}/{bad[2]}"
        shown = (await it.call("GET", f"{one}?wait_s=60")).json
        assert shown | page["workflows"][1] == shown
        assert [each["task_id"] for each in shown["stages"]] == bad
        assert (await call("ShowWorkflow", task_id=bad[1])).stages[2].state == "waiting"
        letters = (await it.call("GET", f"/v1/dead?workflow={bad[2]}")).json["dead"]
        assert {each["task_id"] for each in letters} == {*bad[:2]}
        assert (await it.call("GET", f"/v1/dead?workflow={good[0]}")).json["dead"] == []
        assert (await it.call("POST", f"{one}/redrive", {"dry_run": True})).json["count"] == 2
        assert audit(url) == []
        assert (await it.call("POST", f"{one}/redrive", {})).json["count"] == 2
        assert {actor for actor, _ in audit(url)} == {"anybody@api"}
        shop.broken = False
        with monkeypatch.context() as patched:
            asking = await waiting(it, patched, f"{one}?wait_s=60")
        await shop.drain()
        async with asyncio.timeout(120):
            assert (await asking).json["state"] == "done"
        ended = (await it.call("POST", f"{one}/cancel", {})).json
        assert "it has ended" in ended["note"]

        later = shop.put("send", delay=3_600)
        told = await call("CancelWorkflow", task_id=later[1])
        assert (told.command != "", told.note) == (True, "")
        await shop.drain()
        assert (await call("ShowWorkflow", task_id=later[0])).state == "cancelled"
        for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/redrive")):
            body = None if method == "GET" else {}
            assert (await it.call(method, f"{LIST}/{new_id(0)}{path}", body)).status == 404, path
            assert (await it.call(method, f"{LIST}/x{path}", body)).status == 400, path


@pytest.mark.parametrize("backend", STORES, ids=lambda each: each.name)
async def test_a_role_for_some_queues_sees_their_stages_and_changes_no_others(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(url)
    async with served(tmp_path, url=url, app=shop.app, auth=True) as it:
        ids = shop.put("charge", side=2)
        one = f"{LIST}/{ids[0]}"

        async def changes() -> set[int]:
            paths = [f"{one}/cancel", f"{one}/redrive"]
            return {(await it.call("POST", path, {})).status for path in paths}

        as_person(it, person("ann", "operate", ("mail",)))
        # A wait is for all of it, also for tasks that the caller may not see.
        with monkeypatch.context() as patched:
            asking = await waiting(it, patched, f"{one}?wait_s=60")
        await shop.drain()
        async with asyncio.timeout(120):
            shown = (await asking).json
        assert [each["task_id"] for each in shown["stages"]] == ids[2:]
        assert (shown["state"], shown["tasks"], shown["name"]) == ("running", 1, "")
        [listed] = (await it.call("GET", LIST)).json["workflows"]
        assert shown | listed == shown
        assert await changes() == {404}
        as_person(it, person("pia", "operate", ("news",)))
        assert (await it.call("GET", LIST)).json["workflows"] == []
        never = await it.call("GET", f"{LIST}/{new_id(0)}")
        assert (await it.call("GET", one)).json == never.json
        assert await changes() == {404}
        as_person(it, person("bob", "view", ("mail", "pay")))
        assert await changes() == {403}
        assert audit(url) == []
        as_person(it, person("olga", "operate", ("mail", "pay")))
        assert (await it.call("GET", one)).json["tasks"] == 3
        assert await changes() == {200}
        assert {actor for actor, _ in audit(url)} == {"oidc:olga"}
