"""The metric of workers that died under one task."""

from __future__ import annotations

from late.autoscaler.keda.demand import Signals
from late.control.views import Status, SuspectTask
from late.worker.metrics import of_database


def test_the_most_deaths_under_one_task_are_told_by_group() -> None:
    suspects = (SuspectTask("default", 0, "a", 1), SuspectTask("default", 1, "b", 2))
    seen = Status(1, "0017", "", (), (), (), suspects=suspects)
    pace = Signals(backlog=0, age_s=0.0, rate=0.0, busy_s=0.0, workers=1, shards=2)
    values = of_database(seen, {"default": pace, "other": pace}, slots=4)
    told = {labels: value for name, labels, value in values if name == "late_suspect_deaths"}
    assert told == {("default",): 2, ("other",): 0}
