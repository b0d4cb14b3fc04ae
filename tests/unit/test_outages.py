"""Outages are told from tasks that fail: by the last ends of different tasks of one name."""

from __future__ import annotations

import pytest

from late.model.queue_settings import QueueSettings
from late.model.task import Attempt, AttemptError, Outcome, Policy, Record, TaskId, Usage
from late.scheduler.limits.limits import Limits
from late.scheduler.limits.outages import (
    FAILED_MIN,
    FORGOTTEN_US,
    NAMES_MAX,
    REMEMBERED,
    Name,
    Outages,
)
from late.scheduler.outcome_rules import decide_outcome
from late.scheduler.task_state import Entry

S = 1_000_000
JOB = Name("g", "q", "job")


def record(number: int, *, name: str = "job", queue: str = "q") -> Record:
    return Record(0, number, TaskId(f"a{number:05d}"), queue, name, b"{}", None, None, 0, number)


def ended(number: int, kind: str = "done", *, name: str = "job", **fields: object) -> Outcome:
    attempt = Attempt("g", record(number, name=name), 1, 0, 1, 0)
    return Outcome(attempt, kind, 0, 1, **fields)  # type: ignore[arg-type]


def entry(number: int, *, attempts: int = 0, target: str = "local", most: int = 3) -> Entry:
    policy = Policy(target=target, max_attempts=most, base_us=S, full_jitter=False)
    return Entry(record=record(number), policy=policy, attempts=attempts)


def failures(limits: Limits, numbers: range, now_us: int = 0, **fields: object) -> list[bool]:
    return [
        limits.stalled("g", entry(n), ended(n, "failed", error="away", **fields), now_us)
        for n in numbers
    ]


def worked(limits: Limits, count: int, *, name: str = "job", outcome: str = "done") -> None:
    limits.outages.worked("g", [Usage("q", name, "local", outcome, count)])


def test_what_fails_for_all_tasks_of_a_name_is_an_outage() -> None:
    limits = Limits()
    assert failures(limits, range(10)) == [False] * 4 + [True] * 6
    assert limits.outages.names(0) == {JOB}


def test_few_tasks_that_fail_for_ever_are_no_outage() -> None:
    """However often each is tried: tasks count, and not attempts."""
    limits = Limits()
    for _ in range(50):
        assert failures(limits, range(FAILED_MIN - 1)) == [False] * 4


@pytest.mark.parametrize("outcome", ["done", "discarded"])
def test_poison_among_good_tasks_is_no_outage(outcome: str) -> None:
    limits = Limits()
    worked(limits, 40, outcome=outcome)
    for _ in range(50):
        assert failures(limits, range(9)) == [False] * 9
    for turn in range(50):
        worked(limits, 2)
        assert failures(limits, range(turn % 9, turn % 9 + 1)) == [False]
    assert limits.outages.names(0) == frozenset()


def test_after_good_tasks_it_takes_half_of_the_last_ones() -> None:
    limits = Limits()
    worked(limits, 1_000)
    assert failures(limits, range(40)) == [False] * 9 + [True] * 31


