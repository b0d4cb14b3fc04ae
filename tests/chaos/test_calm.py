"""Nothing goes wrong: promise P6, and P3 from end to end; and what must be found when a promise is
broken on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from late.outbox import connect
from tests.chaos import workload
from tests.chaos.plan import Size, What
from tests.chaos.sizes import sized
from tests.chaos.storm import Storm
from tests.chaos.target import Target
from tests.conformance.backends import Backend
from tests.databases import PRESENT

pytestmark = pytest.mark.timeout(sized(600, 3600))
FILES = [backend for backend in PRESENT if not backend.network]
"""Where a fleet starts soonest: what the judge finds is the same everywhere."""


def test_p3_p6_a_run_without_faults_starts_each_task_once(
    backend: Backend, target: Target, folder: Path
) -> None:
    """In pages of seven; and where more than one can write, with one transaction that is open the
    whole time. The control, a tail by `id > cursor`, is in `test_postgres_tail`."""
    tasks = sized(1_000, 50_000) if target.traits.writers else sized(700, 20_000)
    if backend.emulated:
        tasks = sized(100, 2_000)
    size = Size(tasks, calm=True, lasts_s=0.0)
    target.ttl_s = 10.0  # a machine that is busy with other things is no fault
    storm = Storm(target, size, folder, environment={"LATE_PAGE_SIZE": "7"})

    with storm.begun():
        for _ in range(size.workers):
            storm.fleet.add()
        storm.until(storm.fleet.all_up)
        if target.traits.writers:
            with connect(target.url) as whole_run:
                task = workload.quick.enqueue(whole_run)
                storm.note("enqueue", task=task, tx="whole-run")
                whole_run.execute("insert into chaos_tx (tx) values ('whole-run')")
                storm.produce()
                storm.finish_producing()
                storm.note("commit", tx="whole-run")
        else:
            storm.produce()
        storm.calm()
    report = storm.judged()

    assert not report.broken, report.line()
    assert report.duplicates == 0
    # Producers end as soon as each has committed its share, which may be met exactly.
    assert report.tasks >= tasks + target.traits.writers


@pytest.mark.parametrize("backend", FILES, ids=lambda backend: backend.name, indirect=True)
def test_a_handler_that_is_called_done_before_it_is_loses_tasks(
    target: Target, folder: Path
) -> None:
    """Else P1 shows nothing. A kill may come while nothing runs, so there are several."""
    faults: dict[What, int] = {"kill_worker": 8}
    storm = Storm(
        target,
        Size(600, faults=faults, gap_s=(0.2, 0.6)),
        folder,
        environment={"LATE_CHAOS_DEFECT": "ack_first"},
    )

    report = storm.run()

    assert "lost" in report.broken, report.line()


@pytest.mark.parametrize("backend", FILES, ids=lambda backend: backend.name, indirect=True)
def test_an_owner_that_nothing_fences_settles_twice(target: Target, folder: Path) -> None:
    """Else P4 and P5 show nothing."""
    faults: dict[What, int] = {"stop_at_settle": 1}
    storm = Storm(
        target,
        Size(300, faults=faults, gap_s=(0.2, 1.0)),
        folder,
        environment={"LATE_CHAOS_DEFECT": "unfenced"},
    )

    with storm.begun():
        for _ in range(storm.size.workers):
            storm.fleet.add()
        storm.until(storm.fleet.all_up)
        storm.produce()
        storm.rage()
        storm.calm(drain_s=5.0)  # two cursors over one shard: it may never come to an end
    report = storm.judged()

    assert {"zombie", "ledger"} <= set(report.broken), report.line()
