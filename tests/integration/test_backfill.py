"""The ticks of a past time are enqueued once, on every store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from late.control import Control, backfill
from late.errors import ConfigError
from late.model.ticks import tick_id
from late.store import open_store
from tests.conformance.kit import read_all, task
from tests.integration.control_kit import execute, rows
from tests.integration.test_control_schedules import NIGHTLY, OFTEN


@pytest.fixture
def control(url: str) -> Any:
    with Control(url) as made:
        made.schedules.sync([NIGHTLY])
        yield made


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


async def test_ticks_are_enqueued_once_with_their_own_ids(url: str, control: Control) -> None:
    """03:00 in New York is 08:00 in winter, and 07:00 from the 8th of March on."""
    dues = [at("2026-03-07T08:00"), at("2026-03-08T07:00"), at("2026-03-09T07:00")]
    span = (dues[0], dues[2] + 1)
    plan = control.schedules.backfill("nightly", *span, dry_run=True)
    assert (plan.ticks, plan.known, plan.enqueued) == (3, 0, 3)
    assert (plan.first_us, plan.last_us) == (dues[0], dues[2])
    assert rows(url, "select count(*) from late_task") == [(0,)]
    part = control.schedules.backfill("nightly", dues[0], dues[1])
    assert (part.ticks, part.enqueued) == (1, 1), "the end is left out"
    done = control.schedules.backfill("nightly", *span)
    assert (done.ticks, done.known, done.enqueued, done.first_us) == (3, 1, 2, dues[1])
    again = control.schedules.backfill("nightly", *span)
    assert (again.known, again.enqueued) == (3, 0)
    store = open_store(url)
    await store.open()
    wanted = [msgspec.structs.replace(task(3), task_id=tick_id("nightly", 3, due)) for due in dues]
    found, _ = await read_all(store, wanted)
    assert {record.task_id for record in found} == {each.task_id for each in wanted}
    assert {record.queue for record in found} == {"reports"}
    assert '"late-schedule":"nightly"' in (found[0].headers or "")
    await store.close()
    actions = [entry.action for entry in control.audit.entries(subject="schedule:nightly")]
    assert actions == ["schedule.backfill", "schedule.backfill", "schedule.declare"]


def test_a_tick_that_the_owner_will_fire_is_its_own(url: str, control: Control) -> None:
    due = at("2026-03-08T07:00")
    execute(url, "update late_schedule set next_due_at_us = :due", due=due)
    found = control.schedules.backfill("nightly", at("2026-03-07T00:00"), at("2026-03-20T00:00"))
    assert (found.ticks, found.last_us) == (1, at("2026-03-07T08:00"))


def test_what_a_history_keeps_is_known(url: str, control: Control) -> None:
    due = at("2026-03-07T08:00")
    execute(
        url,
        "insert into late_history (consumer_group, task_id, number, at_us, event, worker) values"
        " ('default', :id, 1, 1, 'done', 'w')",
        id=tick_id("nightly", 3, due),
    )
    found = control.schedules.backfill("nightly", due, due + 1)
    assert (found.known, found.enqueued) == (1, 0)


def test_a_change_between_look_and_write_is_looked_at_again(
    url: str, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two backfills of one time at once enqueue each tick once."""
    span, plans = (at("2026-03-07T00:00"), at("2026-03-10T00:00")), []
    real = backfill._plan

    def planned(*args: Any, **kwargs: Any) -> Any:
        plans.append(real(*args, **kwargs))
        return plans[-1]

    monkeypatch.setattr(backfill, "_plan", planned)
    write = backfill.write

    def other_first(engine: Any, work: Any) -> None:
        monkeypatch.setattr(backfill, "write", write)
        assert control.schedules.backfill("nightly", *span).enqueued == 3
        write(engine, work)

    monkeypatch.setattr(backfill, "write", other_first)
    assert control.schedules.backfill("nightly", *span).enqueued == 0
    assert len(plans) == 3
    assert rows(url, "select count(*) from late_task") == [(3,)]


def test_what_makes_no_backfill(control: Control) -> None:
    control.schedules.sync([OFTEN])
    execute(control._database.url, "update late_schedule set anchor_us = 1000")
    for arguments, words in (
        (("nope", 0), "no schedule 'nope'"),
        (("nightly", 10, 10), "ends before it begins"),
        (("nightly", 2**60, 2**60 + 1), "has not come"),
        (("nightly", 0), "of a year at most"),
        (("often", at("2026-03-01T00:00"), at("2026-04-01T00:00")), "more than 1000 ticks"),
    ):
        with pytest.raises(ConfigError, match=words):
            control.schedules.backfill(*arguments)  # type: ignore[arg-type]
