"""The page for operators, given what can mean nothing: it says so, and one goes on from there."""

from __future__ import annotations

from pathlib import Path

from tests.unit.test_web_routes import filled
from tests.unit.web_kit import fields_of, page


async def test_a_mistyped_address_is_told_as_a_page(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        for path in ("quues", "queues/mail/<b>", "shards/default/x", "queues/mail/knobs"):
            answer = await it.get(path)
            assert answer.status_code == 404, path
            assert answer.headers["content-type"].startswith("text/html")
            assert "There is no screen at this address" in answer.text
            assert 'aria-label="Screens"' in answer.text, "from where one goes on"
            assert "<b>" not in answer.text
        assert (await it.post("quues")).status_code == 405
        assert (await it.get("queues/")).headers["location"] == "/ui/queues"
    (tmp_path / "closed").mkdir()
    async with page(tmp_path / "closed", tokens=[]) as it:
        assert (await it.get("quues")).headers["location"] == "/ui/login"


async def test_what_was_typed_is_kept_beside_what_is_wrong_with_it(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, _):
        form = {"queue": "mail", "limit": "many", "rate": "5", "do": "preview"}
        bad = await it.post("dead/redrive", form)
        assert (bad.status_code, "limit is a whole number" in bad.text) == (400, True)
        assert 'name="limit" value="many"' in bad.text
        assert 'name="rate" value="5"' in bad.text
        assert fields_of(bad.text)["queue"] == "mail"
        form = {"place": "moment", "moment": "yesterday", "do": "preview"}
        bad = await it.post("groups/default/reset", form)
        assert (bad.status_code, 'name="moment" value="yesterday"' in bad.text) == (400, True)
        assert '<option value="moment" selected>' in bad.text
        refused = await it.post("schedules/never/run")
        assert '<a href="/ui/schedules">Load the page again' in refused.text
        refused = await it.post("groups/default/pause", token="0" * 64)
        assert '<a href="/ui/groups/default">Load the page again' in refused.text


async def test_a_filter_that_nothing_matches_is_no_sign_that_all_is_well(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, _):
        assert "None of them matches" in await it.shown("dead?queue=mial")
        for path in ("tasks", "queues", "shards"):
            assert (await it.get(f"{path}?group=default")).status_code == 200
            wrong = await it.get(f"{path}?group=defalt")
            assert (wrong.status_code, "no consumer group" in wrong.text) == (400, True), path
