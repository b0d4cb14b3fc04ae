"""What becomes of a worker's shards when it stops or is killed, and of a task that kills its
process. That nothing is lost meanwhile is shown by the storms in `tests/chaos`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from late.control import Control, Filter
from tests.integration.kill_app import app, killer
from tests.integration.kill_kit import Fleet, commit, enqueue, until


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    folder = tmp_path / "witness"
    folder.mkdir()
    made = Fleet(url, folder)
    yield made
    made.close()


def test_a_stopped_worker_hands_over_at_once_and_a_killed_one_after_its_time(
    url: str, fleet: Fleet
) -> None:
    def owners() -> set[str]:
        with Control(url) as control:
            return {shard.owner or "" for shard in control.status.read().shards}

    # Given two workers that share the shards: placement gives neither more than its half
    fleet.start()
    fleet.start()
    until(lambda: all(map(fleet.is_up, fleet.processes)) and "" not in owners(), fleet)
    # When one is stopped, then its shards move without a time to live
    fleet.processes[0].terminate()
    assert fleet.processes[0].wait(300) == 0, fleet.logs()
    with Control(url) as control:
        assert all(s.owner is None or s.owner_live for s in control.status.read().shards)
    until(lambda: len(owners()) == 1 and "" not in owners(), fleet)
    # When the other is killed, then a new one takes over all it had
    before = owners()
    fleet.start()
    fleet.kill()
    until(lambda: len(owners()) == 1 and "" not in owners() and owners() != before, fleet)
    fleet.stop()


def test_a_task_that_kills_its_process_is_a_dead_letter_after_three(url: str, fleet: Fleet) -> None:
    fleet.start()
    [poison] = commit(url, app, [killer.call(1_000_000)])
    enqueue(url, range(100))
    with Control(url) as control:
        until(
            lambda: len(control.dead_letters.find(Filter())) == 1 and len(fleet.starts()) == 101,
            fleet,
        )
        [letter] = control.dead_letters.find(Filter())
    assert (letter.task_id, letter.reason, letter.deaths) == (poison, "killed_worker", 3)
    assert len(fleet.starts()[1_000_000]) == 3
    assert fleet.stop() == [0]
