"""Outages are told from tasks that fail: by the last ends of different tasks of one name."""

from __future__ import annotations

import random

import pytest

from late.model.queue_settings import QueueSettings
from late.model.task import Attempt, AttemptError, Outcome, Policy, Record, TaskId, Usage
from late.scheduler.limits.limits import Limits
from late.scheduler.limits.outages import (
    FAILED_MIN,
    FAILING_MAX,
    FLEET_SILENCE_US,
    FORGOTTEN_US,
    NAMES_MAX,
    PAUSE_MIN_US,
    REMEMBERED,
    REPORTED_MAX,
    Ends,
    Name,
    Outages,
)
from late.scheduler.limits.ready_queues import ReadyQueues
from late.scheduler.outcome_rules import decide_outcome
from late.scheduler.task_state import Entry
from late.store.base import NameEnds

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


def worked(
    limits: Limits, count: int, now_us: int = 0, *, name: str = "job", first: int = 1_000
) -> None:
    """As a core tells of tasks that are done: of a name that fails at once, of others later."""
    limits.outages.done("g", [ended(first + n, name=name) for n in range(count)], now_us)
    limits.outages.settled("g", [Usage("q", name, "local", "done", count)], now_us)


def test_what_fails_for_all_tasks_of_a_name_is_an_outage() -> None:
    limits = Limits()
    assert failures(limits, range(10)) == [False] * 4 + [True] * 6
    assert limits.outages.names(0) == {JOB}


def test_when_the_clock_is_set_all_times_of_a_name_move() -> None:
    ends = Ends()
    ends.add_worked(1, 100 * S)
    for now_us in (200 * S, 300 * S):
        ends.add_failed(TaskId("a"), now_us, counts=True)
    ends.move(-50 * S)
    assert ends.summary(JOB, 250 * S + FORGOTTEN_US) == NameEnds(*JOB, 1, 1, 50 * S, (150 * S,))
    assert ends.summary(JOB, 250 * S + FORGOTTEN_US + 1) == NameEnds(*JOB, 0, 1, 50 * S, ())


def test_few_tasks_that_fail_for_ever_are_no_outage() -> None:
    """However often each is tried: tasks count, and not attempts."""
    limits = Limits()
    for _ in range(50):
        assert failures(limits, range(FAILED_MIN - 1)) == [False] * 4


def test_poison_among_good_tasks_is_no_outage() -> None:
    limits = Limits()
    for turn in range(50):
        worked(limits, 4)
        assert failures(limits, range(turn, turn + 1)) == [False]
    # When the good ones are done, only the others are tried
    for _ in range(50):
        assert failures(limits, range(50)) == [False] * 50
    assert limits.outages.names(0) == frozenset()


def test_after_good_tasks_it_takes_nine_of_ten_of_the_last_ones() -> None:
    limits = Limits()
    worked(limits, 1_000)
    assert failures(limits, range(40)) == [False] * 17 + [True] * 23


