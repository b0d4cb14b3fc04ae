"""Decide what becomes of a task after an attempt that was not simply done. Pure.

| outcome | costs an attempt | then |
|---|---|---|
| failed | yes | parked for the backoff, or dead when the policy is used up |
| failed in an outage, as most do | no | parked for the backoff, until the retry deadline |
| snooze | no | parked for as long as it asked |
| discard | yes | ended, counted as discarded |
| dead (cannot be read by any version, bad signature) | no | dead letter at once |
| expired | no | ended |
| interrupted (stop, take-over) | no | ready again |
| died (its process went away) | no, a death | parked; dead letter after `DEATHS_MAX` |
| not_capable (no handler here, or not for these arguments) | no | parked; dead letter after a day |
"""

from __future__ import annotations

import msgspec

from late.model.task import (
    KILLED_WORKER,
    AttemptError,
    Final,
    Outcome,
    Reason,
    last_attempt_began_us,
)
from late.scheduler.limits.limiter import ABSENT
from late.scheduler.retry_delay import retry_delay_us
from late.scheduler.task_state import Entry

DEATHS_MAX = 3
ERRORS_KEPT = 20
"""Errors kept per task: the first half and the latest, the middle is dropped."""
REFUSED_MIN_US = 1_000_000
REFUSED_MAX_US = 60_000_000
"""The first and the longest wait of a task that could not run where it was."""
NOT_CAPABLE_MAX_US = 86_400_000_000
ASKED_MAX_US = 60_000_000
"""The longest wait that a target gets for a task while it is away: it may be back long before. Its
circuit breaker asks it as often, and lets its tasks go when it answers."""


class Verdict(msgspec.Struct, frozen=True):
    """Exactly one of `final`, `parked` and `again` is set."""

    word: str
    """The outcome under which usage counts the attempt."""
    attempts: int
    deaths: int
    errors: tuple[AttemptError, ...]
    final: Final | None = None
    reason: str = ""
    parked: Reason | None = None
    due_at_us: int = 0
    again: bool = False


def decide_outcome(
    entry: Entry, outcome: Outcome, now_us: int, worker: str, *, stalled: bool = False
) -> Verdict:
    """Decide by the entry's policy and history. `now_us` is the database's time.

    `stalled`: it failed in an outage, so that its failure says nothing of this task.
    """
    attempts, deaths = entry.attempts, entry.deaths
    errors = _with_error(entry.errors, outcome, now_us, worker)
    match outcome.kind:
        case "done":
            return Verdict("done", attempts + 1, deaths, errors, final="done")
        case "discard":
            return Verdict("discarded", attempts + 1, deaths, errors, final="discarded")
        case "expired":
            return Verdict("expired", attempts, deaths, errors, final="expired")
        case "dead":
            return Verdict(
                "dead", attempts, deaths, errors, final="dead", reason=outcome.reason or "failed"
            )
        case "interrupted":
            return Verdict("interrupted", attempts, deaths, errors, again=True)
        case "snooze":
            due = now_us + max(0, outcome.after_us or 0)
            return Verdict("snoozed", attempts, deaths, errors, parked="snooze", due_at_us=due)
        case "not_capable":
            reason = outcome.reason or "not_capable"
            errors, since_us = refused(entry, outcome.error or reason, now_us, worker)
            if now_us - since_us >= NOT_CAPABLE_MAX_US:
                return Verdict("dead", attempts, deaths, errors, final="dead", reason=reason)
            wait_us = refused_wait_us(errors, now_us)
            due = now_us + (wait_us if outcome.after_us is None else outcome.after_us)
            return Verdict("not_capable", attempts, deaths, errors, parked="unknown", due_at_us=due)
        case "died":
            return _died(entry, outcome, now_us, errors)
        case "failed":
            return _failed(entry, outcome, now_us, errors, stalled=stalled and outcome.retryable)


