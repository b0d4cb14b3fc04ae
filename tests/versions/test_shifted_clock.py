"""A fleet on a PostgreSQL whose clock is set, back and forward, by libfaketime."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest import mock

import psycopg
import pytest

from late.control import Control
from late.schema import migrate
from late.testing.servers.postgres import PostgresServer
from tests.integration.kill_kit import commit, settled, until
from tests.integration.stall_app import app, count, linger
from tests.integration.stall_kit import StallFleet
from tests.versions.faketime import Clock

TTL_S = 5


@pytest.fixture
def clock() -> Iterator[Clock]:
    with tempfile.TemporaryDirectory() as folder:
        yield Clock(Path(folder))


@pytest.fixture
def url(clock: Clock) -> Iterator[str]:
    with PostgresServer(settings={"fsync": "off"}) as server:
        server.stop()
        with mock.patch.dict(os.environ, clock.environment()):
            server.start()
        migrate.upgrade(server.url)
        yield server.url


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[StallFleet]:
    with closing(StallFleet(url, tmp_path, {"LATE_LEASE_TTL_S": str(TTL_S)})) as made:
        made.start()
        made.start()
        until(lambda: all(map(made.is_up, made.processes)), made)
        until(lambda: len(made.owned_by(0)) + len(made.owned_by(1)) == 8, made)
        time.sleep(3)  # They have seen some of each other's heartbeats.
        yield made


def apart_s(url: str) -> float:
    with psycopg.connect(url) as connection:
        row = connection.execute("select extract(epoch from clock_timestamp())").fetchone()
    assert row is not None
    return float(row[0]) - time.time()


def test_back_by_ten_minutes_as_a_worker_dies(url: str, clock: Clock, fleet: StallFleet) -> None:
    fleet.kill()
    clock.shift(-600)
    assert apart_s(url) == pytest.approx(-600, abs=5)
    commit(url, app, [count.call(n) for n in range(60)])
    until(lambda: settled(url) and "event=silent_worker" in fleet.log(1), fleet)
    assert set(fleet.starts()) == set(range(60))
    until(lambda: len(fleet.owned_by(1)) == 8, fleet)
    with Control(url) as control:
        [times] = [each for each in control.doctor() if each.name == "times"]
    assert times.result != "ok"
    assert "back" in times.detail


def test_back_while_all_live(url: str, clock: Clock, fleet: StallFleet) -> None:
    commit(url, app, [linger.call(n, 4.0) for n in range(1, 9)])
    until(lambda: len(fleet.starts()) == 8, fleet)
    clock.shift(-600)
    commit(url, app, [count.call(n) for n in range(100, 160)])
    until(lambda: settled(url), fleet)
    starts = fleet.starts()
    assert {n for n in starts if n > 0} == {*range(1, 9), *range(100, 160)}
    assert all(len(pids) == 1 for pids in starts.values()), "nobody died, nothing is repeated"


def test_forward_by_an_hour(url: str, clock: Clock, fleet: StallFleet) -> None:
    commit(url, app, [count.call(n) for n in range(60)])
    until(lambda: settled(url), fleet)
    clock.shift(3600)
    commit(url, app, [count.call(n) for n in range(60, 120)])
    until(lambda: settled(url) and set(fleet.starts()) == set(range(120)), fleet)
    until(lambda: len(fleet.owned_by(0)) + len(fleet.owned_by(1)) == 8, fleet)
    assert fleet.stop() == [0, 0]
