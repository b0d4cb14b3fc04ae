"""A queue whose breaker is open is named: its tasks wait, and nothing else says why."""

from __future__ import annotations

import msgspec

from late.control.findings.findings import findings
from late.model.worker_report import OpenCircuit, WorkerReport, decode, encode
from tests.unit.test_findings import NOW_US, reported, seen, with_reports

OPEN = OpenCircuit("partner", NOW_US - 90_000_000, 20, 15, "HTTP 500", NOW_US - 4_000_000)


def test_an_open_breaker_of_a_queue_is_named_with_what_takes_it_off() -> None:
    one = reported(number=1, circuits=(OPEN,))
    few = msgspec.structs.replace(OPEN, failed=5, error="", error_at_us=0)
    other = reported(number=2, circuits=(few,))
    [found] = findings(with_reports(seen(), one, other))
    assert (found.level, found.what) == ("bad", "The breaker of queue partner is open")
    assert found.detail.startswith("50% of its last 40 attempts failed. The last error, 4.0 s ago")
    assert "open for 1.5 min, in 2 workers" in found.detail
    assert found.command == "late queue set partner breaker=default"


def test_a_report_of_long_ago_says_nothing_of_now() -> None:
    assert findings(with_reports(seen(), reported(age_s=600.0, circuits=(OPEN,)))) == []


def test_it_is_written_and_read() -> None:
    told = WorkerReport("w", "here", circuits=(OPEN,))
    assert decode(encode(told)) == told
    assert told.matters
    assert told.troubled
    assert not told.ended.circuits
