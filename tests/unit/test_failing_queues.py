"""A queue whose tasks fail: what is remembered of it, and what is said."""

from __future__ import annotations

import msgspec

from late.autoscaler.keda.demand import Signals
from late.control.findings.findings import findings
from late.control.views import Count, QueueStatus
from late.model.task import Usage
from late.model.worker_report import Failing
from late.scheduler.limits.outages import Outages
from tests.unit.test_findings import reported, with_reports
from tests.unit.test_outages import S, ended, record
from tests.unit.test_web_views import NOW_US, group, seen


def test_a_failure_is_told_of_for_a_minute_also_if_its_task_works_then() -> None:
    outages = Outages()
    outages.failed("g", record(1, name="pay"), 10 * S, error="KeyError")
    outages.done("g", [ended(1, name="pay")], 11 * S)
    outages.failed("g", record(2, name="mail"), 12 * S, error="OSError")
    outages.settled("g", [Usage("q", "calm", "local", "done", 1)], 12 * S)  # it has never failed
    told = [(each.name.task, each.error) for each in outages.failed_lately(13 * S)]
    assert told == [("mail", "OSError"), ("pay", "KeyError")]
    assert [each.name.task for each in outages.failed_lately(71 * S)] == ["mail"]
    assert outages.failed_lately(73 * S) == []


def test_failures_are_those_of_a_queue_where_queues_are_known() -> None:
    failing = Signals(5, 1.0, 10.0, 0.1, 1, 8, failed=6.0)
    well = msgspec.structs.replace(failing, failed=0.0)
    look = msgspec.structs.replace(
        seen(groups=(group(),)), signals={"default": failing},
        paces={("default", "pay"): failing, ("default", "mail"): well,
               ("audit", "pay"): failing},
    )  # fmt: skip
    [found] = findings(look)
    assert (found.level, found.what) == ("bad", "Tasks of queue pay (default) fail")
    assert found.detail == "6/s, 60% of its attempts, in the last minute."
    assert found.command == "late tasks list parked --reason retry --group default --queue pay"
    # The last error of that queue in all workers; and where tasks have died, they are to be seen.
    told = (
        Failing("default", "pay", "charge", "HttpError: 503", NOW_US - 2),
        Failing("default", "pay", "refund", "KeyError: 'card'", NOW_US - 1),
        Failing("default", "mail", "send", "OSError", NOW_US),
        Failing("audit", "pay", "charge", "OSError", NOW_US),
    )
    with_dead = QueueStatus("default", "pay", dead=Count(2))
    status = msgspec.structs.replace(look.status, queues=(with_dead,))
    look = msgspec.structs.replace(look, status=status)
    look = with_reports(look, reported(failing=told[1:]), reported(number=2, failing=told[:1]))
    [found, _] = findings(look)
    assert found.detail.endswith("last minute. The last error, of refund: KeyError: 'card'.")
    assert (found.command, found.href) == (
        "late dead list --group default --queue pay", "dead?group=default&queue=pay",
    )  # fmt: skip