def test_it_is_over_when_tasks_work_again() -> None:
    limits = Limits()
    failures(limits, range(30))
    assert limits.outages.take_changes() == [(JOB, True)]
    worked(limits, REMEMBERED // 2)
    assert limits.outages.take_changes() == []
    worked(limits, 1)
    assert limits.outages.take_changes() == [(JOB, False)]
    worked(limits, REMEMBERED)
    assert not limits.outages.watches, "and nothing is left of it"


def test_tasks_that_failed_and_then_worked_have_worked() -> None:
    limits = Limits()
    failures(limits, range(FAILED_MIN))
    limits.outages.ended("g", [ended(n) for n in range(FAILED_MIN)])
    assert not limits.outages.watches
    assert limits.outages.take_changes() == [(JOB, True), (JOB, False)]


def test_a_failure_is_forgotten_in_the_end() -> None:
    """Its task may have gone to another worker with its shard."""
    limits = Limits()
    failures(limits, range(FAILED_MIN), now_us=1)
    assert limits.outages.names(FORGOTTEN_US + 1) == {JOB}
    assert limits.outages.names(FORGOTTEN_US + 2) == frozenset()
    assert not limits.outages.watches


def test_names_queues_and_groups_are_apart() -> None:
    outages = Outages()
    for n in range(FAILED_MIN):
        outages.failed("g", record(n), 0)
    assert outages.failed("g", record(9), 0)
    assert not outages.failed("g", record(9, name="other"), 0)
    assert not outages.failed("g", record(9, queue="other"), 0)
    assert not outages.failed("audit", record(9), 0)
    outages.worked("g", [Usage("q", "third", "local", "done", 50)])
    outages.ended("g", [ended(n, name="third") for n in range(FAILED_MIN)])
    assert outages.names(0) == {JOB}


def test_names_that_only_work_are_not_kept_without_end() -> None:
    limits = Limits()
    failures(limits, range(FAILED_MIN))
    for n in range(2 * NAMES_MAX):
        worked(limits, 1, name=f"n{n}")
    assert len(limits.outages._ends) <= NAMES_MAX
    assert limits.outages.names(0) == {JOB}


@pytest.mark.parametrize("kind", ["interrupted", "not_capable", "died"])
def test_ends_that_say_nothing_change_nothing(kind: str) -> None:
    limits = Limits()
    for n in range(20):
        assert not limits.stalled("g", entry(n), ended(n, kind), 0)
    assert not limits.outages.watches


@pytest.mark.parametrize("fields", [{"retryable": False}, {"after_us": 5}])
def test_a_task_that_its_handler_judges_is_no_sign_of_an_outage(fields: dict[str, object]) -> None:
    limits = Limits()
    assert failures(limits, range(20), **fields) == [False] * 20


def test_it_can_be_turned_off() -> None:
    limits = Limits()
    for scope in (
        ({"q": QueueSettings(smart_retry=False)}, {}),
        (
            {},
            {"local": QueueSettings(smart_retry=False)},
        ),
    ):
        limits.set(*scope, 0)
        assert failures(limits, range(10)) == [False] * 10
    limits.set({"q": QueueSettings(rate=5.0)}, {}, 0)
    assert failures(limits, range(10)) == [True] * 10, "another setting leaves it on"


def test_a_task_that_is_never_repeated_is_not_repeated_for_an_outage() -> None:
    limits = Limits()
    failures(limits, range(10))
    assert not limits.stalled("g", entry(20, most=1), ended(20, "failed"), 0)


def test_a_protected_target_has_its_breaker_for_that() -> None:
    limits = Limits({"svc"})
    for n in range(10):
        end = ended(n, "failed", target="svc")
        assert not limits.stalled("g", entry(n, target="svc"), end, 0)
    assert not limits.outages.watches


def test_the_waits_grow_while_the_number_of_the_attempt_stays() -> None:
    one, now_us, waits = entry(1, attempts=1, most=12), 0, []
    for _ in range(12):
        end = Outcome(Attempt("g", one.record, 2, 0, 1, 0), "failed", 0, 1, error="away")
        verdict = decide_outcome(one, end, now_us, "w", stalled=True)
        assert (verdict.word, verdict.attempts) == ("stalled", 1)
        one.errors = verdict.errors
        waits.append((verdict.due_at_us - now_us) // S)
        now_us = verdict.due_at_us
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900]
    # It begins anew with the next attempt that counts
    end = Outcome(Attempt("g", one.record, 2, 0, 1, 0), "failed", 0, 1, error="its own")
    verdict = decide_outcome(one, end, now_us, "w")
    assert (verdict.word, verdict.attempts) == ("retried", 2)
    assert verdict.due_at_us - now_us == 2 * S
    assert isinstance(verdict.errors[-1], AttemptError)
