"""A canvas goes on exactly once when workers are killed in its header, its body and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import late
from late import celery
from late.celery import chain, chord
from late.celery.run import register
from late.outbox import connect
from tests.integration import canvas_kill_app
from tests.integration.control_kit import rows
from tests.integration.kill_kit import Fleet, until

CANVASES = 12
DYING = ("header", "body", "end")


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    folder = tmp_path / "witness"
    folder.mkdir()
    made = Fleet(url, folder, app="tests.integration.canvas_kill_app:app")
    yield made
    made.close()


def test_each_stage_is_started_once_and_every_result_is_right(url: str, fleet: Fleet) -> None:
    app = canvas_kill_app.app
    step, total = canvas_kill_app.step, canvas_kill_app.total
    app.late_app = late.App(url, shards=4)
    for task in (step, total):
        register(task, app)
    with connect(url) as tx, celery.transaction(tx):
        results = []
        for n in range(CANVASES):
            header, body, end = (name if n == 0 else "" for name in DYING)
            results.append(chain(
                step.s(n),
                chord([step.s(), step.s(dies=header), step.s()], total.s(dies=body)),
                step.s(dies=end),
                total.si([n]),
            ).delay())  # fmt: skip
    fleet.start()
    fleet.start()

    def done() -> bool:
        if sum(each.poll() is None for each in fleet.processes) < 2:
            fleet.start()
        return all(result.ready() for result in results)

    until(done, fleet)
    assert [result.get(timeout=0) for result in results] == list(range(CANVASES))
    sums = [result.parent.parent.get(timeout=0) for result in results]
    assert sums == [3 * (n + 2) for n in range(CANVASES)]
    # Every stage has ended well; only what was cut off ran again. The log is pruned meanwhile.
    ids = rows(url, "select task_id from late_stage where name in ('step', 'total')")
    assert len(ids) == len(set(ids)) == CANVASES * 7
    assert rows(url, "select distinct state from late_stage") == [("done",)]
    runs = Counter(run for run in fleet.runs() if not run.isdigit())
    assert runs.keys() == {str(task_id) for (task_id,) in ids}
    assert len(list(fleet.folder.glob("*.died"))) == len(DYING)
    assert len([pid for pid in fleet.processes if pid.poll() is not None]) == len(DYING)
