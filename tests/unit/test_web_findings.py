"""What the screens say of what a look has found, and of what it could not read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from late.control.status.snapshot import Snapshot
from late.control.status.snapshot import look as whole
from late.model.worker_report import ScheduleSlips
from late.schema.tables import schedule
from late.web import snapshot
from tests.integration.control_kit import transaction
from tests.unit.test_findings import reported
from tests.unit.web_kit import fill, page


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
        with transaction(it.url) as connection:
            row = {"name": "nightly", "shard_id": 1, "rule": "0 3 * * *", "zone": "UTC",
                   "catch_up": "latest", "catch_up_max": 1, "overlap": "skip", "queue": "mail",
                   "task_name": "report", "payload": b"{}", "anchor_us": 0,
                   "next_due_at_us": 10**15, "updated_at_us": 1}  # fmt: skip
            connection.execute(schedule.insert().values(**row))
        slips = ScheduleSlips("nightly", skipped=3, at_us=it.control.now())
        told = (reported(slips=(slips,)),)
        looks(monkeypatch, msgspec.structs.replace(whole(it.control), reports=told))
        assert "3 were left out, the last" in await it.shown("schedules")
