"""The finding of a tenant that floods: the tasks that wait for it, wherever they are."""

from __future__ import annotations

import msgspec

from late.control.findings.findings import findings
from late.control.status.scaling_signals import _tenants
from late.control.status.snapshot import Snapshot
from late.control.views import Count, QueueStatus
from late.model.task import ENQUEUED, Usage
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


def usage(tenant: str, outcome: str, count: int, busy_s: float = 0.0) -> tuple[Usage, float]:
    attempts = 0 if outcome == ENQUEUED else count
    made = Usage("sync", "pull", "local", outcome, count, attempts, round(busy_s * 1e6))
    return msgspec.structs.replace(made, tenant=tenant), 60.0


def test_the_few_that_one_sends_beside_the_backlog_of_another_are_no_flood() -> None:
    """One tenant put in its tasks two minutes ago; the other sends some all the time."""
    found = _tenants([
        usage("bolt", ENQUEUED, 150), usage("bolt", "done", 10, 2.5),
        usage("acme", "done", 7_200, 1_900.0),
    ])  # fmt: skip
    assert [(each.tenant, round(each.share, 2)) for each in found] == [
        ("acme", 0.0),
        ("bolt", 0.02),
    ]
    now = _tenants([usage("bolt", ENQUEUED, 150), usage("acme", ENQUEUED, 12_000)])
    assert [(each.tenant, round(each.share, 2)) for each in now] == [("acme", 0.99), ("bolt", 0.01)]


def test_a_flood_of_before_is_named_while_it_has_the_slots() -> None:
    look = flooded(share=0.0)
    [found] = findings(look)
    assert found.what == "Tenant big floods queue mail"
    paces = {
        key: msgspec.structs.replace(
            pace, tenants=(msgspec.structs.replace(pace.tenants[0], slot_share=0.4),)
        )
        for key, pace in look.paces.items()
    }
    assert findings(msgspec.structs.replace(look, paces=paces)) == []
