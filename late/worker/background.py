"""The periodic jobs of a worker process, run by one service.

Each job is a value with its own settings, made in the file of its duty (`maintenance.py`,
`lag_alarm.py`, `fence_report.py`). The service waits, asks whether the job is due here, runs it,
logs what failed, and measures how often and how long it ran. One task for each job, so that a slow
one delays no other.

| a run ends with | then |
|---|---|
| a result | the next one comes after the period |
| a `LateError`: the database is away, or refused | a warning; the next one comes after the period |
| anything else | a defect: `run` raises it, and the worker stops |
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from late.errors import LateError
from late.observability import repeats

logger = logging.getLogger("late.background")


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundJob:
    """One thing to do again and again."""

    name: str
    run: Callable[[], Awaitable[object]]
    period_s: float
    first_s: float | None = None
    """The wait before the first run; `period_s` when None."""
    recheck_s: float | None = None
    """The wait after the `condition` did not hold; `period_s` when None."""
    jitter: float = 0.2
    """The share by which each wait may be shorter or longer: a fleet must not act in step."""
    condition: Callable[[], bool] = _always
    """Asked before each run. Most jobs are done by one worker for all."""


@dataclass(slots=True)
class JobStats:
    """The runs of one job since the start."""

    runs: int = 0
    failures: int = 0
    busy_s: float = 0.0


class BackgroundService:
    """Runs `jobs` until it is cancelled, which also stops the runs that are under way.

    `wait` waits for about so many seconds (`Beats.near` where the process has beats).
    """

    def __init__(
        self,
        jobs: Sequence[BackgroundJob],
        rng: random.Random | None = None,
        *,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._jobs = tuple(jobs)
        self._wait = wait
        self._rng = rng or random.Random()
        self.stats = {job.name: JobStats() for job in self._jobs}

    async def run(self) -> None:
        """Run every job in its time, until cancelled.

        Raises:
            ExceptionGroup: a job raised something that is no `LateError`.
        """
        async with asyncio.TaskGroup() as tasks:
            for job in self._jobs:
                tasks.create_task(self._repeat(job), name=f"late-{job.name}")

    async def _repeat(self, job: BackgroundJob) -> None:
        wait_s = job.period_s if job.first_s is None else job.first_s
        while True:
            await self._wait(wait_s * self._rng.uniform(1 - job.jitter, 1 + job.jitter))
            if job.condition():
                await self._run_once(job)
                wait_s = job.period_s
            else:
                wait_s = job.period_s if job.recheck_s is None else job.recheck_s

    async def _run_once(self, job: BackgroundJob) -> None:
        stats, began = self.stats[job.name], time.monotonic()
        stats.runs += 1
        try:
            await job.run()
        except LateError as error:
            stats.failures += 1
            repeats.default.log(
                logger, "%s failed, it is tried again: %s", job.name, error, kind=job.name
            )
        except Exception as error:
            error.add_note(f"in the background job {job.name!r}")
            raise
        finally:
            stats.busy_s += time.monotonic() - began
