"""Workers that do not get on: they say so, fail their health check, and lose their shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from late.outbox import connect
from tests.conformance.backends import Backend
from tests.integration.kill_kit import commit, settled, until
from tests.integration.stall_app import app, block, count, linger, stuck
from tests.integration.stall_kit import StallFleet, zombies

pytestmark = pytest.mark.timeout(300)

TASKS = 100


@pytest.fixture
def fleet(backend: Backend, url: str, tmp_path: Path) -> Iterator[StallFleet]:
    folder = tmp_path / "witness"
    folder.mkdir()
    # A ttl that nothing in these tests could wait for: what moves was given up.
    made = StallFleet(
        url, folder, {"LATE_LEASE_TTL_S": "200", "LATE_STALL_S": "6", "LATE_CONCURRENCY": "4"}
    )
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
    with connect(url) as tx:
        block.enqueue(tx, 1_000)
    until(lambda: (fleet.folder / "blocked").exists(), fleet)
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


def test_a_worker_whose_slots_are_all_stuck_gives_its_shards_up(
    url: str, fleet: StallFleet
) -> None:
    """Its loop answers and its heartbeat beats, but no slot will ever be free again."""
    fleet.start()
    until(lambda: len(fleet.owned_by(0)) == 8, fleet)
    commit(url, app, [stuck.call(2_000 + n) for n in range(4)])
    until(lambda: fleet.log(0).count("event=stuck_handler") >= 4, fleet)
    enqueue(url, 0)
    fleet.start()
    until(lambda: fleet.health(0)[0] == 503, fleet)
    assert fleet.health(0)[1]["stalled"] == ["start"]
    until(lambda: settled(url), fleet)
    assert {n for n in fleet.starts() if n < TASKS} == set(range(TASKS))
    assert fleet.owned_by(1) == set(range(8))
    assert zombies(url) == []


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
