"""Workers are killed while tasks run: nothing is lost, nothing that was rolled back runs, and only
what a killed worker had started runs again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from late.control import Control, Filter
from late.outbox import connect
from late.scheduler.scheduler import UNRECORDED_MAX
from tests.conformance.backends import Backend
from tests.integration.kill_app import app, count, killer
from tests.integration.kill_kit import Fleet, enqueue, settled, until

TASKS, KILLS = 20_000, 5
TASKS_EMULATED, KILLS_EMULATED = 2_000, 3
"""On an emulator with one read-write transaction at a time, where each of the workers' heartbeats,
leases and settlements aborts another: it does a tenth of the others' work in the same time."""

pytestmark = pytest.mark.timeout(300)  # ten processes start, on whatever machine this is


@pytest.fixture
def fleet(backend: Backend, url: str, tmp_path: Path) -> Iterator[Fleet]:
    folder = tmp_path / "witness"
    folder.mkdir()
    # A heartbeat that waits its turn on an emulator must not look like a worker's death.
    made = Fleet(url, folder, {"LATE_LEASE_TTL_S": "5"} if backend.emulated else None)
    yield made
    made.close()


def test_killed_workers_lose_nothing_and_repeat_only_what_had_started(
    backend: Backend, url: str, fleet: Fleet
) -> None:
    tasks, kills = (TASKS_EMULATED, KILLS_EMULATED) if backend.emulated else (TASKS, KILLS)
    # Given committed tasks, as many rolled back in between, and two workers
    for first in range(0, tasks, 500):
        enqueue(url, range(first, first + 500))
        with pytest.raises(RuntimeError), connect(url) as tx:  # noqa: PT012
            app.enqueue_many(tx, [count.call(-1 - n) for n in range(first, first + 500)])
            raise RuntimeError("the business has changed its mind")
    fleet.start()
    fleet.start()
    # When one is killed again and again, always in the middle of the work
    for number in range(kills):
        reached = tasks * (number + 1) // (kills + 2)
        until(lambda reached=reached: fleet.started() >= reached, fleet)  # type: ignore[misc]
        fleet.start()
        fleet.kill()
    until(lambda: fleet.started() >= tasks and settled(url), fleet)
    assert fleet.stop() == [0] * len([p for p in fleet.processes if p.pid not in fleet.killed])
    # Then each committed task has run, and no other
    starts = fleet.starts()
    assert set(starts) == set(range(tasks))
    # And whatever ran twice had been started by a worker that was killed
    unexplained = {
        n: pids for n, pids in starts.items() if len(pids) > 1 and not set(pids) & fleet.killed
    }
    assert not unexplained
    # A worker's death repeats at most what it had started and not settled, which has a bound.
    extra = Counter(pid for pids in starts.values() for pid in pids if len(pids) > 1)
    for pid in fleet.killed:
        assert extra[pid] <= UNRECORDED_MAX


def test_a_run_without_faults_starts_each_task_once(
    backend: Backend, url: str, fleet: Fleet
) -> None:
    tasks = 1_000 if backend.emulated else 5_000
    fleet.start()
    fleet.start()
    for first in range(0, tasks, 250):
        enqueue(url, range(first, first + 250))
    until(lambda: fleet.started() >= tasks and settled(url), fleet)
    assert fleet.stop() == [0, 0]
    assert all(len(pids) == 1 for pids in fleet.starts().values())


def test_a_stopped_worker_hands_over_at_once_and_a_killed_one_after_its_time(
    url: str, fleet: Fleet
) -> None:
    def owners() -> set[str]:
        with Control(url) as control:
            return {shard.owner or "" for shard in control.status().shards}

    # Given two workers that share the shards
    fleet.start()
    fleet.start()
    until(lambda: len(owners()) == 2 and "" not in owners(), fleet)
    # When one is stopped, then its shards move without a time to live
    fleet.processes[0].terminate()
    assert fleet.processes[0].wait(30) == 0, fleet.logs()
    with Control(url) as control:
        assert all(s.owner is None or s.owner_live for s in control.status().shards)
    until(lambda: len(owners()) == 1 and "" not in owners(), fleet)
    # When the other is killed, then a new one takes over all it had
    before = owners()
    fleet.start()
    fleet.killed.add(fleet.processes[1].pid)
    fleet.processes[1].kill()
    fleet.processes[1].wait()
    until(lambda: len(owners()) == 1 and "" not in owners() and owners() != before, fleet)
    fleet.stop()


def test_a_task_that_kills_its_process_is_a_dead_letter_after_three(url: str, fleet: Fleet) -> None:
    fleet.start()
    with connect(url) as tx:
        poison = killer.enqueue(tx, 1_000_000)
    enqueue(url, range(100))
    with Control(url) as control:
        until(
            lambda: len(control.dead_letters(Filter())) == 1 and len(fleet.starts()) == 101, fleet
        )
        [letter] = control.dead_letters(Filter())
    assert (letter.task_id, letter.reason, letter.deaths) == (poison, "killed_worker", 3)
    assert len(fleet.starts()[1_000_000]) == 3
    assert fleet.stop() == [0]
