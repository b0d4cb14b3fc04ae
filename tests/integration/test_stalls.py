"""Workers that do not get on: they say so, fail their health check, and lose their shards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from late.app.task import Task
from late.model.ids import shard_of
from late.model.task import TaskId
from tests.conformance.backends import Backend
from tests.integration.kill_kit import commit, settled, until
from tests.integration.stall_app import app, block, count, linger, stuck, stuck_too
from tests.integration.stall_kit import StallFleet, zombies

TASKS = 100
SETTINGS = {"LATE_LEASE_TTL_S": "200", "LATE_STALL_S": "6", "LATE_CONCURRENCY": "4"}


@pytest.fixture
def fleet(backend: Backend, url: str, tmp_path: Path) -> Iterator[StallFleet]:
    folder = tmp_path / "witness"
    folder.mkdir()
    # A ttl that nothing in these tests could wait for: what moves was given up.
    made = StallFleet(url, folder, SETTINGS)
    yield made
    made.close()


def enqueue(url: str, first: int) -> None:
    commit(url, app, [count.call(n) for n in range(first, first + TASKS)])


def test_a_blocked_loop_loses_its_shards_to_a_peer_that_finishes_the_backlog(
    url: str, fleet: StallFleet
) -> None:
    # Given a worker whose `async def` handler blocks its loop for ever, and tasks behind it
    fleet.start()
    until(lambda: len(fleet.owned_by(0)) == 8, fleet)
    assert fleet.health(0) == (200, fleet.health(0)[1])
    commit(url, app, [block.call(1_000)])
    until(lambda: (fleet.folder / "blocked").exists(), fleet)
    # Then it names the place and the task, long before it counts as stalled
    until(lambda: "event=event_loop_blocked" in fleet.log(0), fleet)
    [line] = [each for each in fleet.log(0).splitlines() if "event_loop_blocked" in each]
    assert re.search(r"stall_app\.py:\d+ in block\" name=block task=[0-9a-f-]{36}", line), line
    enqueue(url, 0)
    # When a peer comes
    fleet.start()
    # Then the blocked one says so, and loses everything to it, with the lease far from over
    until(lambda: fleet.health(0)[0] == 503, fleet)
    assert fleet.health(0)[1]["stalled"] == ["answer"]
    assert fleet.health(0, "/readyz")[0] == 503
    assert "event=stalled duties=answer" in fleet.log(0)
    until(lambda: fleet.started() >= TASKS + 2 and settled(url), fleet)
    assert fleet.owned_by(1) == set(range(8))
    assert fleet.owned_by(0) == set()
    assert fleet.health(1)[0] == 200
    assert fleet.processes[0].poll() is None, "it lives, and holds nothing"
    # And each task has run once but the one that blocked, which has run there and here
    peer = fleet.processes[1].pid
    starts = fleet.starts()
    assert sorted(starts.pop(1_000)) == sorted([fleet.processes[0].pid, peer])
    assert {n: pids for n, pids in starts.items() if len(pids) > 1} == {}
    assert zombies(url) == []


def hang(url: str, fleet: StallFleet, *tasks: Task[[int], None]) -> None:
    """Fill half of the first worker's four slots with runs of each of `tasks`. What is started of
    one before it holds its half is beyond that, in slots that were opened for others."""
    fleet.start()
    until(lambda: len(fleet.owned_by(0)) == 8, fleet)
    for number, task in enumerate(tasks):
        commit(url, app, [task.call(2_000 + 10 * number + n) for n in range(4 - 2 * number)])
        until(lambda name=task.name: len(held(fleet, name)) >= 2, fleet)  # type: ignore[misc]


def held(fleet: StallFleet, name: str = r"\w+") -> list[int]:
    """The shards of the handlers that run on in the first worker."""
    found = re.findall(rf"event=stuck_handler .*name={name} task=([\w-]+)", fleet.log(0))
    return [shard_of(TaskId(task_id)) for task_id in found]


def test_a_worker_whose_slots_are_all_stuck_hands_its_shards_over(
    url: str, fleet: StallFleet
) -> None:
    """Its loop answers and its heartbeat beats, but no slot may ever be free again."""
    hang(url, fleet, stuck, stuck_too)
    enqueue(url, 0)
    fleet.start()
    until(lambda: fleet.health(0)[0] == 503, fleet)
    assert fleet.health(0)[1]["stalled"] == ["slots"]
    # Its shards go to the peer, but for those of the handlers that run on: these stay with it
    until(lambda: fleet.owned_by(0) == set(held(fleet)), fleet)
    until(lambda: fleet.owned_by(1) == set(range(8)) - set(held(fleet)), fleet)
    assert fleet.processes[0].poll() is None
    assert {n: pids for n, pids in fleet.starts().items() if len(pids) > 1} == {}
    # When it stops, its peer repeats them, and no other task
    fleet.processes[0].terminate()
    until(lambda: settled(url), fleet)
    starts = fleet.starts()
    assert {n for n in starts if n < TASKS} == set(range(TASKS))
    assert {n: pids for n, pids in starts.items() if n < TASKS and len(pids) > 1} == {}
    first, peer = (process.pid for process in fleet.processes)
    assert all(sorted(pids) in (sorted([first, peer]), [peer])
               for n, pids in starts.items() if n >= 2_000)  # fmt: skip
    assert len(held(fleet)) == sum(first in pids for n, pids in starts.items() if n >= 2_000)
    assert zombies(url) == []


def test_a_task_that_hangs_leaves_slots_to_others(url: str, fleet: StallFleet) -> None:
    hang(url, fleet, stuck)
    enqueue(url, 0)
    until(lambda: len([n for n in fleet.starts() if n < TASKS]) == TASKS, fleet)
    assert fleet.health(0)[0] == 200
    # One more of its tasks does not start here, and none is repeated beside its first run
    commit(url, app, [stuck.call(3_000), count.call(TASKS)])
    until(lambda: TASKS in fleet.starts(), fleet)
    starts = fleet.starts()
    assert 3_000 not in starts
    assert {n: pids for n, pids in starts.items() if len(pids) > 1} == {}


def test_a_worker_that_is_told_so_exits_when_it_is_stuck(url: str, tmp_path: Path) -> None:
    with closing(StallFleet(url, tmp_path, SETTINGS | {"LATE_EXIT_WHEN_STUCK": "1"})) as fleet:
        hang(url, fleet, stuck)
        until(lambda: fleet.processes[0].poll() is not None, fleet)
        assert fleet.processes[0].returncode == 75
        # As an orchestrator does
        fleet.start()
        until(lambda: settled(url), fleet)
        first, second = (process.pid for process in fleet.processes)
        starts = fleet.starts().values()
        assert all(sorted(pids) in (sorted([first, second]), [second]) for pids in starts)
        assert len(held(fleet)) == sum(first in pids for pids in starts) >= 2


def test_a_long_task_within_its_time_out_is_no_stall(url: str, fleet: StallFleet) -> None:
    fleet.start()
    until(lambda: len(fleet.owned_by(0)) == 8, fleet)
    # Four slots: for longer than a stall is told, none of the last four can start.
    commit(url, app, [linger.call(n, 9.0) for n in range(4)])
    commit(url, app, [linger.call(n, 0.0) for n in range(4, 8)])
    until(lambda: fleet.started() >= 8, fleet)
    assert "event=stalled" not in fleet.log(0)
    assert fleet.health(0)[0] == 200
    until(lambda: settled(url), fleet)
