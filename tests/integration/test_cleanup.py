"""What maintenance forgets, and what it must not, on every store."""

from __future__ import annotations

import asyncio
import random

import pytest

import late
from late.control import Control
from late.model.ids import new_id
from late.outbox import connect
from late.testing import drain
from late.worker.background import BackgroundService
from late.worker.maintenance import sweep_job
from tests.conformance.backends import Backend, Raw

HOUR_US = 3_600_000_000


def done(raw: Raw, task_id: str, at_us: int, group: str = "default") -> None:
    raw.execute(
        "insert into late_inbox (consumer_group, task_id, done_at_us) values (?, ?, ?)",
        group,
        task_id,
        at_us,
    )


def test_an_effect_is_remembered_while_its_task_can_come_again(backend: Backend, url: str) -> None:
    app = late.App(url)

    @app.task
    def note(n: int) -> None: ...

    @app.task(retry=late.Retry(max_attempts=1))
    def fails() -> None:
        raise ValueError

    with connect(url) as tx:
        dead = fails.enqueue(tx)
        parked = note.options(delay=3_000).enqueue(tx, 2)
    drain(app)
    with connect(url) as tx:
        logged = note.enqueue(tx, 1)
    raw = backend.raw(url)
    for table, kept in (("late_dead", dead), ("late_timer", parked)):
        found = raw.execute(f"select task_id from {table}")
        assert [str(task_id) for (task_id,) in found] == [kept]
    # As maintenance leaves it: the dead and the parked task are no longer in the log.
    raw.execute("delete from late_task where task_id <> ?", logged)
    gone, young = new_id(0), new_id(0)
    with Control(url) as control:
        now = control.now()
        for task_id in (logged, dead, parked, gone):
            done(raw, task_id, now - 2 * HOUR_US)
        done(raw, dead, now - 2 * HOUR_US, "audit")  # whose dead letter it is not
        done(raw, logged, now - 2 * HOUR_US, "audit")
        done(raw, young, now)

        assert control.sweep().inbox == 2
        found = raw.execute("select consumer_group, task_id from late_inbox")
        assert {(group, str(task_id)) for group, task_id in found} == {
            ("default", logged),
            ("default", dead),
            ("default", parked),
            ("default", young),
            ("audit", logged),
        }
        assert control.sweep().inbox == 0
        assert control.sweep(keep_s=-1.0).inbox == 1  # the young one
    raw.close()


def test_keys_go_when_their_period_is_over(backend: Backend, url: str) -> None:
    raw = backend.raw(url)
    columns = "unique_key, task_id, digest, created_at_us, expires_at_us"
    with Control(url) as control:
        later = control.now() + HOUR_US
        for key, expires in (("lives", -1), ("over", 1), ("later", later), ("plain", None)):
            raw.execute(
                f"insert into late_unique ({columns}) values (?, ?, 'd', 1, {expires or 'null'})",
                key,
                new_id(0),
            )
        assert control.sweep().keys == 1
    found = raw.execute("select unique_key from late_unique order by unique_key")
    assert [key for (key,) in found] == ["later", "lives", "plain"]
    raw.close()


@pytest.mark.parametrize("mine", [True, False])
async def test_a_worker_sweeps_if_it_is_the_maintainer(mine: bool) -> None:
    swept = asyncio.Event()

    async def sweep() -> None:
        swept.set()

    job = sweep_job(sweep, is_maintainer=lambda: mine, recheck_s=0.001, every_s=0.01)
    service = asyncio.ensure_future(BackgroundService([job], random.Random(1)).run())
    if mine:
        await asyncio.wait_for(swept.wait(), 120)
    else:
        await asyncio.sleep(0.05)
        assert not swept.is_set()
    service.cancel()
    await asyncio.wait([service])
