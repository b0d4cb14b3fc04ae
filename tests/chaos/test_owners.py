"""Owners that sleep past their lease, links that break within a settlement, and the network of
one worker after the other: promises P4, P5 and P7."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plan import Size, What
from tests.chaos.sizes import STORES, sized
from tests.chaos.storm import Storm
from tests.chaos.target import Target
from tests.conformance.backends import Backend

pytestmark = pytest.mark.timeout(sized(600, 3600))
NETWORKED = [backend for backend in STORES if backend.network]
CONCURRENCY = 16
"""Tasks of one worker at a time."""


@pytest.mark.parametrize("backend", STORES, ids=lambda backend: backend.name, indirect=True)
def test_p4_an_owner_that_slept_past_its_lease_changes_nothing(
    backend: Backend, target: Target, folder: Path
) -> None:
    """Stopped anywhere, and between the decision to settle and the COMMIT."""
    faults: dict[What, int] = {"stop_worker": sized(1, 25), "stop_at_settle": sized(1, 25)}
    tasks = sized(500, 5_000)
    if backend.emulated:
        faults, tasks = {"stop_worker": 3, "stop_at_settle": 4}, 1_000
    size = Size(tasks, faults=faults, gap_s=(0.2, 1.0))

    report = Storm(target, size, folder).run()

    assert not report.broken, report.line()
    assert report.fenced, "or nobody was fenced, and this shows nothing"
    assert report.woken_starts <= CONCURRENCY * report.faults["stop"]


@pytest.mark.parametrize("backend", STORES, ids=lambda backend: backend.name, indirect=True)
def test_p5_each_task_is_settled_once_whatever_becomes_of_the_commit(
    backend: Backend, target: Target, folder: Path
) -> None:
    """The link is cut before the COMMIT of a settlement and after it, the transaction is aborted,
    or the worker dies with the answer. The journal's counts say what happened."""
    faults: dict[What, int] = {"die_at_settle": sized(1, 10)}
    tasks = sized(500, 5_000)
    if backend.network:
        faults |= {"cut_before": sized(10, 200), "cut_after": sized(10, 200)}
        faults |= {"abort": sized(4, 100)}
    else:
        faults["die_at_settle"] = sized(3, 50)
    if backend.emulated:
        tasks = 1_000
        faults |= {"cut_before": 60, "cut_after": 60}
    size = Size(tasks, faults=faults, gap_s=(0.05, 0.4))

    report = Storm(target, size, folder).run()

    assert not report.broken, report.line()
    if backend.network:
        assert report.unsure, "or no link was cut within a settlement, and this shows nothing"


@pytest.mark.parametrize("backend", NETWORKED, ids=lambda backend: backend.name, indirect=True)
def test_p7_when_the_network_is_back_all_is_done_and_nothing_is_restarted(
    backend: Backend, target: Target, folder: Path
) -> None:
    faults: dict[What, int] = {
        "blackhole": sized(1, 4),
        "blackhole_all": sized(1, 2),
        "half_open": sized(1, 4),
        "delay": sized(1, 4),
        "reset": sized(3, 20),
    }
    tasks, outage = sized(500, 5_000), sized(2, 15)
    if backend.emulated:
        tasks, outage = 1_000, 6
    size = Size(tasks, faults=faults, gap_s=(0.2, 2.0), outage_ttl=(outage, outage))
    storm = Storm(target, size, folder)

    report = storm.run()

    assert not report.broken, report.line()
    assert report.faults.get("kill") is None
    assert len(list(folder.glob("*worker.log"))) == size.workers, "nobody was restarted"
