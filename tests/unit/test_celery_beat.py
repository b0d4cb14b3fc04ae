"""`beat_schedule` as schedules of `late`: the cadence, the refusals, the command, the handover."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import late
from late import celery
from late.celery import beat
from late.celery.schedules import crontab, schedule
from late.control import Control
from late.model.cron import check, dues_us
from late.testing import drain
from tests.support import sqlite
from tests.unit.cli_kit import Cli

# Made with Celery 5.7: the times at which its own `crontab` is due, from 2026-01-14 12:34:56 UTC.
CELERY = json.loads((Path(__file__).parent / "celery_crontab.json").read_text())
START_US = int(datetime(2026, 1, 14, 12, 34, 56, tzinfo=UTC).timestamp()) * 1_000_000


def first_dues(rule: str, count: int, after_us: int = START_US) -> list[datetime]:
    """The first due times, of those within eight years."""
    dues = dues_us(rule, "UTC", anchor_us=0, after_us=after_us)
    return [datetime.fromtimestamp(due // 1_000_000, UTC) for due in islice(dues, count)]


@pytest.mark.parametrize("case", CELERY, ids=lambda case: json.dumps(case["given"]))
def test_a_crontab_is_due_when_it_is_with_celery(case: Any) -> None:
    cadence = crontab(**case["given"])
    try:
        rule = beat.cron_of(cadence)
    except celery.NotSupported:
        # Some days of the month and of the week together; see the next test.
        assert 1 not in cadence.day_of_month
        assert 0 not in cadence.day_of_week
        return
    check(rule, "UTC")
    found = [f"{due:%Y-%m-%dT%H:%M}" for due in first_dues(rule, 8)]
    assert found == [due for due in case["due"] if due < "2035"]


def some(most: range) -> st.SearchStrategy[set[int]]:
    every = st.just(set(most))
    steps = st.integers(1, len(most)).map(lambda step: set(most[::step]))
    return every | steps | st.sets(st.sampled_from(most), min_size=1)


@given(some(range(1, 32)), some(range(7)), some(range(1, 13)))
def test_a_day_is_in_all_three_fields(days: set[int], weekdays: set[int], months: set[int]) -> None:
    cadence = crontab(0, 0, weekdays, days, months)
    day, end = date(2026, 1, 1), date(2028, 3, 1)
    expected = []
    while day < end:
        if day.day in days and day.isoweekday() % 7 in weekdays and day.month in months:
            expected.append(day)
        day += timedelta(1)
    try:
        rule = beat.cron_of(cadence)
    except celery.NotSupported:
        assert len(days) < 31
        assert len(weekdays) < 7
        return
    before_us = int(datetime(2025, 12, 31, 23, tzinfo=UTC).timestamp()) * 1_000_000
    assert [due.date() for due in first_dues(rule, min(9, len(expected)), before_us)] == (
        expected[:9]
    )


@given(some(range(60)), some(range(24)))
def test_a_time_is_in_both_fields(minutes: set[int], hours: set[int]) -> None:
    rule = beat.cron_of(crontab(minutes, hours))
    before_us = int(datetime(2025, 12, 31, 23, 59, tzinfo=UTC).timestamp()) * 1_000_000
    expected = [(hour, minute) for hour in sorted(hours) for minute in sorted(minutes)]
    found = first_dues(rule, len(expected), before_us)
    assert [(due.hour, due.minute) for due in found] == expected


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"minute": "*/15", "hour": "7-19", "day_of_week": "mon-fri"}, "*/15 7-19 * * mon-fri"),
        ({"minute": 0, "hour": 9, "day_of_month": "1-7", "day_of_week": "mon"}, "0 9 * * mon#1"),
        (
            {"minute": 0, "hour": 9, "day_of_month": "1-5", "day_of_week": "mon-fri"},
            "0 9 */31,2-5 * mon-fri",
        ),
        (
            {"minute": 0, "hour": 9, "day_of_month": "2-5", "day_of_week": "sat,sun"},
            "0 9 2-5 * */8,sat",
        ),
    ],
)
def test_a_rule_reads_well(given: Any, rule: str) -> None:
    assert beat.cron_of(crontab(**given)) == rule


@pytest.mark.parametrize(
    "given",
    [
        {"minute": 60}, {"minute": "60"}, {"minute": ""}, {"hour": "1,"}, {"minute": "5/10"},
        {"minute": "*/0"}, {"day_of_month": 0}, {"day_of_week": 7}, {"day_of_week": "noday"},
        {"minute": "-1"}, {"minute": "1-61"}, {"hour": []},
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_read_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="crontab"):
        crontab(**given)


class Own(schedule):
    """A schedule class of a project."""


def test_what_cannot_be_said_here_has_its_reason() -> None:
    app = shop("sqlite:///none.db")
    solar = type("solar", (), {"__module__": "celery.schedules"})()
    app.conf.beat_schedule = {
        "sun": {"task": "add", "schedule": solar},
        "own": {"task": "add", "schedule": Own(60)},
        "fast": {"task": "add", "schedule": 0.5},
        "round": {"task": "add", "schedule": schedule(60, relative=True)},
        "either": {"task": "add", "schedule": crontab(0, 9, "mon", "13")},
        "never": {"task": "add", "schedule": crontab(0, 9, day_of_month=31, month_of_year=2)},
        "else": {"task": "other", "schedule": 60},
        "eta": {"task": "add", "schedule": 60, "options": {"countdown": 5}},
        "moment": {"task": "add", "schedule": 60, "options": {"expires": datetime.now(UTC)}},
        "link": {"task": "add", "schedule": 60, "options": {"link": "x"}},
        "one two": {"task": "add", "schedule": 60, "args": (1, 2)},
        "one-two": {"task": "add", "schedule": 60, "args": (1, 2)},
        "few": {"task": "add", "schedule": 60, "args": (1,)},
        "other": {"task": "add", "schedule": 60, "kwargs": {"x": 1, "y": 2, "z": 3}},
        "text": {"task": "add", "schedule": 60, "args": "12"},
    }
    found = {entry.key: entry.reason for entry in beat.declare(beat.read(app), app)}
    expected = {
        "sun": "follows the sun",
        "own": "Own is a schedule of the project",
        "fast": "at least 1 s",
        "round": "use crontab",
        "either": "test the day in the task",
        "never": "cannot be read",
        "else": "not registered",
        "eta": "countdown",
        "moment": "expires at a fixed time",
        "link": "link",
        "one-two": "exists already",
        "few": "missing a required argument: 'y'",
        "other": "unexpected keyword argument 'z'",
        "text": "must be a list or tuple",
    }
    assert {key for key, reason in found.items() if reason} == expected.keys()
    for key, part in expected.items():
        assert part in str(found[key]), key
    app.conf.beat_scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
    with pytest.raises(late.errors.ConfigError, match="DatabaseScheduler"):
        beat.read(app)


def shop(url: str) -> celery.Celery:
    app = celery.Celery("shop", late_app=late.App(url), timezone="Europe/Berlin")
    add = app.task(name="add", expires=600)(lambda x, y: x + y)
    app.conf.beat_schedule = {
        "weekdays at 7": {
            "task": "add",
            "schedule": crontab(0, 7, "mon-fri"),
            "args": (1, 2),
            "options": {"queue": "reports", "expires": timedelta(hours=1), "priority": 9},
        },
        "often": {"task": "add", "schedule": timedelta(seconds=90), "kwargs": {"x": 1, "y": 2}},
    }
    app.add_periodic_task(crontab(minute=0, hour="*/6"), add.s(3, 4), queue="slow")
    return app


def test_the_schedules_have_what_the_entries_say(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "late.db")
    app = shop(url)
    entries = beat.declare(beat.read(app), app)
    assert beat.apply(entries, app) == ["add-3-4", "often", "weekdays-at-7"]
    assert beat.apply(entries, app) == []
    with Control(url) as control:
        found = {one.name: one for one in control.schedules.all()}
    assert {
        name: (one.rule, one.zone, one.queue, one.overlap, one.catch_up)
        for name, one in found.items()
    } == {
        "add-3-4": ("0 */6 * * *", "Europe/Berlin", "slow", "allow", "latest"),
        "often": ("every 90s", "Europe/Berlin", "default", "allow", "latest"),
        "weekdays-at-7": ("0 7 * * mon-fri", "Europe/Berlin", "reports", "allow", "latest"),
    }
    payloads = {name: json.loads(one.payload) for name, one in found.items()}
    assert payloads["weekdays-at-7"] == {"args": [1, 2], "kwargs": {}}
    assert payloads["often"] == {"args": [], "kwargs": {"x": 1, "y": 2}}
    given = {name: json.loads(one.options or "{}") for name, one in found.items()}
    assert given["weekdays-at-7"] == {"expires_in_us": 3_600_000_000, "priority": 90}
    assert given["often"] == {"expires_in_us": 600_000_000}
    with Control(url) as control:
        control.schedules.run("weekdays-at-7")
    assert drain(app.late_app) == {"done": 1}


def test_the_command_shows_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = sqlite.database(tmp_path / "late.db")
    cli = Cli(capsys, url)
    made = {"one": shop(url), "two": shop(url), "three": shop(url)}
    made["three"].conf.beat_schedule["fast"] = {"task": "add", "schedule": 0.5}
    named = {name.partition(":")[2]: app for name, app in made.items()} | made
    monkeypatch.setattr("late.cli.celery.load", lambda target: named.get(target, target))
    shown = cli.fine("celery", "beat", "one")
    assert "nothing is written" in shown.out
    assert "0 7 * * mon-fri" in shown.out
    with Control(url) as control:
        assert control.schedules.all() == []
    written = cli.fine("celery", "beat", "two", "--apply", "--json").json
    assert written["written"] == ["add-3-4", "often", "weekdays-at-7"]
    assert {entry["verdict"] for entry in written["entries"]} == {"late"}
    ended = cli("celery", "beat", "three", "--apply")
    assert ended.code == 1
    assert "at least 1 s" in ended.out
    assert "0 schedules written" in ended.out
    assert "no app of Celery" in cli.refused("celery", "beat", "other")


def test_a_beat_of_celery_leaves_out_what_late_fires(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "late.db")
    app = shop(url)
    beat.apply(beat.declare(beat.read(app), app), app)
    running = {
        "weekdays at 7": SimpleNamespace(task="add"),
        "often": SimpleNamespace(task="another"),
        "sun": SimpleNamespace(task="add"),
    }
    service = SimpleNamespace(scheduler=SimpleNamespace(schedule=running))
    assert beat.leave_to_late(service, app) == ["weekdays at 7"]
    assert [*running] == ["often", "sun"]
    away = celery.Celery("away", late_app=late.App(f"sqlite:///{tmp_path}/none/none.db"))
    with pytest.raises(SystemExit, match="beat does not start"):
        beat.leave_to_late(service, away)


def test_an_entry_of_the_local_time_needs_a_zone() -> None:
    class Loader:
        def import_default_modules(self) -> None: ...

    conf = {"timezone": None, "enable_utc": False}
    plain = {
        "clock": {"task": "add", "schedule": crontab(0, 7)},
        "often": {"task": "add", "schedule": 60.0},
    }
    app = SimpleNamespace(loader=Loader(), finalize=lambda auto: None,
                          conf=SimpleNamespace(**conf, beat_schedule=plain))  # fmt: skip
    clock, often = beat.read(app)
    assert "set `timezone`" in str(clock.reason)
    assert (often.rule, often.reason) == ("every 60s", None)
    app.conf.enable_utc = True
    assert [msgspec.structs.asdict(one)["reason"] for one in beat.read(app)] == [None, None]