def test_five_in_a_row_are_enough_where_none_has_worked_for_a_second() -> None:
    limits = Limits()
    worked(limits, 1_000)
    assert failures(limits, range(4)) == [False] * 4
    assert failures(limits, range(4, 5), now_us=S - 1) == [False]
    assert failures(limits, range(5, 6), now_us=S) == [True]


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_many_failures_among_good_ends_are_no_outage(share: float) -> None:
    """Of a service that is slow where it works: it fails at once, and works 0.2 s later."""
    rng, limits, number = random.Random(1), Limits(), 0
    worked(limits, 1)
    for turn in range(300):
        for _ in range(4):
            number += 1
            if rng.random() < share:
                assert failures(limits, range(number, number + 1), now_us=turn * S // 5) == [False]
            else:
                worked(limits, 1, turn * S // 5, first=1_000 + number)


def test_failures_and_good_ends_count_in_their_order() -> None:
    """A settlement tells of a thousand that were done between twenty failures."""
    limits = Limits()
    worked(limits, 1)
    for n in range(20):
        assert failures(limits, range(n, n + 1)) == [False]
        limits.outages.done("g", [ended(1_000 + 50 * n + m) for m in range(50)], 0)
    limits.outages.settled("g", [Usage("q", "job", "local", "done", 1_000)], 0)
    assert limits.outages.take_changes() == []


def retried(number: int, attempts: int, error_of: int) -> Entry:
    """A task with an earlier error, as another worker left it."""
    made = entry(number, attempts=attempts, most=12)
    made.errors = (AttemptError(error_of, 0, "w", "away"),)
    return made


def test_retries_that_come_with_a_shard_are_no_news() -> None:
    limits = Limits()
    for n in range(40):
        end = Outcome(Attempt("g", record(n), 2, 0, 1, 0), "failed", 0, 1, error="away")
        assert not limits.stalled("g", retried(n, 1, error_of=1), end, 0)
    # What failed in an outage before is
    found = []
    for n in range(100, 110):
        end = Outcome(Attempt("g", record(n), 2, 0, 1, 0), "failed", 0, 1, error="away")
        found.append(limits.stalled("g", retried(n, 1, error_of=2), end, 0))
    assert found == [False] * 4 + [True] * 6


def test_a_name_that_never_worked_beside_others_that_do_is_at_fault() -> None:
    limits = Limits()
    worked(limits, 1, name="other")
    assert failures(limits, range(40)) == [False] * 40
    # Once it has worked, it is what it needs that is away
    worked(limits, 1)
    assert failures(limits, range(100, 140)) == [True] * 40


def test_a_name_that_never_worked_shares_the_outage_of_its_queue() -> None:
    """And is at fault again when the others work."""
    limits = Limits()
    worked(limits, 1, name="other")
    others = [record(100 + n, name="other") for n in range(FAILED_MIN)]
    assert [limits.outages.failed("g", each, S) for each in others] == [False] * 4 + [True]
    assert failures(limits, range(10)) == [False] * 4 + [True] * 6
    worked(limits, REMEMBERED, name="other")
    assert failures(limits, range(10)) == [False] * 10


def test_it_is_over_when_tasks_work_again() -> None:
    limits = Limits()
    failures(limits, range(30))
    assert limits.outages.take_changes() == [(JOB, True)]
    worked(limits, 2)
    assert limits.outages.take_changes() == []
    worked(limits, 1)
    assert limits.outages.take_changes() == [(JOB, False)]


def test_tasks_that_failed_and_then_worked_have_worked() -> None:
    limits = Limits()
    failures(limits, range(FAILED_MIN))
    worked(limits, FAILED_MIN, first=0)
    assert not limits.outages.watches
    assert limits.outages.take_changes() == [(JOB, True), (JOB, False)]


def test_a_failure_is_forgotten_in_the_end() -> None:
    """Its task may have gone to another worker with its shard."""
    limits = Limits()
    failures(limits, range(FAILED_MIN), now_us=1)
    assert limits.outages.names(FORGOTTEN_US + 1) == {JOB}
    assert limits.outages.names(FORGOTTEN_US + 2) == frozenset()
    assert not limits.outages.watches


def test_an_outage_tells_since_when_and_its_last_error() -> None:
    outages = Outages()
    for n in range(FAILED_MIN + 2):
        outages.failed("g", record(n), (n + 1) * S, error=f"refused {n}")
    [found] = outages.present(20 * S)
    assert found == (JOB, FAILED_MIN * S, "refused 6", 7 * S)
    outages.done("g", [ended(n) for n in range(FAILED_MIN + 2)], 21 * S)
    assert outages.present(21 * S) == []


def test_names_queues_and_groups_are_apart() -> None:
    outages = Outages()
    outages.settled("g", [Usage("q", "job", "local", "done", 1)], 0)
    for n in range(FAILED_MIN):
        outages.failed("g", record(n), S)
    assert outages.failed("g", record(9), S)
    assert not outages.failed("g", record(9, name="other"), S)
    assert not outages.failed("g", record(9, queue="other"), S)
    assert not outages.failed("audit", record(9), S)
    outages.settled("g", [Usage("q", "third", "local", "done", 50)], 0)
    outages.done("g", [ended(n, name="third") for n in range(FAILED_MIN)], 0)
    assert outages.names(0) == {JOB}


def test_what_is_remembered_is_bounded() -> None:
    limits = Limits()
    worked(limits, 1)
    failures(limits, range(3 * FAILING_MAX))
    for n in range(2 * NAMES_MAX):
        worked(limits, 1, name=f"n{n}")
    assert len(limits.outages._ends) <= NAMES_MAX
    assert len(limits.outages._ends[JOB]._failing) <= FAILING_MAX
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


def ready(limits: Limits, jobs: range, others: int = 0) -> ReadyQueues:
    """A shard with ready tasks of the name, and some of another one of the same queue."""
    made = ReadyQueues("g", limits)
    tasks = [entry(n) for n in jobs]
    tasks += [Entry(record=record(900 + n, name="other"), policy=Policy()) for n in range(others)]
    for each in tasks:
        each.move("ready")
        made.push(each)
    return made


def starts(limits: Limits, made: ReadyQueues, now_us: int = 0) -> list[int]:
    limits.begin({"g": 1}, {"g": 1}, now_us)
    made.open(now_us, {"local": 16})
    found = []
    while (each := made.next()) is not None:
        found.append(each.record.sequence)
    return found


def test_in_an_outage_one_task_of_the_name_tries_and_others_go_on() -> None:
    limits = Limits()
    made = ready(limits, range(100, 200), others=5)
    failures(limits, range(10))
    found = starts(limits, made)
    assert sorted(found) == [100, 900, 901, 902, 903, 904]
    assert starts(limits, made) == [], "it still runs"
    limits.ended([ended(100, "failed", error="away")], 0)
    assert starts(limits, made, PAUSE_MIN_US) == [101]


def test_each_probe_that_works_lets_twice_as_many_try() -> None:
    limits = Limits()
    made = ready(limits, range(100, 200))
    failures(limits, range(20))
    tried = starts(limits, made)
    for count in (2, 4, 8, 16, 16):
        limits.ended([ended(n) for n in tried[:1]], 0)
        limits.ended([ended(n, "snooze") for n in tried[1:]], 0)
        tried = starts(limits, made)
        assert len(tried) == count
    limits.ended([ended(n, "failed", error="away") for n in tried], 0)
    assert len(starts(limits, made, PAUSE_MIN_US)) == 1


def test_all_start_once_it_is_over() -> None:
    limits = Limits()
    made = ready(limits, range(100, 200))
    failures(limits, range(20))
    assert starts(limits, made) == [100]
    worked(limits, REMEMBERED)
    limits.ended([ended(100)], 0)
    assert starts(limits, made) == list(range(101, 117))
    limits.ended([ended(n) for n in range(101, 117)], 0)
    failures(limits, range(200, 220), 9 * S)
    assert starts(limits, made, 9 * S) == [117], "and one again in the next one"


@pytest.mark.parametrize("off", ["queue", "target", "breaker"])
def test_what_is_not_judged_by_its_name_is_not_held_back_by_it(off: str) -> None:
    limits = Limits({"svc"})
    failures(limits, range(10))
    rule = {"q" if off == "queue" else "local": QueueSettings(smart_retry=False)}
    limits.set(rule if off == "queue" else {}, rule if off == "target" else {}, 0)
    limits.begin({"g": 1}, {"g": 1}, 0)
    flow = limits.flow("g", entry(1, target="svc" if off == "breaker" else "local"))
    assert flow is None or flow.out is None


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


def exchange(*fleet: Limits, now_us: int = 0) -> list[tuple[NameEnds, ...]]:
    """Three heartbeats of each: all know then what all know."""
    told: list[tuple[NameEnds, ...]] = [() for _ in fleet]
    for _ in range(3):
        for me, limits in enumerate(fleet):
            others = [each for n, said in enumerate(told) if n != me for each in said]
            told[me] = limits.outages.exchange(others, now_us)
    return told


def test_two_failures_on_each_of_ten_workers_are_an_outage() -> None:
    fleet = [Limits() for _ in range(10)]
    for n, limits in enumerate(fleet):
        assert failures(limits, range(2 * n, 2 * n + 2)) == [False] * 2
    exchange(*fleet)
    for n, limits in enumerate(fleet):
        assert limits.outages.take_changes() == [(JOB, True)]
        assert failures(limits, range(2 * n, 2 * n + 1)) == [True]


def test_four_failures_in_all_are_no_outage() -> None:
    fleet = [Limits() for _ in range(4)]
    for n, limits in enumerate(fleet):
        failures(limits, range(n, n + 1))
    exchange(*fleet)
    assert [limits.outages.names(0) for limits in fleet] == [frozenset()] * 4


def test_what_works_elsewhere_counts_though_nothing_fails_there() -> None:
    fleet = [Limits() for _ in range(4)]
    for n, limits in enumerate(fleet[:3]):
        failures(limits, range(2 * n, 2 * n + 2), now_us=S)
    worked(fleet[3], 10, now_us=S)
    told = exchange(*fleet, now_us=S)
    assert [limits.outages.names(S) for limits in fleet] == [frozenset()] * 4
    assert told[3] == (NameEnds(*JOB, 0, REMEMBERED, S, ()),)


def test_the_latest_of_all_workers_are_in_a_row_where_none_has_worked_since() -> None:
    """As poison among good tasks is, on every worker: what works comes after it."""
    fleet, now_us = [Limits() for _ in range(5)], 100 * S
    for n, limits in enumerate(fleet):
        worked(limits, 20, now_us=S)
        failures(limits, range(n, n + 1), now_us=(2 + n) * S)
    exchange(*fleet, now_us=now_us)
    assert fleet[0].outages.names(now_us) == {JOB}
    worked(fleet[4], 1, now_us=3 * S)  # the failures of the first two are before it
    exchange(*fleet, now_us=now_us)
    assert fleet[0].outages.names(now_us) == frozenset()


def test_what_another_worker_told_is_late() -> None:
    fleet = [Limits() for _ in range(5)]
    for n, limits in enumerate(fleet):
        worked(limits, 20)
        failures(limits, range(n, n + 1))
    exchange(*fleet, now_us=FLEET_SILENCE_US - 1)
    assert fleet[0].outages.names(FLEET_SILENCE_US - 1) == frozenset()
    exchange(*fleet, now_us=FLEET_SILENCE_US)
    assert fleet[0].outages.names(FLEET_SILENCE_US) == {JOB}


def test_the_first_time_of_a_failure_counts_among_workers() -> None:
    """Poison is tried again and again, and stays where it was in the order of ends."""
    fleet, now_us = [Limits() for _ in range(6)], 100 * S
    for n, limits in enumerate(fleet[:5]):
        worked(limits, 20)
        for at_us in (1, now_us):
            failures(limits, range(n, n + 1), now_us=at_us)
    worked(fleet[5], 20, now_us=50 * S)
    exchange(*fleet, now_us=now_us)
    assert fleet[0].outages.names(now_us) == frozenset()


def test_a_name_that_worked_on_another_worker_is_not_at_fault() -> None:
    one, another = Limits(), Limits()
    worked(one, 1, name="other")
    failures(one, range(REMEMBERED))
    assert one.outages.names(0) == frozenset()
    worked(another, 1, now_us=S)
    exchange(one, another, now_us=S)
    assert one.outages.names(S) == {JOB}


def test_it_is_over_for_all_when_it_works_on_some() -> None:
    fleet = [Limits() for _ in range(5)]
    for n, limits in enumerate(fleet):
        failures(limits, range(2 * n, 2 * n + 2))
    exchange(*fleet)
    worked(fleet[0], 2)
    exchange(*fleet)
    assert fleet[4].outages.take_changes() == [(JOB, True), (JOB, False)]


def test_a_worker_that_is_gone_no_longer_counts() -> None:
    one, another = Limits(), Limits()
    failures(one, range(4))
    failures(another, range(4, 8))
    exchange(one, another)
    assert one.outages.names(0) == {JOB}
    one.outages.exchange((), 0)
    assert one.outages.names(0) == frozenset()


def test_what_a_worker_tells_is_bounded_and_the_same_names_everywhere() -> None:
    one, another = Limits(), Limits()
    for n in range(2 * REPORTED_MAX):
        one.outages.failed("g", record(n, name=f"n{n:03}"), 0)
        worked(another, 1, name=f"n{n:03}")
    mine, theirs = exchange(one, another)
    assert len(mine) == REPORTED_MAX
    assert [each.task for each in mine] == [each.task for each in theirs]
    assert exchange(Limits(), another) == [(), ()], "nothing fails, so nothing is told"


def test_nothing_is_told_once_nothing_fails() -> None:
    """What one says because another asked is no question to the next."""
    fleet = [Limits() for _ in range(3)]
    for limits in fleet:
        worked(limits, 5)
    failures(fleet[0], range(2))
    told = exchange(*fleet)
    assert [len(said) for said in told] == [1, 1, 1]
    worked(fleet[0], 2, first=0)
    for _ in range(5):
        for me, limits in enumerate(fleet):
            others = [each for n, said in enumerate(told) if n != me for each in said]
            told[me] = limits.outages.exchange(others, 0)
    assert told == [(), (), ()]
