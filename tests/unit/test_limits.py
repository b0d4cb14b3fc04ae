"""Buckets, breakers and what they make of a worker's share: pure, by hand-made times."""

from __future__ import annotations

import random

import pytest

from late.model.queue_settings import QueueSettings
from late.model.task import Attempt, Outcome, Policy, Record, TaskId
from late.scheduler.limits.adaptive_limit import LEAST, MOST, AdaptiveLimit, SlowStart
from late.scheduler.limits.circuit_breaker import CircuitBreaker
from late.scheduler.limits.limiter import Limiter, TokenBucket, shows_health
from late.scheduler.limits.limits import Flow, Limits
from late.scheduler.task_state import Entry

S = 1_000_000


def entry(number: int = 1, *, queue: str = "q", target: str = "local", **fields: object) -> Entry:
    task_id = TaskId(f"a{number:05d}")
    record = Record(0, number, task_id, queue, "job", b"{}", None, None, 0, number)
    return Entry(record=record, policy=Policy(target=target), **fields)  # type: ignore[arg-type]


def outcome(number: int = 1, kind: str = "done", **fields: object) -> Outcome:
    attempt = Attempt("g", entry(number).record, 1, 0, 1, 0)
    return Outcome(attempt, kind, 0, 1, **fields)  # type: ignore[arg-type]


def test_a_bucket_never_gives_more_than_burst_and_rate() -> None:
    rng = random.Random(1)
    bucket, now_us, taken = TokenBucket(10.0, 5.0, 0), 0, []
    for _ in range(3_000):
        now_us += rng.choice([0, 1_000, 30_000, 700_000])
        if bucket.has(now_us):
            bucket.take()
            taken.append(now_us)
    for first in range(0, len(taken), 7):
        for last in range(first, min(first + 60, len(taken))):
            span_s = (taken[last] - taken[first]) / S
            assert last - first + 1 <= 5 + 10 * span_s + 1e-6


