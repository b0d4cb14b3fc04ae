"""A task that kills its worker is found, and the fleet lives on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from late.control import Control, Filter
from late.outbox import connect
from tests.conformance.backends import Backend
from tests.integration.kill_app import app, count, poison
from tests.integration.kill_kit import Fleet, enqueue, settled, until

DEATHS_PER_KILLER = 5


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    folder = tmp_path / "witness"
    folder.mkdir()
    made = Fleet(url, folder)
    yield made
    made.close()


def test_tasks_that_kill_their_worker_end_as_dead_letters_and_all_others_are_done(
    backend: Backend, url: str, fleet: Fleet
) -> None:
    # Given many tasks, and among them some that end the process that runs them
    tasks, killers = (300, 1) if backend.emulated else (1_000, 2)
    half = tasks // 2
    enqueue(url, range(half))
    with connect(url) as tx:
        poisons = app.enqueue_many(tx, [poison.call(1_000_000 + n) for n in range(killers)])
        app.enqueue_many(tx, [count.call(n) for n in range(half, half + 100)])
    enqueue(url, range(half + 100, tasks))

    # When a supervisor starts a worker anew whenever one dies
    def supervised() -> bool:
        living = [p for p in fleet.processes if p.poll() is None]
        if len(living) < 2:
            fleet.start()
        with Control(url) as control:
            buried = len(control.dead_letters.find(Filter()))
        return buried == killers and len(fleet.starts()) == tasks + killers and settled(url)

    until(supervised, fleet, limit_s=500)
    deaths = [p for p in fleet.processes if p.poll() is not None]
    fleet.killed.update(p.pid for p in deaths)
    assert fleet.stop() == [0] * (len(fleet.processes) - len(deaths)), fleet.logs()

    # Then each of them is a dead letter that says why, after a few deaths
    with Control(url) as control:
        letters = control.dead_letters.find(Filter())
    assert {letter.task_id for letter in letters} == set(poisons)
    assert {(letter.reason, letter.deaths) for letter in letters} == {("killed_worker", 3)}
    assert len(deaths) <= DEATHS_PER_KILLER * killers
    # And nothing else went with them
    starts = fleet.starts()
    assert set(starts) == set(range(tasks)) | {1_000_000 + n for n in range(killers)}