def refused(
    entry: Entry, why: str, now_us: int, worker: str
) -> tuple[tuple[AttemptError, ...], int]:
    """Note that the next attempt of the task cannot run here. Return the errors, `why` among them
    once, and since when this is so: a task may have waited for its time before, for months."""
    number = entry.attempts + 1
    for error in entry.errors:
        if (error.attempt, error.error) == (number, why):
            return entry.errors, error.at_us
    return _kept((*entry.errors, AttemptError(number, now_us, worker, why))), now_us


def refused_wait_us(errors: tuple[AttemptError, ...], now_us: int) -> int:
    """Return how long a task waits that could not run here, by its errors with the last refusal.

    As long as its present attempt has waited already: it runs soon after a deploy has ended, or
    another consumer is free, and a task that nobody knows costs little.
    """
    return min(REFUSED_MAX_US, max(REFUSED_MIN_US, now_us - last_attempt_began_us(errors)))


def _died(entry: Entry, outcome: Outcome, now_us: int, errors: tuple[AttemptError, ...]) -> Verdict:
    deaths = entry.deaths + 1
    if deaths >= DEATHS_MAX:
        return Verdict("dead", entry.attempts, deaths, errors, final="dead", reason=KILLED_WORKER)
    due = now_us + retry_delay_us(entry.policy, deaths, outcome.jitter)
    return Verdict("died", entry.attempts, deaths, errors, parked="interrupted", due_at_us=due)


def killed(entry: Entry, now_us: int) -> tuple[AttemptError, ...]:
    """Return the errors of a task under which too many workers died, and add why it is dead."""
    text = f"{entry.deaths} workers died while it ran, the later ones while it ran on trial"
    return _kept((*entry.errors, AttemptError(entry.attempts + 1, now_us, "", text)))


def _failed(
    entry: Entry,
    outcome: Outcome,
    now_us: int,
    errors: tuple[AttemptError, ...],
    *,
    stalled: bool,
) -> Verdict:
    policy = entry.policy
    attempts = entry.attempts + 1
    wait_us = outcome.after_us
    if wait_us is not None and stalled and outcome.reason in ABSENT:
        wait_us = min(wait_us, ASKED_MAX_US)
    if wait_us is None:
        # In an outage the number of the attempt stays, and the waits grow all the same.
        again = max(0, sum(e.attempt == attempts for e in errors) - 1) if stalled else 0
        wait_us = retry_delay_us(policy, attempts + again, outcome.jitter)
    due = now_us + max(0, wait_us)
    if stalled and now_us <= _first_failure_us(errors, now_us) + policy.deadline_us:
        return Verdict(
            "stalled", entry.attempts, entry.deaths, errors, parked="limited", due_at_us=due
        )
    reason = None
    if not outcome.retryable:
        reason = outcome.reason or "gave_up"
    elif attempts >= policy.max_attempts:
        reason = "attempts_exhausted"
    elif due > _first_failure_us(errors, now_us) + policy.deadline_us:
        reason = "retry_deadline"
    if reason is not None:
        return Verdict("dead", attempts, entry.deaths, errors, final="dead", reason=reason)
    return Verdict("retried", attempts, entry.deaths, errors, parked="retry", due_at_us=due)


def _first_failure_us(errors: tuple[AttemptError, ...], now_us: int) -> int:
    """Return when the present series of attempts first failed.

    Not when the task was due: a backlog uses up nobody's retries. And not the very first error: a
    dead letter that is redriven after a week begins a new series, with the old errors kept.
    """
    return next((error.at_us for error in reversed(errors) if error.attempt == 1), now_us)


def _with_error(
    errors: tuple[AttemptError, ...], outcome: Outcome, now_us: int, worker: str
) -> tuple[AttemptError, ...]:
    if outcome.error is None:
        return errors
    return _kept((*errors, AttemptError(outcome.attempt.number, now_us, worker, outcome.error)))


def _kept(errors: tuple[AttemptError, ...]) -> tuple[AttemptError, ...]:
    if len(errors) > ERRORS_KEPT:
        half = ERRORS_KEPT // 2
        errors = errors[:half] + errors[-half:]
    return errors
