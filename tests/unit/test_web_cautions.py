"""What loses or repeats work says what will happen, with the number of tasks, and asks once."""

from __future__ import annotations

from pathlib import Path

from late.schema.engine import make_engine, write
from late.schema.tables import dead
from tests.unit.test_web_routes import filled


def kill_workers(url: str) -> None:
    """Give all dead letters the reason of those under which workers died."""
    engine = make_engine(url)
    write(engine, lambda c: c.execute(dead.update().values(reason="killed_worker", deaths=2)))
    engine.dispose()


async def test_a_retry_of_what_has_killed_workers_is_asked_for_once(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, records):
        path, group = f"tasks/{records[3].task_id}", {"group": "default"}
        kill_workers(it.url)
        asked = await it.post(f"{path}/redrive", group)
        assert asked.status_code == 200
        assert "This would retry 1 task that has killed workers" in asked.text
        assert "workers died while it ran in default. A retry may kill workers" in asked.text
        assert len(it.control.dead_letters.find()) == 1, "nothing is done yet"
        done = await it.post(f"{path}/redrive", {**group, "do": "apply"})
        assert done.status_code == 303
        assert it.control.dead_letters.find() == []


async def test_a_retry_of_another_dead_letter_asks_nothing(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, records):
        path = f"tasks/{records[3].task_id}/redrive"
        assert (await it.post(path, {"group": "default"})).status_code == 303
        assert it.control.dead_letters.find() == []


async def test_a_preview_of_a_retry_counts_those_that_have_killed_workers(tmp_path: Path) -> None:
    async with filled(tmp_path) as (it, _):
        calm = await it.post("dead/redrive", {"queue": "mail", "do": "preview"})
        assert "These tasks run again" in calm.text
        assert "A retry may kill workers" not in calm.text
        kill_workers(it.url)
        seen = await it.post("dead/redrive", {"queue": "mail", "do": "preview"})
        assert "Workers died again and again under 1 of those that match." in seen.text
        purge = await it.post("dead/purge", {"queue": "mail", "do": "preview"})
        assert "their work is never done. This cannot be undone." in purge.text


async def test_a_reset_says_what_never_runs_and_a_cancel_that_it_is_for_good(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path) as (it, _):
        it.control.groups.create("audit", start="beginning")
        seen = await it.post("groups/audit/reset", {"place": "now", "do": "preview"})
        assert "Tasks that wait and then never run in it: 5." in seen.text
        sent = {"state": "parked", "group": "default", "do": "preview"}
        cancel = await it.post("tasks/cancel", sent)
        assert "This would cancel: 1" in cancel.text
        assert "<li>1 <code>" in cancel.text
        assert "No attempt of these tasks starts any more" in cancel.text
