"""The kill storm: promises P1, P2, P6 and P7 while everything dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plan import GAP_S, Size, What
from tests.chaos.sizes import FULL, STORES, sized
from tests.chaos.storm import Storm
from tests.chaos.target import Target
from tests.conformance.backends import Backend
from tests.databases import PRESENT

FILES = [backend for backend in PRESENT if not backend.network]
FILES_FIRST = STORES if FULL else FILES
"""Where a fleet starts soonest: what waits for company waits in the worker, on every store."""
pytestmark = pytest.mark.timeout(sized(600, 3600))


def test_p1_p2_nothing_is_lost_and_nothing_aborted_runs(
    backend: Backend, mortal: Target, folder: Path
) -> None:
    """Workers, producers and the server are killed; then, with nothing restarted, all is done
    (P7), and what ran twice is bounded and explained (P6)."""
    faults: dict[What, int] = {"kill_worker": sized(3, 40), "kill_producer": sized(1, 5)}
    tasks = sized(1_500, 20_000)
    if mortal.server is not None:
        faults["kill_server"] = sized(1, 5)
    if not backend.network:
        tasks = sized(1_000, 10_000)
    if backend.emulated:
        faults["kill_worker"], tasks = sized(1, 40), sized(120, 5_000)
        if not FULL:  # of the storms that the emulator goes through in full only
            faults |= {"cut_before": 2, "cut_after": 2, "stop_at_settle": 1}
    gap_s = sized((0.2, 1.5), GAP_S)
    size = Size(tasks, sized(2, 8), sized(3, 4), sized(8, 16), faults, gap_s=gap_s)

    report = Storm(mortal, size, folder).run()

    assert not report.broken, report.line()
    assert report.tasks >= tasks
    assert report.aborted > tasks // 5, "or P2 shows nothing"


REPEATS = Size(
    sized(500, 5_000),
    workers=1,
    faults={"kill_worker": sized(2, 10)},
    gap_s=(8.0, 9.0),
    calm=True,
)
"""Nobody waits for an outcome, and each death comes later than an outcome may wait."""


@pytest.mark.parametrize("backend", FILES_FIRST, ids=lambda backend: backend.name, indirect=True)
def test_a_death_repeats_what_the_docs_say(target: Target, folder: Path) -> None:
    """docs/ownership.md: in tasks and in seconds, for the default of `settle_delay_s`."""
    report = Storm(target, REPEATS, folder).run()

    assert not report.broken, report.line()
    assert report.faults["kill"] == REPEATS.faults["kill_worker"]


@pytest.mark.parametrize("backend", FILES, ids=lambda backend: backend.name, indirect=True)
def test_a_worker_that_records_late_repeats_too_much(target: Target, folder: Path) -> None:
    """Else the one above shows nothing."""
    late = {"LATE_CHAOS_DEFECT": "late_record"}

    report = Storm(target, REPEATS, folder, environment=late).run()

    assert set(report.broken) == {"unrecorded"}, report.line()