def test_a_bucket_says_when_the_next_is_there() -> None:
    bucket = TokenBucket(2.0, 1.0, 0)
    assert bucket.next_at_us(0) == 0
    bucket.take()
    assert bucket.next_at_us(0) == S // 2
    assert bucket.next_at_us(0, ahead=3) == 2 * S
    assert not bucket.has(S // 2 - 1)
    assert bucket.has(S // 2)
    assert not TokenBucket(1.0, 1.0, 10 * S).next_at_us(0)  # a clock that was set back


def test_a_breaker_opens_probes_and_closes() -> None:
    breaker = CircuitBreaker(0.5, 4, 5.0)
    for good in (True, True, False):
        breaker.ended(good, 0)
    assert breaker.state == "closed"
    breaker.ended(False, S)
    assert (breaker.state, breaker.admits(5 * S)) == ("open", False)
    assert breaker.admits(6 * S)
    breaker.started(6 * S)
    assert not breaker.admits(6 * S), "one probe at a time"
    breaker.ended(False, 7 * S)
    assert not breaker.admits(16 * S), "twice as long the second time"
    assert breaker.admits(17 * S)
    breaker.started(17 * S)
    assert breaker.ended(True, 18 * S)
    assert breaker.state == "closed"
    assert breaker.admits(18 * S)


def test_a_few_tasks_that_always_fail_are_no_failing_target() -> None:
    """Two tasks that are tried again and again, and now and then one that works."""
    breaker = CircuitBreaker(0.5, 20, 5.0)
    breaker.ended(True, 0, "good")
    for second in range(50):
        for task in ("a", "b", "a", "b"):
            breaker.ended(False, second * S, task)
        assert not breaker.failing(5, 0.5), "their attempts count"
    assert breaker.state == "closed"
    for number in range(5):
        breaker.ended(False, 50 * S, f"other {number}")
    assert breaker.state == "open"


def test_a_target_without_a_sign_of_life_opens_by_a_few_tasks_as_well() -> None:
    breaker = CircuitBreaker(0.5, 20, 5.0)
    breaker.ended(True, 0, "good")
    for second in range(55, 70):
        for task in ("a", "b", "a", "b"):
            breaker.ended(False, second * S, task)
        assert (breaker.state == "open") is (second >= 60)


def test_a_breaker_tells_of_its_last_calls_and_since_when_it_is_open() -> None:
    breaker = CircuitBreaker(0.5, 4, 5.0)
    for good in (True, False):
        breaker.ended(good, 0)
    assert (breaker.recent(S), breaker.open_since_us) == ((2, 1), None)
    assert breaker.recent(11 * S) == (0, 0), "those of long ago are forgotten"
    for _ in range(4):
        breaker.ended(False, 12 * S)
    assert breaker.admits(17 * S)
    breaker.started(17 * S)
    breaker.ended(False, 18 * S)
    assert breaker.recent(60 * S) == (4, 4), "probes are no calls, and time makes it no better"
    assert breaker.open_since_us == 12 * S, "a probe that fails begins nothing new"
    assert breaker.admits(60 * S)
    breaker.started(60 * S)
    breaker.ended(True, 61 * S)
    assert (breaker.recent(61 * S), breaker.open_since_us) == ((0, 0), None)


def test_an_open_breaker_says_when_it_is_tried_and_a_probe_does_not() -> None:
    limiter = Limiter(QueueSettings(breaker=0.5, breaker_calls=1, breaker_open_s=5.0), 0)
    assert limiter.breaker is not None
    assert limiter.opens_at_us(retry=False, now_us=0) == 0
    limiter.breaker.ended(False, S)
    assert limiter.opens_at_us(retry=False, now_us=2 * S) == 6 * S
    assert limiter.opens_at_us(retry=False, now_us=6 * S) == 6 * S
    limiter.breaker.started(6 * S)
    assert limiter.opens_at_us(retry=False, now_us=7 * S) is None, "its end opens or closes it"


def test_a_breaker_forgets_and_needs_enough_calls() -> None:
    breaker = CircuitBreaker(0.5, 4, 5.0)
    for second in range(0, 60, 4):
        breaker.ended(False, second * S)  # three within ten seconds
    assert breaker.state == "closed"
    lonely = CircuitBreaker(0.5, 1, 5.0)
    lonely.ended(False, 0)
    lonely.admits(5 * S)
    lonely.started(5 * S)
    lonely.undone()  # the probe said nothing
    assert lonely.admits(5 * S)


def test_the_limit_grows_by_one_a_window_and_is_cut_once_a_second() -> None:
    adaptive = AdaptiveLimit()
    first = adaptive.limit
    for _ in range(first):
        adaptive.good(first)
    assert adaptive.limit in (first, first + 1)
    for _ in range(200_000):
        adaptive.good(MOST)
    assert adaptive.limit == MOST
    adaptive.overloaded(0)
    adaptive.overloaded(1)
    assert adaptive.limit == int(MOST * 0.7)
    for second in range(1, 60):
        adaptive.overloaded(second * S)
    assert adaptive.limit == LEAST
    adaptive.good(0)
    assert adaptive.limit == LEAST, "what is not used is not tested"


def test_a_slow_start_doubles_up_to_all() -> None:
    slow = SlowStart(17.0, 0)
    shares = [slow.of(100, second * S) for second in (0, 5, 10, 15, 18)]
    assert shares[0] == 10
    assert shares == sorted(set(shares))
    assert shares[-1] == 100
    assert slow.of(100, 0) == 100, "over is over"
    slow.begin(30 * S)
    assert slow.of(3, 30 * S) == 1


def started(limits: Limits, number: int, flow: Flow, now_us: int = 0, retry: bool = False) -> bool:
    if not limits.admits(flow, retry=retry, now_us=now_us):
        return False
    limits.start(("g", TaskId(f"a{number:05d}")), flow, retry=retry, now_us=now_us)
    return True


def test_tasks_without_a_knob_have_no_flow() -> None:
    limits = Limits()
    assert limits.flow("g", entry()) is None
    limits.set({"q": QueueSettings(rate=1)}, {}, 0)
    assert limits.flow("g", entry()) == Flow("q", "local")
    assert limits.flow("g", entry(queue="other")) is None
    assert Limits({"svc"}).flow("g", entry(target="svc")) == Flow("q", "svc")


@pytest.mark.parametrize(("mine", "total", "most"), [(8, 8, 10), (3, 8, 3), (1, 8, 1), (1, 100, 1)])
def test_a_limit_of_the_fleet_is_shared_by_shards(mine: int, total: int, most: int) -> None:
    limits = Limits()
    limits.set({"q": QueueSettings(concurrency=10)}, {}, 0)
    limits.begin({"g": mine}, {"g": total}, 0)
    flow = Flow("q", "local")
    assert sum(started(limits, n, flow) for n in range(20)) == most
    limits.ended([outcome(0)], 0)
    assert started(limits, 50, flow)
    assert not started(limits, 51, flow)
    limits.undo(("g", TaskId("a00050")))
    assert started(limits, 52, flow)


def test_an_end_that_was_not_counted_does_not_hide_those_after_it() -> None:
    limits, flow = Limits(), Flow("q", "local")
    limits.set({"q": QueueSettings(concurrency=1)}, {}, 0)
    assert started(limits, 1, flow)
    limits.ended([outcome(7), outcome(1)], 0)
    assert started(limits, 2, flow)


@pytest.mark.parametrize(
    ("queue_s", "target_s", "timeout_us"),
    [(None, None, None), (3.0, None, 3 * S), (3.0, 2.0, 2 * S)],
)
def test_an_attempt_has_the_shortest_time_out_of_its_settings(
    queue_s: float | None, target_s: float | None, timeout_us: int | None
) -> None:
    limits = Limits()
    of_queue, of_target = (QueueSettings(timeout_s=s, concurrency=9) for s in (queue_s, target_s))
    limits.set({"q": of_queue}, {"local": of_target}, 0)
    attempt = Attempt("g", entry().record, 1, 0, 1, 0)
    assert limits.timed(attempt).timeout_us == timeout_us


def test_a_rate_is_shared_and_says_when_to_look() -> None:
    limits = Limits()
    limits.set({"q": QueueSettings(rate=10, burst=10)}, {}, 0)
    limits.begin({"g": 2}, {"g": 4}, 0)
    flow = Flow("q", "local")
    assert sum(started(limits, n, flow) for n in range(20)) == 5
    assert limits.opens_at_us == S // 5
    assert sum(started(limits, n, flow, now_us=S) for n in range(20, 40)) == 5


def test_a_paused_queue_starts_nothing_and_resumes_with_what_runs() -> None:
    limits = Limits()
    limits.set({"q": QueueSettings(concurrency=2)}, {}, 0)
    flow = Flow("q", "local")
    assert started(limits, 1, flow)
    limits.set({"q": QueueSettings(concurrency=2, paused=True)}, {}, 0)
    assert not started(limits, 2, flow)
    limits.set({"q": QueueSettings(concurrency=2)}, {}, 0)
    assert started(limits, 2, flow)
    assert not started(limits, 3, flow), "the one that ran through the pause still counts"


def test_what_ran_before_a_knob_was_set_again_counts_and_is_taken_off_once() -> None:
    """Ten run, the knob is cleared and set to two: else their ends would leave minus ten running,
    and twelve would be let go at once until the worker is started anew."""
    limits, flow = Limits(), Flow("q", "local")
    limits.set({"q": QueueSettings(concurrency=10, fair_key="t", fair_share=1.0)}, {}, 0)
    assert sum(started(limits, n, flow) for n in range(10)) == 10
    limits.set({}, {}, 0)
    limits.set({"q": QueueSettings(concurrency=2)}, {}, 0)
    assert not started(limits, 10, flow), "the ten still run"
    limits.ended([outcome(number) for number in range(9)], 0)
    limits.undo(("g", TaskId("a00009")))
    assert sum(started(limits, n, flow) for n in range(20, 40)) == 2


def test_a_knob_that_is_set_while_its_tasks_run_under_that_of_the_target() -> None:
    limits, flow = Limits(), Flow("q", "local")
    limits.set({}, {"local": QueueSettings(concurrency=10)}, 0)
    assert sum(started(limits, n, flow) for n in range(5)) == 5
    both = {"q": QueueSettings(concurrency=2)}, {"local": QueueSettings(concurrency=10)}
    limits.set(*both, 0)
    assert not started(limits, 10, flow)
    limits.ended([outcome(number) for number in range(5)], 0)
    assert sum(started(limits, n, flow) for n in range(20, 40)) == 2


def test_retries_beyond_the_budget_wait() -> None:
    limits = Limits({"svc"})
    limits.set({}, {"svc": QueueSettings(concurrency=1_000, retry_min=1.0, slow_start_s=0)}, 0)
    flow = Flow("q", "svc")
    spent = sum(started(limits, n, flow, retry=True) for n in range(100))
    assert spent == 10, "ten seconds' worth of one a second"
    for number in range(100, 200):
        assert started(limits, number, flow), "first attempts are not held back by it"
    assert not started(limits, 200, flow, retry=True), "and have earned nothing before they end"
    limits.ended([outcome(number, target="svc") for number in range(100, 200)], 0)
    more = sum(started(limits, n, flow, retry=True) for n in range(200, 300))
    assert more == 10, "a fifth of the first attempts, as far as it is kept"


def test_a_start_that_was_taken_back_earns_no_retry() -> None:
    """Nor does one that still waits for its mark: what a retry was made of was made."""
    limits = Limits({"svc"})
    limits.set({}, {"svc": QueueSettings(concurrency=1_000, retry_min=1.0, slow_start_s=0)}, 0)
    flow = Flow("q", "svc")
    assert sum(started(limits, n, flow, retry=True) for n in range(20)) == 10
    for number in range(100):
        assert started(limits, number, flow)
        assert not started(limits, 200, flow, retry=True)
        limits.undo(("g", TaskId(f"a{number:05}")))
    assert not started(limits, 200, flow, retry=True)


def test_a_tenant_gets_its_share_while_another_one_waits_and_all_slots_while_none_does() -> None:
    limits = Limits(slots=16)
    limits.set({"q": QueueSettings(fair_key="tenant")}, {}, 0)
    big, small, third = (Flow("q", "local", name) for name in ("big", "small", "third"))
    limits.wait(big, 100)
    assert sum(started(limits, n, big) for n in range(10)) == 10, "a lone one is not held back"
    limits.wait(small, 1)
    assert not started(limits, 10, big), "another one waits, which has less than its share"
    assert sum(started(limits, n, small) for n in range(20, 24)) == 4
    assert started(limits, 11, big), "both have their share: what is left is anybody's"
    limits.wait(third, 1)
    assert not started(limits, 12, big)
    limits.wait(third, -1)
    assert started(limits, 12, big)


def test_a_target_that_fails_for_everyone_costs_no_attempts() -> None:
    limits = Limits({"svc"})

    def stalled() -> bool:
        return limits.stalled("g", entry(target="svc"), outcome(1, "failed", target="svc"), 0)

    for number in range(5):
        assert not stalled()
        assert started(limits, number, Flow("q", "svc"))
        limits.ended([outcome(number, "failed", target="svc")], number * 20 * S)
    assert stalled(), "five different tasks in a row"
    assert started(limits, 7, Flow("q", "svc"), now_us=200 * S)
    limits.ended([outcome(7)], 200 * S)
    assert not stalled()
    for turn in range(4):  # one task that always fails says nothing of its target
        assert started(limits, 9, Flow("q", "svc"), now_us=(300 + 20 * turn) * S)
        limits.ended([outcome(9, "failed", target="svc")], (300 + 20 * turn) * S)
    assert not stalled()
    limits.set({}, {"svc": QueueSettings(smart_retry=False)}, 0)
    assert not stalled()


def test_a_refusal_for_good_is_an_answer() -> None:
    limits = Limits({"svc"})
    for number in range(30):
        started(limits, number, Flow("q", "svc"), now_us=number * S)
        limits.ended([outcome(number, "failed", retryable=False, target="svc")], number * S)
    assert limits.admits(Flow("q", "svc"), retry=False, now_us=31 * S), "the breaker stays closed"


def test_a_target_that_sends_its_callers_elsewhere_fails() -> None:
    """So its circuit opens, before every task of a backlog has become a dead letter."""
    limits = Limits({"svc"})
    for number in range(30):
        started(limits, number, Flow("q", "svc"), now_us=number * S // 10)
        end = outcome(number, "failed", retryable=False, reason="target_blocked", target="svc")
        limits.ended([end], number * S // 10)
    assert not limits.admits(Flow("q", "svc"), retry=False, now_us=4 * S)


def test_who_asks_for_a_retry_has_answered() -> None:
    assert shows_health(outcome(1, "failed", after_us=5)) is True
    assert shows_health(outcome(1, "failed", after_us=5, overloaded=True)) is False
    assert shows_health(outcome(1, "failed", after_us=5, reason="unavailable")) is False
    assert shows_health(outcome(1, "failed")) is False
    assert shows_health(outcome(1, "interrupted")) is None


def test_a_crowd_is_spread_the_same_way_each_time() -> None:
    limits = Limits()
    assert limits.spread_us(entry()) == 0
    limits.set({"q": QueueSettings(spread_s=60)}, {}, 0)
    ids = [f"0000000000{n * 0x01010101:08x}" for n in range(200)]
    found = []
    for task_id in ids:
        record = Record(0, 1, TaskId(task_id), "q", "job", b"{}", None, None, 0, 1)
        found.append(limits.spread_us(Entry(record=record, policy=Policy())))
        assert found[-1] == limits.spread_us(Entry(record=record, policy=Policy()))
    assert min(found) >= 0
    assert max(found) < 60 * S
    assert max(found) - min(found) > 40 * S


def test_a_queue_can_let_old_tasks_expire() -> None:
    limits = Limits()
    limits.set({"q": QueueSettings(expires_s=10)}, {}, 0)
    assert limits.expires_at_us(entry(), None) == 10 * S
    assert limits.expires_at_us(entry(), 3 * S) == 3 * S
    assert limits.expires_at_us(entry(queue="other"), None) is None


def test_what_is_parked_for_a_knob_does_not_come_back_at_once() -> None:
    limits = Limits()
    limits.set({"q": QueueSettings(paused=True), "r": QueueSettings(rate=2.0, burst=1)}, {}, 0)
    looks = [limits.look_again_us(Flow("q", "local"), ahead, 0) for ahead in range(50)]
    assert min(looks) >= 30 * S
    assert max(looks) <= 60 * S
    assert len(set(looks)) > 40
    assert limits.look_again_us(Flow("r", "local"), 400, 0) >= 199 * S
