"""The alarm for groups that are behind: who is spoken of, how often, and when it ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from late.control import Control
from late.control.views import Count, GroupView
from late.events import Emitter, Event
from late.worker.background import BackgroundService
from late.worker.watch.lag_alarm import LagAlarm, lag_alarm_job
from tests.conformance.kit import task
from tests.integration.control_kit import insert
from tests.support import sqlite


def heard(*groups: str) -> tuple[LagAlarm, list[tuple[str, str]]]:
    said: list[tuple[str, str]] = []
    emitter = Emitter()

    def take(event: Event, fields: Mapping[str, Any]) -> None:
        said.append((event.name, fields["group"]))

    emitter.subscribe(take)
    return LagAlarm(groups, emitter), said


def view(name: str, *, lagging: bool = True, workers: int = 0) -> GroupView:
    return GroupView(name, 1, lagging=lagging, workers=workers, lag=Count(5), lag_s=700.0)


def test_it_is_said_each_time_and_its_end_once() -> None:
    alarm, said = heard("default")
    late, fine = view("default", workers=1), view("default", workers=1, lagging=False)
    for seen in (fine, late, late, fine, fine):
        alarm.update([seen])
    assert said == [
        ("group_lagging", "default"), ("group_lagging", "default"), ("group_caught_up", "default")
    ]  # fmt: skip


def test_the_default_group_speaks_for_those_without_a_worker() -> None:
    views = [view("alone"), view("served", workers=2), view("default", workers=1)]
    alarm, said = heard("default")
    alarm.update(views)
    assert [name for _, name in said] == ["alone", "default"]
    alarm, said = heard("served")
    alarm.update(views)
    assert [name for _, name in said] == ["served"]


def test_nobody_speaks_for_a_shadow() -> None:
    alarm, said = heard("default", "try")
    behind = GroupView("try", 1, lagging=True, workers=1, shadow_of="default")
    alarm.update([behind, view("default", workers=1)])
    assert said == [("group_lagging", "default")]


async def test_the_watch_finds_a_group_that_nobody_works(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "lag.db")
    alarm, said = heard("default")
    with Control(url, alarm_s=1e-6) as control:
        control.groups.create("alone", start="beginning")
        insert(url, task())
        job = lag_alarm_job(alarm, lambda: control, is_maintainer=lambda: True, every_s=0.01)
        service = asyncio.create_task(BackgroundService([job], random.Random(1)).run())
        async with asyncio.timeout(120):
            while len(said) < 2:  # noqa: ASYNC110 (a thread reads the database)
                await asyncio.sleep(0.01)
        service.cancel()
        await asyncio.wait([service])
    assert set(said) == {("group_lagging", "alone"), ("group_lagging", "default")}
