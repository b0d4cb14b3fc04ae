"""What the screens say of what a look has found, and of what it could not read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from late.control.audit import acting
from late.control.status.snapshot import Snapshot
from late.control.status.snapshot import look as whole
from late.model.worker_report import ScheduleSlips
from late.web import snapshot
from tests.unit.test_findings import reported
from tests.unit.web_kit import add_schedule, fields_of, fill, page


def looks(monkeypatch: pytest.MonkeyPatch, found: Snapshot) -> None:
    monkeypatch.setattr(snapshot, "look", lambda *args, **options: found)


async def test_while_the_tables_are_locked_nothing_is_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with page(tmp_path) as it:
        await fill(it.url)
        known = whole(it.control)
        status = msgspec.structs.replace(known.status, queues=(), shards=(), workers=())
        looks(monkeypatch, msgspec.structs.replace(known, status=status, groups=(), partial=True))
        for path in ("", "workers", "queues", "queues/mail"):
            text = await it.shown(path)
            assert "Not known while the tables are locked." in text, path
            assert "No worker is alive" not in text
            assert "has tasks" not in text


async def test_a_schedule_says_which_ticks_were_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with page(tmp_path) as it:
        add_schedule(it.url)
        slips = ScheduleSlips("nightly", skipped=3, at_us=it.control.now())
        told = (reported(slips=(slips,)),)
        looks(monkeypatch, msgspec.structs.replace(whole(it.control), reports=told))
        assert "3 were left out, the last" in await it.shown("schedules")


@pytest.mark.parametrize("kind", ["queue", "target"])
async def test_a_queue_and_a_target_are_paused_by_one_button(tmp_path: Path, kind: str) -> None:
    async with page(tmp_path) as it:
        live = {"rate": 5.0}
        it.control.queues.change(kind, "mail", live)  # type: ignore[arg-type]
        for button, paused in (("Pause", True), ("Resume", False)):
            text = (await it.get(f"{kind}s/mail")).text
            form, _, rest = text.partition(f'<button name="do" value="apply">{button}</button>')
            assert rest, text
            sent = fields_of(form.rpartition("<form")[2])
            answer = await it.post(f"{kind}s/mail/knobs", {**sent, "do": "apply"})
            assert answer.headers["location"] == f"/ui/{kind}s/mail?done=turned"
            known = it.control.queues.live()
            knobs = (known.queues if kind == "queue" else known.targets)["mail"]
            assert (bool(knobs.paused), knobs.rate) == (paused, 5.0), "no other knob is changed"


async def test_a_task_says_what_was_asked_for_it_and_by_whom(tmp_path: Path) -> None:
    async with page(tmp_path) as it:
        parked = (await fill(it.url))[2]
        assert "Asked for" not in await it.shown(f"tasks/{parked.task_id}")
        with acting("olga"):
            it.control.tasks.cancel(parked.task_id)
        text = await it.shown(f"tasks/{parked.task_id}")
        assert "cancel, by olga" in text
        assert "What runs goes on to its end." in text
