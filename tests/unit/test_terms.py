"""The terms of a schedule: each of its ticks fits them, and nothing else does."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from late.errors import DecodeError
from late.model.cron import dues_us
from late.model.task import Options, Record, Schedule
from late.model.ticks import tick
from late.payload import terms
from late.scheduler.schedules import fire

DAY_US = 86_400_000_000
RULES = [
    "* * * * *", "*/7 * * * *", "30 2 * * *", "30 1 * * *", "0 */2 * * *", "*/15 2 * * *",
    "0 0 * * 0", "59 23 31 12 *", "0,30 1,2,3 * * *", "every 90s", "every 1.5s",
    "every 86400.000001s",
]  # fmt: skip
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]


def schedule(**changes: Any) -> Schedule:
    plain = Schedule(
        name="nightly", shard_id=3, rule="0 3 * * *", zone="UTC", catch_up="latest",
        catch_up_max=3, overlap="queue", queue="q", task_name="n", payload=b"LS2",
        options='{"priority":2}', anchor_us=terms.ANCHOR_US, next_due_at_us=None,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def judge(of: Schedule, due_us: int, created_at_us: int) -> None:
    row = tick(of, due_us, is_bound=True)
    record = Record(row.shard_id, 1, row.task_id, row.queue, row.name, row.payload, row.headers,
                    row.options, created_at_us, 1)  # fmt: skip
    kind, text = terms.of_schedule(of)
    terms.check(kind, text, record, msgspec.json.decode(row.options or "", type=Options))


def us(*when: int) -> int:
    return round(datetime(*when, tzinfo=UTC).timestamp()) * 1_000_000  # type: ignore[arg-type, misc]


@settings(deadline=None)  # machines under load are not what is tested
@given(
    rule=st.sampled_from(RULES),
    zone=st.sampled_from(ZONES),
    hour=st.integers(0, 2 * 366 * 24),
    overlap=st.sampled_from(["allow", "queue"]),
)
def test_every_due_time_of_a_rule_fits(rule: str, zone: str, hour: int, overlap: str) -> None:
    of = schedule(rule=rule, zone=zone, overlap=overlap)
    start_us = us(2026, 1, 1) + hour * 3_600_000_000
    dues = dues_us(rule, zone, anchor_us=of.anchor_us, after_us=start_us)
    for due_us in islice(dues, 20):
        judge(of, due_us, due_us)
        with pytest.raises(DecodeError, match="not at a due time"):
            judge(of, due_us + 1, due_us)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe"])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "59 23 31 12 *"])
def test_due_times_around_a_change_of_the_clocks_fit(rule: str, zone: str) -> None:
    of = schedule(rule=rule, zone=zone)
    for day in ((2026, 3, 28), (2026, 4, 4), (2026, 10, 3), (2026, 10, 24)):
        start_us = us(*day)
        for due_us in islice(dues_us(rule, zone, anchor_us=of.anchor_us, after_us=start_us), 200):
            judge(of, due_us, due_us)


@pytest.mark.parametrize(("catch_up", "days"), [("skip", 1), ("latest", 1), ("all", 3)])
def test_a_tick_fits_until_a_day_after_its_turn(catch_up: str, days: int) -> None:
    of = schedule(catch_up=catch_up)
    due_us = us(2026, 5, 1, 3)
    over_us = due_us + days * DAY_US  # then others have taken its turn
    judge(of, due_us, over_us + terms.TICK_AGE_US)
    with pytest.raises(DecodeError, match="too old"):
        judge(of, due_us, over_us + terms.TICK_AGE_US + 1)


@pytest.mark.parametrize("catch_up", ["skip", "latest", "all"])
@pytest.mark.parametrize("missed", [0, 1, 2, 50])
def test_what_an_owner_fires_after_a_downtime_fits(catch_up: str, missed: int) -> None:
    due_us = us(2026, 5, 1, 3)
    of = schedule(catch_up=catch_up, next_due_at_us=due_us)
    now_us = due_us + missed * DAY_US + 5_000_000
    fired = fire(of, now_us).tasks
    assert fired
    for task in fired:
        at_us = msgspec.json.decode(task.options or "", type=Options).at_us
        assert at_us is not None
        judge(of, at_us, now_us)


def test_a_schedule_in_the_first_form_makes_the_ticks_that_it_made() -> None:
    of = schedule(payload=b"LS1", next_due_at_us=us(2026, 5, 1, 3))
    [task] = fire(of, us(2026, 5, 1, 3)).tasks
    assert msgspec.json.decode(task.options or "", type=Options) == Options(
        priority=2, schedule="nightly", ordering_key="schedule:nightly"
    )


@pytest.mark.parametrize("body", [b"", b"x", b"s", b"s\0\0", b"s\0\0\0\x05abcd", b"T"])
def test_a_frame_without_terms_is_refused(body: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        terms.split(body)
    assert caught.value.reason == "bad_signature"
