"""The state of a workflow, by the number of its stages in each state."""

from __future__ import annotations

from collections import Counter

import pytest

from late.control.workflows import ROWS, view_of
from late.model.ids import new_id
from late.model.workflow import STAGES_MAX


@pytest.mark.parametrize(
    ("stages", "state"),
    [
        ("done done", "done"),
        ("done idle", "done"),  # The task for failures was not needed.
        ("done waiting started", "running"),
        ("done parked", "running"),
        ("done dead started waiting", "failed"),  # It needs somebody, although a task runs.
        ("expired waiting", "failed"),
        ("discarded skipped done", "failed"),
        ("purged waiting", "failed"),
        ("cancelled dead", "cancelled"),
        ("stopping cancelled done", "cancelled"),
    ],
)
def test_states(stages: str, state: str) -> None:
    names = stages.split()
    view = view_of(new_id(0), "first", Counter(names))
    assert view.state == state
    assert view.tasks == len(names) - names.count("idle")
    sums = view.done + view.running + view.waiting + view.failed + view.cancelled
    assert sums == view.tasks


def test_one_statement_reads_a_whole_workflow() -> None:
    """Otherwise a page would not get on."""
    assert ROWS > STAGES_MAX
