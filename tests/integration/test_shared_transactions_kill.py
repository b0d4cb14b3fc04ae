"""Workers killed at each step of a shared transaction: effects == tasks, in a table without a key
that could hide a repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from late.control import Control, Filter
from tests.integration.kill_kit import Fleet, commit, settled, until
from tests.integration.shared_kill_app import STEPS, app, task
from tests.integration.shared_kit import business, business_file, check, effects

TASKS = 900


@pytest.fixture(params=["postgresql", "sqlite"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    with business() if request.param == "postgresql" else business_file(tmp_path) as made:
        yield made


@pytest.fixture(params=["def", "async def"])
def fleet(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    kind = {"LATE_TEST_KILL_KIND": request.param}
    made = Fleet(url, tmp_path, kind, app="tests.integration.shared_kill_app:app")
    yield made
    made.close()


def test_effects_are_exact_over_a_death_at_each_step(url: str, fleet: Fleet) -> None:
    for first in range(0, TASKS, 300):
        commit(url, app, [task.call(n) for n in range(first, first + 300)])
    more = iter(range(TASKS, 100 * TASKS))
    count = TASKS

    def done() -> bool:
        nonlocal count
        living = [p for p in fleet.processes if p.poll() is None]
        for _ in range(2 - len(living)):
            fleet.start()
        died = len([*fleet.folder.glob("*.died")])
        if not settled(url):
            return False
        with Control(url) as control:
            # One that was near three of these deaths, the later ones on trial, is taken for the
            # cause; an operator sends it back.
            if control.dead_letters.redrive(Filter()).task_ids:
                return False
        if died < len(STEPS):  # Work on until each step has had its death.
            calls = [task.call(next(more)) for _ in range(100)]
            count += len(calls)
            commit(url, app, calls)
        return died == len(STEPS)

    until(done, fleet, 500.0, every_s=0.4)
    fleet.killed.update(p.pid for p in fleet.processes if p.poll() is not None)
    assert set(fleet.stop()) <= {0}, fleet.logs()
    assert len(fleet.killed) == len(STEPS)
    assert effects(url) == Counter(range(count))
    check(url)
