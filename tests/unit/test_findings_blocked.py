"""Findings on a worker whose event loop does not turn."""

from __future__ import annotations

from late.control.findings.findings import findings
from late.model.worker_report import Block
from tests.unit.test_findings import TASK, reported, stalled, with_reports
from tests.unit.test_web_views import NOW_US, seen

BLOCK = Block("/srv/shop/tasks.py:41 in send", NOW_US - 16_000_000, "app.send", TASK)


def test_the_place_that_blocks_a_worker_is_named_while_it_lasts() -> None:
    [found] = findings(with_reports(seen(), reported(blocked=BLOCK)))
    assert (found.level, found.what) == ("warn", "The event loop of host:1 is blocked")
    assert found.detail == (
        f"At /srv/shop/tasks.py:41 in send, in app.send (task {TASK}), for 16 s: no other task of "
        "this worker gets on. What helps: make this handler a `def`, which runs in a thread, or "
        "await what waits there (asyncio.to_thread)."
    )
    assert (found.command, found.href) == (f"late show {TASK}", f"tasks/{TASK}")
    assert found.since_us == BLOCK.since_us
    unknown = Block("/srv/shop/tasks.py:41 in send", BLOCK.since_us)
    [found] = findings(with_reports(seen(), reported(blocked=unknown)))
    assert found.detail.startswith("At /srv/shop/tasks.py:41 in send, for 16 s: ")
    assert (found.command, found.href) == ("py-spy dump --pid 1", "workers")
    for gone in (reported(blocked=BLOCK, live=False), reported(blocked=BLOCK, age_s=60.0)):
        assert findings(with_reports(seen(), gone)) == []


def test_a_worker_that_stands_still_names_the_place_too() -> None:
    [found] = findings(with_reports(seen(), stalled(stalled=("answer",), stuck=(), blocked=BLOCK)))
    assert found.what == "1 of 1 workers stand still"
    assert "for 2.0 min. It is at /srv/shop/tasks.py:41 in send, in app.send (task" in found.detail
