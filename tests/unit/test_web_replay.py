"""A replay of a window on the screen of a group: rehearsed, carried on, cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import late
from late.control.groups import window
from late.errors import Conflict
from late.outbox import connect
from late.testing import drain
from tests.unit.test_web_routes import token
from tests.unit.web_kit import Page, fields_of, page

SINCE = "2020-01-01T00:00:00Z"
PATH = "groups/default/replay"


def run_tasks(url: str, number: int) -> None:
    """Run so many tasks, and leave them in the log."""
    app = late.App(url)

    @app.task(queue="mail")
    async def note(n: int) -> None:
        """End at once."""

    with connect(url) as tx:
        app.enqueue_many(tx, [note.call(n) for n in range(number)])
    drain(app, wait_s=0.0, timeout_s=60)


async def filled(it: Page) -> str:
    """Keep three tasks that have ended in the log; return a time after them."""
    it.control.groups.set_retention(3_600)
    await asyncio.to_thread(run_tasks, it.url, 3)
    return str(it.control.now())


async def previewed(it: Page, until: str, rate: str, tasks: int = 3) -> dict[str, str]:
    """Return the fields of the form below a preview."""
    seen = await it.post(PATH, {"since": SINCE, "until": until, "rate": rate, "do": "preview"})
    assert seen.status_code == 200, seen.text
    assert f"This would run again in default: {tasks} tasks" in seen.text
    assert f"mail: {tasks}" in seen.text
    return fields_of(seen.text.partition('id="again"')[2]) | {"do": "apply"}


async def test_a_window_is_rehearsed_and_replayed_once(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        sent = await previewed(it, await filled(it), "100")
        assert it.control.groups.window_state("default") is None, "a rehearsal changes nothing"
        done = await it.post(PATH, sent, token=sent["token"])
        assert done.headers["location"] == "/ui/groups/default?done=replayed"
        state = it.control.groups.window_state("default")
        assert state is not None
        assert (state.copied, state.rate, state.cancelled) == (3, 100.0, False)
        assert state.finished_us is not None
        assert "3 tasks put back, 100 a second" in await it.shown("groups/default")
        assert (await it.post(PATH, sent, token=sent["token"])).status_code == 409
        twice = await it.post(PATH, {**sent, "do": "preview"}, token=sent["token"])
        assert "3 tasks of this window were replayed already" in twice.text
        (entry,) = it.control.audit.entries(subject="group:default", limit=1)
        assert entry.action == "group.replayed"


@pytest.mark.parametrize("tasks", [0, 3])
async def test_a_log_that_does_not_reach_back_names_the_remedy(tmp_path: Path, tasks: int) -> None:
    async with page(tmp_path) as it:
        until = await filled(it) if tasks else str(it.control.now())
        seen = await it.post(PATH, {"since": SINCE, "until": until, "rate": "1", "do": "preview"})
        said = "what is older is not kept" if tasks else "The log keeps no task that has ended"
        assert said in seen.text
        assert "<code>late retention 7d</code> keeps more from now on" in seen.text


async def test_a_replay_is_carried_on_slice_by_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "SLICE", 1)
    async with page(tmp_path) as it:
        sent = await previewed(it, await filled(it), "100")
        await it.post(PATH, sent, token=sent["token"])
        async with asyncio.timeout(60):
            await it.site._context.replays._tasks["default"]
        state = it.control.groups.window_state("default")
        assert state is not None
        assert state.finished_us is not None
        assert state.copied == 3


async def test_a_replay_is_cancelled_for_all_and_another_one_may_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "SLICE", 1)
    async with page(tmp_path) as it:
        until = await filled(it)
        sent = await previewed(it, until, "0.01")
        await it.post(PATH, sent, token=sent["token"])
        shown = await it.shown("groups/default")
        assert "under way" in shown
        assert "1 of 3 tasks put back" in shown
        other = {**sent, "until": str(int(until) - 1)}
        assert "cancel it first" in (await it.post(PATH, other, token=sent["token"])).text
        assert (await it.post("groups/default/stop-replay")).status_code == 303
        shown = await it.shown("groups/default")
        assert "cancelled" in shown
        assert "Cancel the replay" not in shown
        state = it.control.groups.window_state("default")
        assert state is not None
        with pytest.raises(Conflict, match="cancelled after 1 tasks"):
            it.control.groups.replay_window("default", state.since_us, state.until_us, rate=0.01)
        assert (await it.post("groups/default/stop-replay")).status_code == 409
        await previewed(it, until, "100", tasks=2)  # The third waits for its time.


async def test_a_replay_that_was_left_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "SLICE", 1)
    async with page(tmp_path) as it:
        sent = await previewed(it, await filled(it), "0.01")
        await it.post(PATH, sent, token=sent["token"])
        it.site._context.replays.leave("default")
        shown = await it.shown("groups/default")
        assert "not ended" in shown
        assert "Preview the rest" in shown


async def test_who_may_look_sees_no_button_and_is_refused(tmp_path: Path) -> None:
    viewer, one = token("eve", "view")
    some, two = token("some", "operate", queues=("mail",))
    async with page(tmp_path, tokens=[one, two]) as it:
        await filled(it)
        head = {"Authorization": f"Bearer {viewer}"}
        shown = await it.get("groups/default", headers=head)
        assert shown.status_code == 200
        assert "Replay from" not in shown.text
        form = fields_of((await it.get("queues/mail", headers=head)).text)
        for path in (PATH, "groups/default/stop-replay"):
            refused = await it.post(path, token=form["token"], headers=head)
            assert refused.status_code == 403
        head = {"Authorization": f"Bearer {some}"}
        form = fields_of((await it.get("queues/mail", headers=head)).text)
        assert (await it.post(PATH, token=form["token"], headers=head)).status_code == 404
        assert it.control.groups.window_state("default") is None
