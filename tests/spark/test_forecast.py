"""The days to come: months that grow, interval and all, against months that were generated."""

from __future__ import annotations

import random
from datetime import date, timedelta
from math import exp, inf, sqrt

import pytest
from late_spark import forecast

START = date(2026, 3, 2)  # a Monday
OCTOBER = date(2026, 10, 1)


def series(values: list[float], first: date = START) -> dict[date, float]:
    return {first + timedelta(days=n): value for n, value in enumerate(values)}


def generated(
    rng: random.Random, growth: float, noise: float, *, before: int = 31, after: float = 0.0
) -> dict[date, float]:
    """September's last days and October, whose weekdays differ by a factor of up to 2.4.

    Args:
        after: what a day tells about the next, 0 to 1.
    """
    week = [rng.uniform(0.5, 1.2) for _ in range(7)]
    found, off = {}, 0.0
    for n in range(before + 31):
        off = after * off + rng.gauss(0, noise) * sqrt(1 - after**2)
        day = OCTOBER + timedelta(days=n - before)
        found[day] = 100 * week[day.weekday()] * exp(growth * n + off)
    return found


def known(all_days: dict[date, float], until: int) -> dict[date, float]:
    return {day: cost for day, cost in all_days.items() if day <= date(2026, 10, until)}


def october(all_days: dict[date, float]) -> float:
    return sum(cost for day, cost in all_days.items() if day.month == 10)


@pytest.mark.parametrize("until", [10, 15, 22])
def test_growth_of_three_percent_a_day_is_met_within_five(until: int) -> None:
    growing = generated(random.Random(until), 0.0296, 0.03)
    made = forecast.month(known(growing, until), None)
    assert made.end.estimate == pytest.approx(october(growing), rel=0.05)
    assert made.end.low <= october(growing) <= made.end.high
    # Without noise it is exact, and the interval has no width
    pure = generated(random.Random(1), 0.0296, 0.0)
    made = forecast.month(known(pure, until), None)
    assert made.end.estimate == pytest.approx(october(pure), rel=1e-9)
    assert made.end.high - made.end.low == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(
    ("growth", "noise", "until", "before", "after", "least"),
    [
        (0.0, 0.1, 15, 31, 0.0, 0.92),
        (0.0296, 0.05, 10, 31, 0.0, 0.92),
        (0.0, 0.1, 16, 0, 0.0, 0.90),  # the first month of all
        (0.0, 0.1, 15, 31, 0.5, 0.88),  # days that resemble the one before
    ],
)  # fmt: skip
def test_the_interval_holds_as_often_as_it_says(
    growth: float, noise: float, until: int, before: int, after: float, least: float
) -> None:
    # Given 150 months, of which an interval of 95 % is made on some day
    rng = random.Random(5)
    held = 0
    for _ in range(150):
        month = generated(rng, growth, noise, before=before, after=after)
        end = forecast.month(known(month, until), None).end
        held += end.low <= october(month) <= end.high
    # Then so many of them end within it. 150 draws of 95 % are off by 1.8 % themselves.
    assert least <= held / 150 <= 0.995


def test_weekdays_are_told_apart() -> None:
    # Given three weeks of 10 a day and 2 at weekends, from 2 March on
    found = series([10, 10, 10, 10, 10, 2, 2] * 3)
    # When nine days are left, 23 to 31 March: seven working days and a weekend; and of the first,
    # a Sunday, the range has nothing
    made = forecast.month(found, budget=300)
    assert (made.so_far, made.days_seen, made.days_left, made.days_before) == (162, 21, 9, 1)
    assert made.end.estimate == pytest.approx(162 + 74 + 2)
    assert made.verdict() == "within budget, clearly"
    assert forecast.month(found, 200).verdict() == "over budget, clearly"
    assert forecast.month(found, None).verdict() == "no budget is given"


def test_days_with_credits_are_fitted_as_they_are() -> None:
    # Given 1, 2, 3, ... and a credit of 5 on each Sunday, of which the logarithm says nothing
    found = series([n - (5.0 if n % 7 == 6 else 0.0) for n in range(21)])
    ahead = [START + timedelta(days=n) for n in range(21, 28)]
    coming = forecast.of_days(found, ahead)
    assert coming.estimate == pytest.approx(sum(range(21, 28)) - 5)


def test_no_more_is_taken_back_than_was_ever_credited() -> None:
    """Days without work, and then a falling line: what was spent stays spent."""
    falling = [6.0, 4.0, 0.0, 0.0, 2.0, 0.8, 0.0, 0.0, 0.0, 0.02]
    made = forecast.month(series(falling, date(2026, 11, 1)), 8.0)
    assert made.so_far == pytest.approx(sum(falling))
    assert made.end.estimate >= made.end.low >= made.so_far
    assert made.end.estimate > 8.0, "the budget is over, and so it is said"
    credited = forecast.month(series([*falling, -3.0], date(2026, 11, 1)), 8.0)
    assert credited.end.estimate < credited.so_far


def test_too_few_days_say_nothing_about_the_rest() -> None:
    few = forecast.month(series([5.0, 7.0]), None)
    assert (few.end.estimate, few.end.low, few.end.high) == (12 + 29 * 6, -inf, inf)
    # and a month that is whole needs no guess
    whole = forecast.month(series([1.0] * 31, OCTOBER), 31)
    assert (whole.end.estimate, whole.end.low, whole.end.high, whole.days_left) == (31, 31, 31, 0)
    assert whole.verdict() == "within budget, clearly"


def test_a_trend_is_seen_in_weeks_and_noise_is_none() -> None:
    rng = random.Random(2)
    growing = generated(rng, 0.01, 0.03)
    found = forecast.trend(growing)
    assert found is not None
    assert found.low < exp(0.07) - 1 < found.high
    assert found.clear
    # Of a hundred that do not grow, an interval of 95 % takes some five for growing
    flat = [forecast.trend(generated(rng, 0.0, 0.1)) for _ in range(100)]
    assert 0 <= sum(each is not None and each.clear for each in flat) <= 12
    assert forecast.trend({**growing, OCTOBER: 0.0}) is None
