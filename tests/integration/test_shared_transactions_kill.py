"""Workers killed at each step of a shared transaction: effects == tasks, in a table without a key
that could hide a repeat."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from late.control import Control, Filter
from tests.integration.forked_fleet import ForkedFleet
from tests.integration.kill_kit import Fleet, commit, until
from tests.integration.shared_kill_app import STEPS, app, task
from tests.integration.shared_kit import business, business_file, check, effects, raw

TASKS = 300


@pytest.fixture(params=["postgresql", "sqlite"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    with business() if request.param == "postgresql" else business_file(tmp_path) as made:
        yield made


@pytest.fixture(params=["def", "async def"])
def fleet(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    kind = {"LATE_TEST_KILL_KIND": request.param}
    made = ForkedFleet(url, tmp_path, kind, app="tests.integration.shared_kill_app:app")
    yield made
    made.close()


def bury(url: str, fleet: Fleet) -> None:
    """End the leases of the processes that died, so that eight deaths do not wait eight times."""
    dead = {p.pid for p in fleet.processes if p.poll() is not None} - fleet.killed
    with raw(url) as tx:
        for pid in dead:
            tx.execute(f"update late_worker set expires_at_us = 0 where address like '%:{pid}'")
    fleet.killed |= dead


def is_settled(control: Control) -> bool:
    """Nothing waits, runs or is parked, and no dead letter had to be sent back.

    A task that was near three of the deaths, the later ones on trial, is taken for the cause; an
    operator sends it back.
    """
    queues = control.status.read().queues
    if any(q.depth.n + q.in_flight.n + q.parked.n for q in queues):
        return False
    return not control.dead_letters.redrive(Filter()).task_ids


def test_effects_are_exact_over_a_death_at_each_step(url: str, fleet: Fleet) -> None:
    numbers = itertools.count()

    def work(tasks: int) -> None:
        commit(url, app, [task.call(n) for n in itertools.islice(numbers, tasks)])

    def done(control: Control) -> bool:
        for _ in range(2 - sum(p.poll() is None for p in fleet.processes)):
            bury(url, fleet)
            fleet.start()
        died = len([*fleet.folder.glob("*.died")])
        living = [p for p in fleet.processes if p.poll() is None]
        if not all(fleet.is_up(p) for p in living) or not is_settled(control):
            return False
        if died < len(STEPS):  # Work on until each step has had its death.
            work(100)
        return died == len(STEPS)

    work(TASKS)
    with Control(url) as control:
        until(lambda: done(control), fleet, 500.0, every_s=0.2)
    fleet.killed.update(p.pid for p in fleet.processes if p.poll() is not None)
    assert set(fleet.stop()) <= {0}, fleet.logs()
    assert len(fleet.killed) == len(STEPS)
    assert effects(url) == Counter(range(next(numbers)))
    check(url)
