"""What a change did: known quantiles, known differences, and days that are unusual."""

from __future__ import annotations

import random
from datetime import date, timedelta
from math import inf

import pytest
from late_spark import impact, statistics
from late_spark.allocation import Key
from late_spark.impact import Day

START = date(2026, 3, 2)  # a Monday
KEY = Key("default", "pay", "charge")


@pytest.mark.parametrize(
    ("confidence", "freedom", "quantile"),
    # From the usual table of Student's t.
    [(0.95, 1, 12.706), (0.95, 10, 2.228), (0.99, 5, 4.032), (0.90, 30, 1.697), (0.95, 1e6, 1.96)],
)
def test_student(confidence: float, freedom: float, quantile: float) -> None:
    assert statistics.student(confidence, freedom) == pytest.approx(quantile, abs=6e-4)


def test_welch_by_hand() -> None:
    # Means 3 and 8, variances 2.5 and 10, n = 5: error sqrt(2.5), freedom 2.5^2 / (0.0625 + 1).
    found = statistics.difference([1, 5, 2, 4, 3], [4, 12, 6, 10, 8])
    reach = statistics.student(0.95, 6.25 / 1.0625) * 2.5**0.5
    assert found.estimate == 5
    assert found.high - found.estimate == pytest.approx(reach)
    assert found.clear


def test_the_interval_holds_as_often_as_it_says() -> None:
    # Given many pairs of windows that differ by exactly 3
    rng = random.Random(7)
    held = 0
    for _ in range(200):
        before = [rng.gauss(10, 2) for _ in range(14)]
        after = [rng.gauss(13, 4) for _ in range(14)]
        found = statistics.difference(before, after)
        held += found.low <= 3 <= found.high
    # Then some 95 % of the intervals have it
    assert 0.92 <= held / 200 <= 0.99


def test_too_few_days_say_nothing() -> None:
    found = statistics.difference([1.0], [5.0, 6.0])
    assert (found.low, found.high, found.clear) == (-inf, inf, False)


def test_days_that_follow_each_other_are_worth_less() -> None:
    assert statistics.effective([1, 2, 3, 4, 5, 6, 7, 8]) < 5
    assert statistics.effective([1, 8, 2, 7, 3, 6, 4, 5]) == 8


def days(costs: list[float], tasks: int = 1_000) -> dict[date, Day]:
    return {
        START + timedelta(days=n): Day(cost, tasks, tasks, 10, 5_000 * tasks, 2_000 * tasks)
        for n, cost in enumerate(costs)
    }


def test_a_release_that_costs_more_is_seen_and_one_that_does_not_is_not() -> None:
    noise = [0.5, -0.4, 0.2, -0.3, 0.1, 0.4, -0.5] * 4
    found = days([10 + n for n in noise[:14]] + [15 + n for n in noise[14:]])
    by = {c.measure: c for c in impact.changes(found, START + timedelta(days=14))}
    cost = by["cost per day"]
    assert (cost.verdict(), cost.days_before, cost.days_after) == ("higher", 14, 14)
    assert cost.difference.estimate == pytest.approx(5)
    assert cost.difference.low > 4
    assert by["cost per million tasks"].relative == pytest.approx(0.5)
    assert by["mean waiting time"].verdict() == "no clear change"
    assert by["mean running time"].before == 5.0


def test_both_sides_have_as_many_sundays() -> None:
    listed = [START + timedelta(days=n) for n in range(30)]
    before, after = impact.windows(listed, START + timedelta(days=16))
    assert (len(before), len(after)) == (14, 14)
    assert before[-1] + timedelta(days=1) == after[0]
    before, after = impact.windows(listed, START + timedelta(days=3))
    assert (len(before), len(after)) == (3, 21)


def test_a_day_in_the_course_of_which_it_came_is_on_neither_side() -> None:
    listed = [START + timedelta(days=n) for n in range(9)]
    at = START + timedelta(days=4)
    before, after = impact.windows(listed, at, mixed=True)
    assert (before, after) == (listed[:4], listed[5:])
    found = impact.changes(days([10] * 4 + [1_000] + [10] * 4), at, mixed=True)
    assert (found[0].before, found[0].after, found[0].days_after) == (10, 10, 4)


def test_percentiles_are_compared_by_day_where_there_are_any() -> None:
    # Given a p95 that doubles, and days of which no histogram is kept
    times = {
        START + timedelta(days=n): {"busy_p95_ms": (100.0 if n < 7 else 200.0) + n % 3}
        for n in range(14)
        if n != 2
    }
    listed = [START + timedelta(days=n) for n in range(14)]
    found = impact.by_day([], [], listed, times=times)
    assert found[listed[2]].busy_p95_ms is None
    by = {c.measure: c for c in impact.changes(found, START + timedelta(days=7))}
    p95 = by["running time, p95"]
    assert (p95.verdict(), p95.days_before, p95.days_after) == ("higher", 6, 7)
    assert p95.difference.estimate == pytest.approx(100, abs=1)
    assert by["waiting time, p95"].days_before == 0
