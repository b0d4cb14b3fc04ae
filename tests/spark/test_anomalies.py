"""Unusual days of a task, up and down, and what is named as their cause."""

from __future__ import annotations

import random
from datetime import date, timedelta
from math import exp

import pytest
from late_spark import anomalies, money
from late_spark.allocation import Cost, Key
from late_spark.anomalies import Anomaly
from late_spark.charges import Line
from late_spark.drivers import Used

START = date(2026, 3, 2)  # a Monday
KEY = Key("default", "pay", "charge")


def worked(
    cents: list[int], retries: list[int], ended: list[int], key: Key = KEY
) -> tuple[list[Cost], list[Used], list[date]]:
    listed = [START + timedelta(days=n) for n in range(len(cents))]
    costs = [
        Cost(day, key, Line("n"), "writes", c * money.ONE // 100)
        for day, c in zip(listed, cents, strict=True)
    ]
    used = [
        Used(day, key, ended=e, attempts=100 if e else 0, retries=r)
        for day, r, e in zip(listed, retries, ended, strict=True)
    ]
    return costs, used, listed


def grown(growth: float, weeks: int = 8, noise: float = 0.05) -> list[int]:
    """Cents of a task whose Sundays are nearly free."""
    rng = random.Random(4)
    return [
        int(10_000 * exp(growth * n + rng.gauss(0, noise)) * (0.05 if n % 7 == 6 else 1))
        for n in range(7 * weeks)
    ]


def test_a_retry_storm_has_its_price() -> None:
    cents = [1_000, 1_010, 990, 1_000, 1_005, 42_200, 1_000, 2_500]
    found = anomalies.find(*worked(cents, [2, 2, 2, 2, 2, 60, 2, 2], [10] * 7 + [50]))
    assert [(a.kind, a.first.isoformat()) for a in found] == [
        ("retry storm", "2026-03-07"),
        ("burst", "2026-03-09"),
    ]
    assert found[0].said("USD") == (
        "retry storm on Saturday 2026-03-07: pay/charge cost 411.98 USD more than usual (10.03): "
        "60% of attempts were retries, usually 2%"
    )
    assert found[1].cause == "50 tasks a day, usually 10"


@pytest.mark.parametrize("cents", [[900, 1_100, 950, 1_200, 1_000, 1_300, 980, 1_050],
                                   grown(0.0), grown(0.03), grown(-0.03)])  # fmt: skip
def test_weekdays_growth_and_noise_are_usual(cents: list[int]) -> None:
    assert anomalies.find(*worked(cents, [2] * len(cents), [10] * len(cents))) == []


def test_a_sunday_like_a_monday_is_unusual_though_mondays_are_not() -> None:
    cents = grown(0.03)
    cents[34] = 20 * cents[34]
    ended = [10 if n % 7 == 6 else 200 for n in range(56)]
    ended[34] = 200
    (found,) = anomalies.find(*worked(cents, [0] * 56, ended))
    assert (found.kind, found.first) == ("burst", START + timedelta(days=34))
    assert found.cost == cents[34] / 100
    assert found.usual == pytest.approx(cents[34] / 2000, rel=0.2)


def test_days_that_cost_less_are_named_as_well() -> None:
    # Given three days on which nothing ran, and one with a tenth of the tasks
    cents, ended = [1_000] * 28, [100] * 28
    for day in (9, 10, 11):
        cents[day] = ended[day] = 0
    cents[20], ended[20] = 100, 10
    found = anomalies.find(*worked(cents, [0] * 28, ended))
    assert [(a.kind, a.first.day, a.last.day, round(a.excess)) for a in found] == [
        ("no work", 11, 13, -30), ("fewer tasks", 22, 22, -9),
    ]  # fmt: skip
    assert found[0].said("USD") == (
        "no work from 2026-03-11 to 2026-03-13: pay/charge cost 30.00 USD less than usual (30.00): "
        "no task ran, usually 100 a day"
    )
    # but what was before a task's launch, and a task that runs once a week, is none
    assert anomalies.find(*worked([0] * 10 + [1_000] * 20, [0] * 30, [0] * 10 + [10] * 20)) == []
    weekly = [1_000 if n % 7 == 0 else 0 for n in range(56)]
    assert anomalies.find(*worked(weekly, [0] * 56, [c // 10 for c in weekly])) == []


def test_the_line_the_tenant_and_the_release_are_named() -> None:
    # Given a line that triples on one day, with the same work
    costs, used, listed = worked([1_000] * 28, [0] * 28, [100] * 28)
    costs += [
        Cost(day, KEY, Line("network"), "bytes", (20 if n == 16 else 1) * money.ONE)
        for n, day in enumerate(listed)
    ]
    released = {listed[15]: "v2.3", listed[3]: "v2.2"}
    (found,) = anomalies.find(costs, used, listed, releases=released)
    assert (found.kind, found.cause) == (
        "dear days",
        "line network is +19.00 a day beside a usual day; v2.3 was released on 2026-03-17",
    )
    assert anomalies.find(costs, used, listed, since=listed[17]) == []
    # and a tenant whose tasks are a burst
    more = [
        anomalies_of
        for tenant, at in (("acme", 12), ("zoo", None))
        for anomalies_of in [
            worked([1_000] * 28, [0] * 28, [100] * 28, KEY._replace(tenant=tenant))
            if at is None
            else worked(
                [9_000 if n == at else 1_000 for n in range(28)], [0] * 28,
                [900 if n == at else 100 for n in range(28)], KEY._replace(tenant=tenant),
            )
        ]
    ]  # fmt: skip
    (burst,) = anomalies.find([c for m in more for c in m[0]], [u for m in more for u in m[1]],
                              listed)  # fmt: skip
    assert burst.cause == "1,000 tasks a day, usually 200; tenant acme is 100% of the difference"


def test_the_most_money_comes_first() -> None:
    small = worked([10] * 10 + [1_000] + [10] * 10, [0] * 21, [9] * 21)
    large = worked([9_000] * 15 + [1] + [9_000] * 5, [0] * 21, [9] * 21,
                   KEY._replace(queue="mail"))  # fmt: skip
    found: list[Anomaly] = anomalies.find(small[0] + large[0], small[1] + large[1], small[2])
    assert [each.queue for each in found] == ["mail", "pay"]
    # What nobody would see is left out: a tenth of a cent
    tiny = [Cost(c.day, c.key, c.line, c.driver, c.amount // 10_000) for c in small[0]]
    assert anomalies.find(tiny, small[1], small[2]) == []
