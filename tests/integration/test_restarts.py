"""Deployments under load, on every store: nothing is lost, nothing runs twice, nothing fails.

`bench/restarts.py` measures how long a shard stands still meanwhile; here the bound is generous,
because a test must not judge the machine that it runs on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.fleet import Fleet, Gap, Load, Start, gaps, longest, outcomes, wait_settled
from bench.restarts import roll, takeovers
from late.control import Control
from tests.conformance.backends import Backend

GAP_S = 15.0
"""Thirty times what is measured in a quiet minute; a shard that waits for a lease to expire, or for
a worker that never looks, is above it with the ttl of these tests."""
LEASES = {"LATE_LEASE_TTL_S": "60", "LATE_HEARTBEAT_S": "6"}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def test_a_rolling_deployment_costs_no_task_anything(
    backend: Backend, url: str, tmp_path: Path
) -> None:
    """Each restart starts the new worker before it stops an old one."""
    found = roll(
        url,
        tmp_path,
        restarts=2 if backend.emulated else 4,
        rate=20 if backend.emulated else 200,
        environment=LEASES,
        quiet_s=0.0,
    )
    assert found["tasks"] > 100
    assert found["gap_ms"]["samples"] >= 8
    assert (found["lost"], found["unsettled"]) == (0, 0)
    assert (found["duplicates"], found["repeated_attempts"], found["failed"]) == (0, 0, 0)
    assert found["gap_ms"]["max"] <= GAP_S * 1_000, found


def test_a_task_that_runs_on_holds_up_its_own_shard_alone(url: str, tmp_path: Path) -> None:
    """Given a worker of which each shard but one is quiet, when it is stopped, then those are with
    the peer while the task still runs; it ends, and has run once."""
    done = tmp_path / "done"
    fleet = Fleet(
        url,
        tmp_path,
        LEASES | {"LATE_GRACE_S": "200", "BENCH_HOLD": str(done)},
    )
    try:
        first = fleet.start()
        fleet.wait_ready(first)
        with Load(url, 20, 8) as load:
            until(lambda: 0 in load.committed)
        until(lambda: any(start.number == 0 for start in fleet.starts()))
        shard = load.committed[0][0]
        fleet.wait_ready(second := fleet.start())
        first.terminate()
        until(lambda: len(fleet.owned_by(second)) == 7)
        assert fleet.owned_by(first) == {shard}, "the peer has all others, and the task runs"
        done.touch()
        fleet.wait_gone(first)
        wait_settled(url)
        until(lambda: fleet.owned_by(second) == set(range(8)))
        assert [start.pid for start in fleet.starts() if start.number == 0] == [first.pid]
        assert outcomes(url)["done"] == len(load.committed)
    finally:
        fleet.close()


def test_status_shows_who_is_leaving(url: str, tmp_path: Path) -> None:
    fleet = Fleet(url, tmp_path, {"LATE_LEASE_TTL_S": "60", "LATE_HEARTBEAT_S": "6"})
    try:
        first = fleet.start()
        fleet.wait_ready(first)
        with Control(url) as control:
            until(lambda: len(fleet.owned_by(first)) == len(control.status.read().shards))
            second = fleet.start()
            fleet.wait_ready(second)
            # A worker that knows of no peer leaves at once: this one has given shards to its peer.
            until(lambda: len(fleet.owned_by(second)) > 0)
            first.terminate()
            until(lambda: 0 in [w.capacity for w in control.status.read(limit=1).workers])
        assert first.poll() is None, "it works on for one heartbeat"
        fleet.wait_gone(first)
    finally:
        fleet.close()


# ------------------------------------------------------------------ what measures is measured


def test_a_gap_is_from_the_commit_or_the_last_start() -> None:
    committed = {1: (0, 10.0), 2: (0, 10.0), 3: (0, 11.0), 4: (1, 10.5)}
    starts = [
        Start(1, 1, 10.2, 7),
        Start(2, 1, 10.3, 7),
        Start(4, 1, 10.4, 7),
        Start(3, 1, 13.0, 8),
    ]
    assert gaps(committed, starts) == [
        Gap(0, 10.0, 10.2),
        Gap(0, 10.2, 10.3),
        Gap(1, 10.4, 10.4),  # it started before its producer knew of the commit
        Gap(0, 11.0, 13.0),
    ]
    worst = longest(gaps(committed, starts), 10.25, 20.0)
    assert worst == {0: pytest.approx(2.0), 1: 0.0}


def test_a_repeat_ends_a_gap_and_is_no_commit() -> None:
    committed = {1: (0, 10.0), 2: (0, 12.0)}
    starts = [Start(1, 1, 10.0, 7), Start(1, 1, 11.0, 8), Start(2, 1, 12.5, 8)]
    assert [round(gap.seconds, 3) for gap in gaps(committed, starts)] == [0.0, 0.0, 0.5]


def test_a_takeover_counts_per_shard_of_the_dead() -> None:
    committed = {1: (0, 0.0), 2: (1, 0.0), 3: (2, 0.0)}
    starts = [Start(3, 1, 5.5, 8), Start(1, 1, 6.0, 8), Start(2, 1, 7.0, 8), Start(1, 1, 9.0, 8)]
    assert takeovers(committed, starts, [(5.0, {0, 1}, 7)]) == [1.0, 2.0]
