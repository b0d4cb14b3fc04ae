"""A database's clock that goes back by ten minutes when a worker has just died."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from late.control import Control
from late.schema.engine import make_engine
from late.schema.tables import worker
from tests.conformance.backends import Backend
from tests.integration.kill_kit import commit, settled, until
from tests.integration.stall_app import app, count
from tests.integration.stall_kit import StallFleet

BACK_US = 600_000_000


@pytest.fixture
def fleet(backend: Backend, url: str, tmp_path: Path) -> Iterator[StallFleet]:
    made = StallFleet(url, tmp_path, {"LATE_LEASE_TTL_S": "5"})
    yield made
    made.close()


def seen_from_a_clock_that_went_back(url: str, pid: int) -> None:
    """What it has written last is ten minutes ahead; the others go on by the clock as it is."""
    with Control(url) as control:
        ahead_us = control.now() + BACK_US
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.execute(
            update(worker).where(worker.c.address.like(f"%:{pid}")).values(expires_at_us=ahead_us)
        )
    engine.dispose()


def test_the_shards_of_a_dead_worker_do_not_wait_for_the_clock(url: str, fleet: StallFleet) -> None:
    # Given two workers that share the shards
    fleet.start()
    fleet.start()
    until(lambda: all(fleet.is_up(process) for process in fleet.processes), fleet)
    until(lambda: len(fleet.owned_by(0)) + len(fleet.owned_by(1)) == 8, fleet)
    time.sleep(3)  # They have seen some of each other's heartbeats.
    # When one is killed, the clock goes back, and tasks come for all shards
    fleet.kill()
    seen_from_a_clock_that_went_back(url, fleet.processes[0].pid)
    commit(url, app, [count.call(n) for n in range(60)])
    # Then the other one has all of them as soon as it knows that nobody renews those leases
    until(lambda: settled(url) and "event=silent_worker" in fleet.log(1), fleet)
    assert set(fleet.starts()) == set(range(60))
    until(lambda: len(fleet.owned_by(1)) == 8, fleet)
    with Control(url) as control:
        assert len(control.status.read(limit=1).workers) == 1
