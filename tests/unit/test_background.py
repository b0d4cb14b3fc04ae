"""The service that runs a worker's periodic jobs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator

import pytest

from late.errors import StoreUnavailable
from late.testing.clock import VirtualClock
from late.worker.background import BackgroundJob, BackgroundService


@pytest.fixture(autouse=True)
async def virtual() -> AsyncIterator[None]:
    with VirtualClock():
        yield


class Noted:
    """A job that notes when it ran."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.faults: list[Exception] = []

    async def run(self) -> None:
        self.at.append(asyncio.get_running_loop().time())
        if self.faults:
            raise self.faults.pop()


async def live(service: BackgroundService, for_s: float) -> None:
    running = asyncio.create_task(service.run())
    await asyncio.wait([running], timeout=for_s)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_job_runs_in_its_period_with_jitter() -> None:
    noted, began = Noted(), asyncio.get_running_loop().time()
    job = BackgroundJob(name="job", run=noted.run, period_s=10.0, first_s=1.0)
    service = BackgroundService([job], random.Random(1))
    await live(service, 1_000)
    assert 0.8 <= noted.at[0] - began <= 1.2
    gaps = [b - a for a, b in zip(noted.at, noted.at[1:], strict=False)]
    assert all(8 <= gap <= 12 for gap in gaps)
    assert max(gaps) - min(gaps) > 1
    assert service.stats["job"].runs == len(noted.at)


async def test_it_does_nothing_while_its_condition_does_not_hold() -> None:
    noted, due = Noted(), False
    job = BackgroundJob(
        name="job", run=noted.run, period_s=600.0, recheck_s=1.0, first_s=1.0, condition=lambda: due
    )
    service = BackgroundService([job], random.Random(1))
    running = asyncio.create_task(service.run())
    await asyncio.sleep(100)
    assert noted.at == []
    due = True
    await asyncio.sleep(2)
    assert len(noted.at) == 1
    running.cancel()
    await asyncio.wait([running])


async def test_a_failure_is_logged_and_the_next_run_comes(caplog: pytest.LogCaptureFixture) -> None:
    noted, beside = Noted(), Noted()
    noted.faults.append(StoreUnavailable("away"))
    jobs = [
        BackgroundJob(name=name, run=each.run, period_s=10.0)
        for name, each in (("first", noted), ("second", beside))
    ]
    service = BackgroundService(jobs, random.Random(1))
    with caplog.at_level(logging.WARNING, "late.background"):
        await live(service, 100)
    assert len(noted.at) > 5
    assert len(beside.at) > 5
    assert [record.getMessage() for record in caplog.records] == [
        "first failed, it is tried again: away"
    ]
    assert (service.stats["first"].failures, service.stats["second"].failures) == (1, 0)


async def test_a_defect_ends_the_service_and_names_the_job() -> None:
    noted = Noted()
    noted.faults.append(ZeroDivisionError())
    service = BackgroundService([BackgroundJob(name="job", run=noted.run, period_s=1.0)])
    with pytest.raises(ExceptionGroup) as caught:
        await service.run()
    [defect] = caught.value.exceptions
    assert isinstance(defect, ZeroDivisionError)
    assert defect.__notes__ == ["in the background job 'job'"]


async def test_its_waits_are_those_of_the_process() -> None:
    asked: list[float] = []

    async def wait(for_s: float) -> None:
        asked.append(for_s)
        await asyncio.sleep(1.0)

    noted = Noted()
    job = BackgroundJob(name="job", run=noted.run, period_s=10.0)
    await live(BackgroundService([job], random.Random(1), wait=wait), 5.5)
    assert len(noted.at) == 5
    assert all(8 <= for_s <= 12 for for_s in asked)
