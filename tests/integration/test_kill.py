"""Workers are killed while tasks run: nothing is lost, nothing that was rolled back runs, and only
what a killed worker had started runs again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from late.control import Control, Filter
from late.outbox import connect
from late.scheduler.scheduler import UNRECORDED_MAX
from tests.integration.kill_app import app, count, killer

TASKS = 20_000
KILLS = 5
TTL_S = 1.0

pytestmark = pytest.mark.timeout(300)  # ten processes start, on whatever machine this is


class Fleet:
    """Worker processes over one database, with the witnesses they leave."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.killed: set[int] = set()
        self._environment = os.environ | {
            "LATE_TEST_KILL_URL": url,
            "LATE_TEST_KILL_DIR": str(folder),
            "LATE_LEASE_TTL_S": str(TTL_S),
            "LATE_TAKEOVERS_MAX": "16",
        }

    def start(self) -> None:
        log = (self.folder / f"worker-{len(self.processes)}.log").open("wb")
        with log:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "late.cli", "worker", "tests.integration.kill_app:app"],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def kill(self) -> None:
        """SIGKILL to the oldest that lives."""
        process = next(p for p in self.processes if p.poll() is None)
        self.killed.add(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> list[int]:
        """SIGTERM to all; exit codes of those that were not killed."""
        living = [p for p in self.processes if p.pid not in self.killed]
        until(lambda: all(self.is_up(p) for p in living), self)
        for process in living:
            process.terminate()
        return [process.wait(30) for process in living]

    def starts(self) -> dict[int, list[int]]:
        """Task number -> ids of the processes that started it."""
        found: dict[int, list[int]] = {}
        for path in self.folder.glob("*.txt"):
            for line in path.read_text().splitlines():
                found.setdefault(int(line), []).append(int(path.stem))
        return found

    def started(self) -> int:
        """How many starts there were, repeats included: cheap to ask often."""
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob("*.txt"))

    def is_up(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it has begun to work: before that a SIGTERM ends it the hard way."""
        log = self.folder / f"worker-{self.processes.index(process)}.log"
        return "worker_started" in log.read_text()

    def logs(self) -> str:
        return "\n".join(p.read_text()[-2_000:] for p in sorted(self.folder.glob("*.log")))


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    folder = tmp_path / "witness"
    folder.mkdir()
    made = Fleet(url, folder)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def until(condition: Callable[[], bool], fleet: Fleet, limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, fleet.logs()
        time.sleep(0.05)


def settled(url: str) -> bool:
    """Nothing is waiting, running or parked any more."""
    with Control(url) as control:
        return all(q.depth.n + q.in_flight.n + q.parked.n == 0 for q in control.status().queues)


def test_killed_workers_lose_nothing_and_repeat_only_what_had_started(
    url: str, fleet: Fleet
) -> None:
    # Given 20,000 committed tasks, as many rolled back in between, and two workers
    for first in range(0, TASKS, 500):
        with connect(url) as tx:
            app.enqueue_many(tx, [count.call(n) for n in range(first, first + 500)])
        with pytest.raises(RuntimeError), connect(url) as tx:  # noqa: PT012
            app.enqueue_many(tx, [count.call(-1 - n) for n in range(first, first + 500)])
            raise RuntimeError("the business has changed its mind")
    fleet.start()
    fleet.start()
    # When one is killed again and again, always in the middle of the work
    for number in range(KILLS):
        reached = TASKS * (number + 1) // (KILLS + 2)
        until(lambda reached=reached: fleet.started() >= reached, fleet)  # type: ignore[misc]
        fleet.start()
        fleet.kill()
    until(lambda: fleet.started() >= TASKS and settled(url), fleet)
    assert fleet.stop() == [0] * len([p for p in fleet.processes if p.pid not in fleet.killed])
    # Then each committed task has run, and no other
    starts = fleet.starts()
    assert set(starts) == set(range(TASKS))
    # And whatever ran twice had been started by a worker that was killed
    unexplained = {
        n: pids for n, pids in starts.items() if len(pids) > 1 and not set(pids) & fleet.killed
    }
    assert not unexplained
    # A worker's death repeats at most what it had started and not settled, which has a bound.
    extra = Counter(pid for pids in starts.values() for pid in pids if len(pids) > 1)
    for pid in fleet.killed:
        assert extra[pid] <= UNRECORDED_MAX


def test_a_run_without_faults_starts_each_task_once(url: str, fleet: Fleet) -> None:
    fleet.start()
    fleet.start()
    for first in range(0, 5_000, 250):
        with connect(url) as tx:
            app.enqueue_many(tx, [count.call(n) for n in range(first, first + 250)])
    until(lambda: fleet.started() >= 5_000 and settled(url), fleet)
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
    assert fleet.processes[0].wait(30) == 0
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
        app.enqueue_many(tx, [count.call(n) for n in range(100)])
    with Control(url) as control:
        until(
            lambda: len(control.dead_letters(Filter())) == 1 and len(fleet.starts()) == 101, fleet
        )
        [letter] = control.dead_letters(Filter())
    assert (letter.task_id, letter.reason, letter.deaths) == (poison, "killed_worker", 3)
    assert len(fleet.starts()[1_000_000]) == 3
    assert fleet.stop() == [0]
