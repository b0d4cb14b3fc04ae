"""The finding of a tenant that floods: the tasks that wait for it, wherever they are."""

from __future__ import annotations

import msgspec

from late.control.findings.findings import findings
from late.control.status.snapshot import Snapshot
from late.control.views import Count, QueueStatus
from tests.unit.test_findings import flooded, reported


def test_tasks_in_the_memory_of_workers_wait_too_but_for_those_that_run() -> None:
    def with_workers(n: int, running: int) -> Snapshot:
        found = flooded(waiting=88)  # of these, all in the log
        queue = QueueStatus("default", "mail", Count(0), in_flight=Count(n))
        status = msgspec.structs.replace(found.status, queues=(queue,), limited=())
        told = reported()
        told = msgspec.structs.replace(
            told, report=msgspec.structs.replace(told.report, running=running)
        )
        return msgspec.structs.replace(found, status=status, reports=(told,))

    [found] = findings(with_workers(880, 8))
    assert "872 wait." in found.detail
    assert findings(with_workers(880, 800)) == []
    [found] = findings(with_workers(103, 0))  # 5 a second that take half a second
    assert "100 wait." in found.detail
