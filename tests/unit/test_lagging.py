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
from late.schema import migrate
from late.worker import lag_alarm as lagging
from tests.conformance.kit import task
from tests.integration.control_kit import insert


def heard(*groups: str) -> tuple[lagging.Alarm, list[tuple[str, str]]]:
    said: list[tuple[str, str]] = []
    emitter = Emitter()

    def take(event: Event, fields: Mapping[str, Any]) -> None:
        said.append((event.name, fields["group"]))

    emitter.subscribe(take)
    return lagging.Alarm(groups, emitter), said


def view(name: str, *, lagging: bool = True, workers: int = 0) -> GroupView:
    return GroupView(name, 1, lagging=lagging, workers=workers, lag=Count(5), lag_s=700.0)


def test_it_is_said_each_time_and_its_end_once() -> None:
    alarm, said = heard("default")
    late, fine = view("default", workers=1), view("default", workers=1, lagging=False)
    for seen in (fine, late, late, fine, fine):
        alarm.take([seen])
    assert said == [
        ("group_lagging", "default"), ("group_lagging", "default"), ("group_caught_up", "default")
    ]  # fmt: skip


def test_the_default_group_speaks_for_those_without_a_worker() -> None:
    views = [view("alone"), view("served", workers=2), view("default", workers=1)]
    alarm, said = heard("default")
    alarm.take(views)
    assert [name for _, name in said] == ["alone", "default"]
    alarm, said = heard("served")
    alarm.take(views)
    assert [name for _, name in said] == ["served"]


async def test_the_watch_finds_a_group_that_nobody_works(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/lag.db"
    migrate.upgrade(url)
    with Control(url) as control:
        control.groups.create("alone", start="beginning")
    insert(url, task())
    alarm, said = heard("default")
    watch = asyncio.create_task(
        lagging.watch(url, alarm, 1e-6, mine=lambda: True, rng=random.Random(1), every_s=0.01)
    )
    async with asyncio.timeout(20):
        while len(said) < 2:  # noqa: ASYNC110 (a thread reads the database)
            await asyncio.sleep(0.01)
    watch.cancel()
    assert set(said) == {("group_lagging", "alone"), ("group_lagging", "default")}
