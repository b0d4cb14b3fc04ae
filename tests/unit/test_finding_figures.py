"""Findings on the disk and on schedules name what is behind them."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from late.autoscaler.keda.demand import Signals
from late.control.findings.findings import findings
from late.control.findings.phrases import size
from late.control.status.disk import Disk, disk_of
from late.control.views import Count
from late.model.worker_report import ScheduleSlips
from late.schema.engine import make_engine
from tests.unit.test_findings import STUCK, TASK, reported, with_reports
from tests.unit.test_web_views import NOW_US, group, seen


def test_a_full_disk_says_what_fills_it_and_advises_by_that() -> None:
    tables = (("late_settlement", 40 * 2**20), ("late_task", 3 * 2**20))
    disk = Disk(2**20, 64 * 2**20, "/my data", "/my data/late.db", 50 * 2**20, tables)
    [ours] = findings(msgspec.structs.replace(seen(), disk=disk))
    assert "1.0 MiB of 64.0 MiB are free (1.6%) on /my data." in ours.detail
    assert "/my data/late.db takes 50.0 MiB, other files take 13.0 MiB." in ours.detail
    assert "The biggest tables of late: late_settlement 40.0 MiB, late_task 3.0 MiB." in ours.detail
    assert ours.command == "late retention"
    small = msgspec.structs.replace(disk, file_bytes=2**20)
    [others] = findings(msgspec.structs.replace(seen(), disk=small))
    assert "What helps: delete or move other files" in others.detail
    assert others.command == "du -xah '/my data' | sort -h | tail"


def test_a_disk_is_measured_where_it_is_nearly_full(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(url)
    if not url.startswith("sqlite"):
        assert disk_of(engine) is None, "no SQL asks for the disk of a server"
        engine.dispose()
        return
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=usage.total // 2))
    roomy = disk_of(engine)
    assert roomy is not None
    assert (roomy.file_bytes, roomy.tables) == (None, ()), "nobody asks while there is room"
    assert Path(roomy.mount).is_mount()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1))
    full = disk_of(engine)
    engine.dispose()
    assert full is not None
    assert full.file_bytes is not None
    assert 0 < sum(n for _, n in full.tables) <= full.file_bytes
    assert all(name.startswith("late_") for name, _ in full.tables)


def test_a_schedule_says_how_often_it_fires_and_how_long_its_task_runs() -> None:
    slips = ScheduleSlips(
        "minutely", skipped=3, at_us=NOW_US - 2_000_000, overlap="skip", open_task_id=TASK,
        rule="every 60s",
    )  # fmt: skip
    [found] = findings(with_reports(seen(), reported(slips=(slips,), runs=(STUCK,))))
    assert found.detail == (
        f"3 were left out, the last 2.0 s ago: the task {TASK} of an earlier tick had not ended "
        "(overlap=skip). It fires every 1.0 min, and that task has run for 5.0 min so far. "
        "What helps: a longer interval, or a task that ends sooner."
    )
    cron = msgspec.structs.replace(slips, rule="*/5 * * * *", open_task_id="")
    [other] = findings(with_reports(seen(), reported(slips=(cron,), runs=(STUCK,))))
    assert "It fires at */5 * * * *. What helps" in other.detail


def test_after_a_time_without_a_record_a_schedule_names_no_task_as_the_cause() -> None:
    """A full disk looks so: the first tick waits for its settlement, and its task is there then."""
    slips = ScheduleSlips(
        "minutely", skipped=12, overlaps=1, late=2, at_us=NOW_US - 2_000_000, late_us=720_000_000,
        overlap="skip", open_task_id=TASK, rule="every 60s",
    )  # fmt: skip
    [found] = findings(with_reports(seen(), reported(slips=(slips,), runs=(STUCK,))))
    assert found.what == "Schedule minutely skips ticks"
    assert found.detail == (
        "12 were left out, the last 2.0 s ago: for 12 min from its time on, no tick was recorded. "
        "Either no worker of the default group was there, or the database took no writes. It fires"
        " every 1.0 min. What helps: the log of the workers of that time says what was in the way."
    )
    assert found.command == "late schedule list"
    later = msgspec.structs.replace(slips, late_us=2_000_000)
    [found] = findings(with_reports(seen(), reported(slips=(later,))))
    assert f"the task {TASK} of an earlier tick had not ended" in found.detail, "the last was early"


def test_sizes_are_short() -> None:
    sizes = (0, 1_023, 1_024, 64 * 2**20, 100 * 2**20, int(2.4 * 2**30), 3 * 2**40)
    assert [size(n) for n in sizes] == [
        "0 bytes", "1023 bytes", "1.0 KiB", "64.0 MiB", "100 MiB", "2.4 GiB", "3,072 GiB",
    ]  # fmt: skip


def test_a_backlog_of_which_all_fails_has_no_end() -> None:
    look = seen(groups=(group(stale_s=90.0),))
    texts = []
    for failed in (0.5, 2.0):
        pace = Signals(900, 90.0, 2.0, 0.5, 1, 8, failed=failed)
        found = findings(msgspec.structs.replace(look, signals={"default": pace}))
        texts.append(next(each.detail for each in found if "stale" in each.what))
    assert " 900 wait, and 1.50/s end: that takes 10 min. " in texts[0]
    assert " 900 wait, and 0/s end. " in texts[1]
    some = group(stale_s=90.0, lag=Count(900, capped=True))
    pace = Signals(900, 90.0, 2.0, 0.5, 1, 8)
    look = msgspec.structs.replace(look, groups=(some,), signals={"default": pace})
    assert " 900+ wait, and 2/s end: that takes more than 7.5 min." in findings(look)[0].detail


def test_more_workers_are_the_advice_only_where_they_help() -> None:
    free = Signals(900, 90.0, 2.0, 0.5, 1, 8)
    full = msgspec.structs.replace(free, workers=8)
    texts = []
    for pace in (free, full):
        look = seen(groups=(group(stale_s=90.0),))
        [found] = findings(msgspec.structs.replace(look, signals={"default": pace}))
        texts.append((found.detail.partition("What helps: ")[2][:12], found.command))
    assert texts == [
        ("more workers", "late worker MODULE:APP --group default"),
        ("more tasks a", "late group show default"),
    ]
