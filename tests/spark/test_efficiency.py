"""How well the database is used, from samples that are added up by hand."""

from __future__ import annotations

from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from late_spark import efficiency
from late_spark.calendar import Calendar
from late_spark.pricebook import Feasible
from late_spark.series import HOUR_US, Key, Metrics

DAY = Calendar.of("2026-03-01", "2026-03-02", ZoneInfo("UTC"))


def metrics(**hourly: tuple[Key, list[str]]) -> Metrics:
    return Metrics.of(
        (
            (key, DAY.from_us + hour * HOUR_US, Decimal(value))
            for key, values in hourly.values()
            for hour, value in enumerate(values)
        ),
        "m.csv",
    )


def test_queries_are_by_the_cores_that_were_busy_in_each_region() -> None:
    # Given 100 cores at 60 % beside 20 cores at 10 %: 62 are busy, and not 120 times 35 %
    found = metrics(
        a=(Key("cores", "east"), ["100", "100"]),
        b=(Key("cores", "west"), ["20", "20"]),
        c=(Key("cpu", "east", "leader"), ["0.6", "0.6"]),
        d=(Key("cpu", "west", "replica"), ["0.1", "0.1"]),
        e=(Key("queries"), [str(3_600 * 62 * 40), str(3_600 * 62 * 20)]),
    )
    # When
    queries, leader, replica = efficiency.measured(found, Feasible(), DAY)
    # Then
    assert queries.value == pytest.approx(30)
    assert (queries.best, queries.basis) == (pytest.approx(40), "the best of 2 hours")
    assert queries.of_best == pytest.approx(0.75)
    assert (leader.name, leader.region, leader.value) == ("CPU, leader", "east", 0.6)
    assert (replica.name, replica.value, replica.best) == ("CPU, replica", 0.1, 0.65)


def test_cpu_without_a_region_is_that_of_all() -> None:
    found = metrics(
        a=(Key("cores", "east"), ["100"]),
        b=(Key("cpu"), ["0.5"]),
        c=(Key("users"), ["1000"]),
        d=(Key("reads"), ["900"]),
        e=(Key("writes"), ["300"]),
    )
    given = Feasible(users_per_core=40, reads_per_write=4, cpu_leader=0.5)
    users, reads, cpu = efficiency.measured(found, given, DAY)
    assert (users.value, users.of_best, users.basis) == (20, 0.5, "the price book")
    assert (reads.name, reads.value, reads.of_best) == ("reads per write", 3, 0.75)
    assert (cpu.name, cpu.best) == ("CPU, role unknown", 0.65)


def test_what_is_not_measured_has_no_ratio() -> None:
    assert efficiency.measured(Metrics(), Feasible(queries_per_core=1), DAY) == []
