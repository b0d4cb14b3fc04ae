"""The wait that a target asks for: kept for one task, and cut while the target is away."""

from __future__ import annotations

import pytest

from late.dispatcher.push.responses import http_status
from late.model.task import Attempt, Outcome, Policy
from late.scheduler.outcome_rules import ASKED_MAX_US, decide_outcome
from late.scheduler.task_state import Entry
from tests.unit.test_outages import record

DAY_US = 86_400_000_000


def wait_us(status: int, after_s: float, *, stalled: bool) -> int:
    verdict = http_status(status, b"", after_s, "bank")
    attempt = Attempt("g", record(1), 1, 0, 1, 0)
    outcome = Outcome(
        attempt, verdict.kind, 0, 1, error=verdict.error, reason=verdict.reason,
        after_us=verdict.after_us, overloaded=verdict.overloaded,
    )  # fmt: skip
    entry = Entry(record=record(1), policy=Policy(target="bank", deadline_us=2 * DAY_US))
    return decide_outcome(entry, outcome, 0, "w", stalled=stalled).due_at_us


@pytest.mark.parametrize("status", [429, 503])
def test_a_target_that_is_away_gets_a_minute_of_the_day_that_it_asks_for(status: int) -> None:
    assert wait_us(status, 86_400, stalled=False) == DAY_US
    assert wait_us(status, 86_400, stalled=True) == ASKED_MAX_US
    assert wait_us(status, 5, stalled=True) == 5_000_000


def test_a_handler_that_asks_for_a_retry_gets_its_wait() -> None:
    """It judges its task, also where all tasks of its name do so."""
    attempt = Attempt("g", record(1), 1, 0, 1, 0)
    outcome = Outcome(attempt, "failed", 0, 1, error="closed", after_us=DAY_US)
    entry = Entry(record=record(1), policy=Policy(deadline_us=2 * DAY_US))
    assert decide_outcome(entry, outcome, 0, "w", stalled=True).due_at_us == DAY_US


def test_the_error_tells_of_the_wait() -> None:
    told = "bank: HTTP 503 (it asked for a wait of 86400 s)"
    assert http_status(503, b"", 86_400, "bank").error == told
    assert http_status(503, b"", None, "bank").error == "bank: HTTP 503"
