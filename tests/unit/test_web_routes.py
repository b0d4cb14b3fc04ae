"""The page for operators over HTTP: screens, actions, strangers, hostile texts, forged forms."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import pytest

from late.control import Control
from late.control.audit import acting
from late.control.dead_letters import dry_run as rehearsal
from late.errors import StoreUnavailable
from late.model.access import tokens
from late.model.access.rights import Scope
from late.model.access.tokens import Token
from late.model.ids import new_id
from late.model.task import AttemptError, Record
from late.schema.tables import dead as letters
from late.store import open_store
from late.web.usage import shared_read
from tests.conformance.kit import dead, own, read_all, task
from tests.integration.control_kit import insert, transaction
from tests.unit.web_kit import HOSTILE, Page, add_schedule, fields_of, fill, page

SCREENS = (
    "", "queues", "queues/mail", "targets", "targets/billing", "groups",
    "groups/default", "shards", "shards/default/3",
    "tasks", "workflows", "dead", "schedules", "workers", "autoscaler", "celery", "cost",
    "search", "search?q=x",
)  # fmt: skip
ACTIONS = (
    "queues/mail/knobs", "queues/mail/undo", "targets/local/knobs", "targets/local/undo",
    "dead/redrive", "dead/purge", "tasks/cancel", "tasks/reschedule", "tasks/redrive",
    "groups/default/pause", "groups/default/resume", "groups/default/reset",
    "schedules/nightly/pause", "schedules/nightly/resume", "schedules/nightly/run",
)  # fmt: skip


@asynccontextmanager
async def filled(folder: Path, **options: Any) -> AsyncIterator[tuple[Page, list[Record]]]:
    """Five tasks of the queue `mail` in shard 3: settled, open, parked, dead, waiting."""
    async with page(folder, **options) as it:
        yield it, await fill(it.url)


def token(name: str, *scopes: Scope, queues: tuple[str, ...] = ("*",)) -> tuple[str, Token]:
    text, digest = tokens.make(name)
    return text, Token(name, digest, scopes, queues)


async def test_what_is_paused_says_by_whom_and_an_objective_what_is_left(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, _):
        with Control(it.url) as control, acting("ada lovelace"):
            control.queues.change("queue", "mail", {"objective_s": 30.0})
            control.queues.change("queue", "slow", {"paused": True})
            control.groups.pause("default")
        assert "Budget left" in await it.shown("queues/mail")
        assert "Budget left" not in await it.shown("groups/default")
        for path in ("queues", "queues/slow", "groups", "groups/default"):
            assert "by ada lovelace since" in await it.shown(path), path


async def test_every_screen_is_there_empty_and_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_read, "GLANCE_S", 60.0)
    async with page(tmp_path) as it:
        for path in SCREENS:
            assert (await it.get(path)).status_code == 200, path
        for path in ("groups/never", "shards/never/1", "shards/default/4000", "dead?before=x"):
            assert (await it.get(path)).status_code == 400, path
    (tmp_path / "full").mkdir()
    async with filled(tmp_path / "full") as (it, records):
        for path in SCREENS:
            answer = await it.get(path)
            assert answer.status_code == 200, (path, answer.text)
            assert len(answer.content) < 50_000, path
        for record, state in zip(
            records, ("ended", "runs", "parked", "dead", "waits"), strict=True
        ):
            assert state in await it.shown(f"tasks/{record.task_id}")
        assert str(records[2].task_id) in await it.shown("tasks?state=parked&group=default")
        assert "None." in await it.shown("tasks?state=parked&queue=nobody")
        assert "5.0 s" in await it.shown("cost")
        assert "<td>0.02/s</td><td>5.0 s</td>" in await it.shown("queues/mail")
        assert "Dead letters in mail (default)" in await it.shown("")


async def test_no_visitor_waits_for_a_template_to_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: object, **__: object) -> None:
        raise AssertionError("when the page started")

    async with page(tmp_path) as it:
        monkeypatch.setattr(jinja2.Environment, "compile", late)
        for path in ("", "queues", "workers"):
            assert (await it.get(path)).status_code == 200, path


async def test_what_a_browser_must_not_do_is_forbidden_to_it(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        for path in (*SCREENS, "login", "static/nothing.js"):
            headers = (await it.get(path)).headers
            assert "script-src 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-frame-options"] == "DENY"
            assert headers["x-content-type-options"] == "nosniff"
        for path in SCREENS:
            text = (await it.get(path)).text
            assert not re.search(r"<script(?! src=\"/ui/static/)", text), "a script in the page"
            assert not re.search(r"\s(on\w+|style)=", text), "what the policy would refuse"
            assert "http://" not in text
            assert "https://" not in text


async def test_files_are_kept_for_ever_and_come_compressed(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        names = set(re.findall(r'"/ui/static/([^"]+)"', (await it.get("")).text))
        assert len(names) == 6
        sizes = 0
        for name in names:
            answer = await it.get(f"static/{name}")
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
            assert answer.headers["content-encoding"] == "gzip"
            sizes += answer.num_bytes_downloaded
        assert sizes < 60 * 1024
        assert (await it.get("static/../late.js")).status_code == 404


async def test_hostile_texts_come_back_as_texts(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        evil = task(2, b'{"x":"</pre><script>1</script>"}', queue=HOSTILE, name=HOSTILE,
                    headers=msgspec.json.encode({"k": HOSTILE}).decode())  # fmt: skip
        insert(it.url, evil)
        store = open_store(it.url)
        await store.open()
        owner = await own(store, 2, name="<b>w</b>")
        records, cursor = await read_all(store, [evil])
        letter = dead(of=records[0], reason="<i>r", errors=(AttemptError(1, 1, HOSTILE, HOSTILE),))
        await owner.settle(cursor=cursor, open=(), dead=(letter,))
        await store.close()
        for path in ("", "queues", "dead", "shards", "shards/default/2", "workers",
                     f"tasks/{evil.task_id}?payload=1", "queues?text=%3Cscript%3E&group=%3Cb%3E",
                     "dead?error=%3Cscript%3E", "queues/%3Cscript%3E"):  # fmt: skip
            text = (await it.get(path)).text
            assert "<script>" not in text, path
            assert "oopsoops" not in text, path
            assert not re.search(r"<[ib]>", text), path
        assert "alert(1)" in await it.shown("dead")
        refused = await it.get("tasks/%3Cscript%3E")
        assert (refused.status_code, "<script>" in refused.text) == (400, False)
        assert "must call" not in await it.shown("?done=You+must+call+me")


async def test_a_form_must_be_of_this_session(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, _):
        good = await it.token()
        for path in ACTIONS:
            for forged in ("0" * 64, "é", ""):
                answer = await it.client.post(f"/ui/{path}", data={"token": forged})
                assert answer.status_code == 409, path
                assert "<h1>Session expired</h1>" in answer.text, path
                assert "load the page again" in answer.text, path
            for headers in (
                {"Sec-Fetch-Site": "cross-site"},
                {"Sec-Fetch-Site": "same-site"},
                {"Origin": "http://127.0.0.1:8080"},
                {"Origin": "null"},
            ):
                answer = await it.post(path, token=good, headers=headers)
                assert answer.status_code == 409, (path, headers)
                assert "<h1>Form not taken</h1>" in answer.text, (path, headers)
        seed = it.client.cookies.get("late_seed")
        assert seed is not None
        it.client.cookies.clear()
        it.client.cookies.set("late_seed", "A" * 43)
        assert (await it.client.post("/ui/groups/default/pause", data={"token": good})
                ).status_code == 409  # fmt: skip
        assert it.control.groups.get("default").state == "working"
        assert it.control.audit.entries() == []


async def test_a_read_only_page_changes_nothing(tmp_path: Path) -> None:
    async with filled(tmp_path, changes=False) as (it, records):
        assert "read-only" in await it.shown("")
        for path in ACTIONS:
            answer = await it.post(path, {"do": "apply", "confirm": "purge"})
            assert (answer.status_code, "read-only" in answer.text) == (403, True), path
        for path in (*SCREENS, f"tasks/{records[3].task_id}"):
            assert not re.search(r"<button[^>]*>(?!Filter|Show)", (await it.get(path)).text), path
        assert it.control.audit.entries() == []


async def test_who_may_look_may_not_change_and_who_is_nobody_sees_nothing(tmp_path: Path) -> None:
    viewer, one = token("eve", "view")
    operator, two = token("olga", "operate")
    producer, three = token("paul", "enqueue", "consume")
    some, four = token("some", "operate", queues=("pay*",))
    async with filled(tmp_path, tokens=[one, two, three, four]) as (it, records):
        for path in SCREENS:
            answer = await it.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login")
            assert "mail" not in answer.text
            head = {"Authorization": f"Bearer {producer}"}
            assert (await it.get(path, headers=head)).status_code == 403
            shown = await it.get(path, headers={"Authorization": f"Bearer {some}"})
            assert (shown.status_code, "mail" in shown.text) in ((200, False), (404, False)), path
        assert (await it.get("live")).status_code == 401

        async def signs_in(text: str) -> int:
            form = fields_of((await it.get("login")).text)
            answer = await it.post("login", {"secret": text}, token=form["token"])
            return answer.status_code

        assert await signs_in("late.eve.wrong") == 401
        assert await signs_in(viewer) == 303
        assert "eve" in await it.shown("")
        assert (await it.post("groups/default/pause")).status_code == 403
        secret = await it.get(f"tasks/{records[3].task_id}?payload=1")
        assert "<h2>Payload</h2>" not in secret.text
        stolen = await it.token()
        assert await signs_in(operator) == 303
        assert (await it.post("groups/default/pause", token=stolen)).status_code == 409
        assert (await it.post("groups/default/pause")).status_code == 303
        assert [entry.actor for entry in it.control.audit.entries(limit=1)] == ["token:olga"]
        assert (await it.post("logout")).status_code == 303
        assert (await it.get("")).status_code == 303
        gone = await it.post("groups/default/pause", token=stolen)
        assert (gone.status_code, "<h1>Session expired</h1>" in gone.text) == (401, True)
        assert '<a href="/ui/groups/default">Load the page again' in gone.text, "to sign in"


@pytest.mark.parametrize("secure", [False, True])
async def test_cookies_are_for_the_page_alone(tmp_path: Path, secure: bool) -> None:
    async with page(tmp_path, secure=secure) as it:
        (cookie,) = (await it.get("")).headers.get_list("set-cookie")
        words = {word.strip().lower() for word in cookie.split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/ui/"} <= words
        assert ("secure" in words) is secure


async def test_without_tokens_only_this_machine_is_served(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        answer = await it.get("", headers={"Host": "evil.example"})
        assert answer.status_code == 403
        assert "Overview</a>" not in answer.text.replace("Back to the overview", "")


async def test_a_knob_is_previewed_turned_and_turned_back(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, _):
        form = fields_of((await it.get("queues/mail")).text)
        sent = {"before": form["before"], "knob.rate": "0.5", "knob.paused": "", "do": "preview"}
        seen = await it.post("queues/mail/knobs", sent)
        assert seen.status_code == 200
        assert "At most 0.50/s start" in seen.text
        assert it.control.queues.live().queues == {}
        again = fields_of(seen.text.partition("</form>")[2])
        answer = await it.post("queues/mail/knobs", {**again, "do": "apply"}, token=form["token"])
        assert answer.headers["location"] == "/ui/queues/mail?done=turned"
        assert it.control.queues.live().queues["mail"].rate == 0.5
        assert "Workers follow" in await it.shown("queues/mail?done=turned")

        stale = await it.post("queues/mail/knobs", {**again, "do": "apply"}, token=form["token"])
        assert (stale.status_code, "changed since" in stale.text) == (409, True)
        assert "<h1>Changed meanwhile</h1>" in stale.text
        assert '<a href="/ui/queues/mail">Load the page again' in stale.text
        wrong = await it.post("queues/mail/knobs", {"before": '{"rate":0.5}', "knob.rate": "-1"})
        assert (wrong.status_code, "rate must be" in wrong.text) == (400, True)

        (entry,) = it.control.audit.entries(subject="queue:mail")
        undone = await it.post("queues/mail/undo", {"audit": entry.audit_id})
        assert undone.headers["location"] == "/ui/queues/mail?done=undone"
        assert it.control.queues.live().queues == {}
        assert (await it.post("queues/other/undo", {"audit": entry.audit_id})).status_code == 400


async def test_a_target_has_the_knobs_of_targets(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        text = await it.shown("targets/billing")
        assert "knob.breaker" in text
        assert "knob.max_backlog" not in text
        assert 'placeholder="0.5"' in text
        sent = {"before": "{}", "knob.breaker": "0.3", "do": "preview"}
        assert "<td>0.3</td>" in (await it.post("targets/billing/knobs", sent)).text
        answer = await it.post("targets/billing/knobs", {**sent, "do": "apply"})
        assert answer.headers["location"] == "/ui/targets/billing?done=turned"
        assert it.control.queues.live().targets["billing"].breaker == 0.3
        assert it.control.queues.live().queues == {}
        assert "breaker=0.3" in await it.shown("targets")
        (entry,) = it.control.audit.entries(subject="target:billing")
        assert (await it.post("targets/billing/undo", {"audit": entry.audit_id})).status_code == 303
        assert it.control.queues.live().targets == {}


async def test_dead_letters_are_sent_back_and_purged_after_a_preview(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, records):
        seen = await it.post("dead/redrive", {"queue": "mail", "rate": "5", "do": "preview"})
        assert "This would retry: 1" in seen.text
        assert len(it.control.dead_letters.find()) == 1
        sent = fields_of(seen.text.partition('class="preview"')[2])
        assert (sent["queue"], sent["rate"], sent["before"].isdigit()) == ("mail", "5", True)
        unsure = await it.post("dead/purge", {**sent, "do": "apply"}, token=sent["token"])
        assert unsure.status_code == 400
        assert "type &#39;purge&#39; to confirm it" in unsure.text
        assert "This would delete for good: 1" in unsure.text, "the preview is still there"
        assert len(it.control.dead_letters.find()) == 1
        answer = await it.post("dead/redrive", {**sent, "do": "apply"}, token=sent["token"])
        assert answer.headers["location"] == "/ui/dead?done=paced&count=1&rate=5.0"
        assert it.control.dead_letters.find() == []
        assert it.control.tasks.show(records[3].task_id).groups[0].state == "parked"
        gone = await it.post(f"tasks/{records[3].task_id}/redrive", {"group": "default"})
        assert (gone.status_code, "no dead letter any more" in gone.text) == (409, True)
        again = await it.post("dead/redrive", {**sent, "do": "apply"}, token=sent["token"])
        assert again.headers["location"] == "/ui/dead?done=none", "it says that nothing was moved"
        bad = await it.post("dead/purge", {"limit": "many", "do": "preview"})
        assert bad.status_code == 400


async def test_it_says_how_many_were_moved(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, _):
        with transaction(it.url) as connection:
            row = dict(connection.execute(letters.select()).mappings().one())
            for _ in range(6):
                connection.execute(
                    letters.insert().values({**row, "task_id": str(new_id(row["shard_id"]))})
                )

        async def done(deed: str, **fields: str) -> str:
            answer = await it.post(f"dead/{deed}", {"queue": "mail", "do": "apply", **fields})
            return await it.shown(answer.headers["location"].removeprefix("/ui/"))

        assert "4 dead letters retried." in await done("redrive", limit="4")
        slow = await done("redrive", limit="2", rate="0.1")
        assert "2 dead letters retried. They fall due at 0.1 a second, the last in 10 s." in slow
        assert "1 dead letter deleted for good." in await done("purge", confirm="purge")
        assert "Nothing was moved" in await done("redrive")
        for made_up in ("count=x", "", "count=4&rate=nan", "count=4&rate=0", "count=" + 13 * "9"):
            assert "retried" not in await it.shown(f"dead?done=paced&{made_up}"), made_up


async def test_a_preview_that_stopped_counting_says_so_and_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "LOOKED", 1)
    async with filled(tmp_path) as (it, _):
        seen = await it.post("dead/redrive", {"queue": "none", "do": "preview"})
        assert "This would retry: 0+" in seen.text
        assert "late dead redrive --dry-run --exact" in seen.text
        sent = fields_of(seen.text.partition('class="preview"')[2])
        assert sent["queue"] == "none", "more may match than were looked at"


async def test_a_letter_that_was_edited_is_shown_and_edited_as_it_is_now(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, records):
        with transaction(it.url) as connection:
            connection.execute(letters.update().values(payload=b'{"n": "<b>new"}'))
        text = await it.shown(f"tasks/{records[3].task_id}?payload=1")
        assert "Payload in default, where it was edited" in text
        form = text.partition('name="payload"')[2]
        assert form.partition("</textarea>")[0].endswith('{"n": "<b>new"}')
        bad = await it.post(f"tasks/{records[3].task_id}/edit", {"payload": "{oops"})
        assert "{oops</textarea>" in bad.text, "what was typed is not lost"
        assert "edited" not in await it.shown(f"tasks/{records[3].task_id}"), "only when asked for"
        shown = it.control.tasks.show(records[3].task_id, payload=True)
        assert (shown.payload, shown.groups[0].payload) == ("{}", '{"n": "<b>new"}')


async def test_a_group_is_paused_resumed_and_reset_by_its_name(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, _):
        it.control.groups.create("audit", start="beginning")
        await it.post("groups/audit/pause")
        assert it.control.groups.get("audit").state == "paused"
        await it.post("groups/audit/resume")
        assert it.control.groups.get("audit").state != "paused"
        seen = await it.post("groups/audit/reset", {"place": "now", "do": "preview"})
        assert "To begin anew at now" in seen.text
        assert "The log begins at" not in seen.text
        moment = {"place": "moment", "moment": "2026-05-01T14:00:00+02:00", "do": "preview"}
        seen = await it.post("groups/audit/reset", moment)
        assert "To begin anew at 2026-05-01T12:00:00Z" in seen.text
        assert "The log begins at" in seen.text, "older tasks are not kept"
        applied = {"place": "now", "do": "apply"}
        assert (await it.post("groups/audit/reset", applied)).status_code == 400
        assert it.control.groups.get("audit").lag.n == 5
        applied["confirm"] = "audit"
        assert (await it.post("groups/audit/reset", applied)).status_code == 303
        assert it.control.groups.get("audit").lag.n == 0


async def test_a_schedule_is_paused_resumed_and_run(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        add_schedule(it.url)
        assert "nightly" in await it.shown("schedules")
        await it.post("schedules/nightly/pause")
        assert it.control.schedules.all()[0].paused
        await it.post("schedules/nightly/resume")
        assert not it.control.schedules.all()[0].paused
        assert (await it.post("schedules/nightly/run")).status_code == 303
        assert it.control.status.read().queues[0].depth.n == 1
        assert (await it.post("schedules/never/run")).status_code == 400


async def test_a_task_is_cancelled_and_a_dead_one_edited(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, records):
        path = f"tasks/{records[4].task_id}"
        assert (await it.post(f"{path}/cancel", {"group": "default"})).status_code == 303
        path = f"tasks/{records[3].task_id}"
        bad = await it.post(f"{path}/edit", {"group": "default", "payload": "not json"})
        assert bad.status_code == 400
        good = await it.post(f"{path}/edit", {"group": "default", "payload": '{"n": 1}'})
        assert good.status_code == 303


async def test_a_large_payload_is_cut_and_a_large_form_refused(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        large = task(0, b'{"x":"' + b"y" * 200_000 + b'"}')
        insert(it.url, large)
        answer = await it.get(f"tasks/{large.task_id}?payload=1")
        assert (answer.status_code, "And more" in answer.text) == (200, True)
        assert len(answer.content) < 64 * 1024
        refused = await it.post(f"tasks/{large.task_id}/edit", {"payload": "z" * 200_000})
        assert (refused.status_code, "larger than any" in refused.text) == (409, True)


async def test_a_dead_database_is_said_and_the_last_look_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(tmp_path) as (it, _):
        assert "mail" in await it.shown("queues")

        def fails(*args: Any, **kwargs: Any) -> Any:
            raise StoreUnavailable("no route to db.internal, user=admin")

        monkeypatch.setattr(it.control.status, "detailed", fails)
        monkeypatch.setattr(it.control.dead_letters, "page", fails)
        it.site._context.snapshots.forget()
        text = await it.shown("queues")
        assert re.search(r"The database does not answer. What you see is [0-9.]+ m?s old", text)
        assert "mail" in text
        answer = await it.get("dead")
        assert (answer.status_code, "Back to the overview" in answer.text) == (503, True)
        assert "db.internal" not in text + answer.text


async def test_a_stream_says_that_there_is_something_newer(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        await it.get("")
        streams, look = it.site._streams, it.site._context.snapshots
        streams._every_s = 0.001
        over = asyncio.Event()

        async def ended() -> None:
            await over.wait()

        stream = streams.run(ended)
        assert await anext(stream) == b"retry: 3000\n\n"
        look.forget()
        assert await anext(stream) == b"event: look\ndata: 2\n\n"
        assert await anext(stream) == b": beat\n\n"
        assert streams.open == 1
        over.set()
        assert await anext(stream) == b"event: end\ndata: \n\n"
        assert [part async for part in stream] == []
        assert streams.open == 0
        it.site.drain()
        answer = await it.get("live")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert b"event: end" in answer.content


async def test_a_thousand_queues_make_no_large_page(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        insert(it.url, *(task(n % 8, queue=f"queue-{n:04}") for n in range(1_000)))
        for path in ("", "queues", "queues/queue-0007", "shards"):
            answer = await it.get(path)
            assert answer.status_code == 200
            assert len(answer.content) < 64 * 1024, path
        assert "queue-0049" in await it.shown("queues")
        assert "queue-0050" not in await it.shown("queues")
        following = re.search(r'rel="next" href="/ui/([^"]+)"', await it.shown("queues"))
        assert following is not None
        assert "queue-0050" in await it.shown(following[1])
