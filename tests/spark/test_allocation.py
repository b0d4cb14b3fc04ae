"""The allocation: exact, by stated drivers, and what nobody bears has a reason."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from late_spark import allocation
from late_spark.allocation import Key, Unallocated, Work
from late_spark.charges import DayCharge, Line
from late_spark.pricebook import Driver

DAY = date(2026, 3, 1)
NODES, DISK = Line("nodes"), Line("disk")
A, B, C = (Key("default", "mail", name) for name in "abc")


def work(**weights: list[int]) -> dict[date, Work]:
    all_ = {
        key: [0, 0, 0] for key in ("tasks", "writes", "reads", "bytes", "busy", "retries", "idle")
    }
    return {DAY: Work((A, B, C), {**all_, **weights}, {"bytes": "not recorded before 0.2"})}  # type: ignore[dict-item]


def test_each_driver_divides_its_part() -> None:
    charges = [
        DayCharge(DAY, NODES, 1_000, {"writes": 75, "busy": 25}),
        DayCharge(DAY, DISK, -10, {"writes": 100}),
    ]
    costs, left = allocation.allocate(charges, work(writes=[1, 1, 1], busy=[0, 9, 1]))
    assert left == []
    assert [(c.key.name, c.line.name, c.driver, c.amount) for c in costs] == [
        ("b", "nodes", "busy", 225),
        ("c", "nodes", "busy", 25),
        ("a", "nodes", "writes", 250),
        ("b", "nodes", "writes", 250),
        ("c", "nodes", "writes", 250),
        ("a", "disk", "writes", -4),
        ("b", "disk", "writes", -3),
        ("c", "disk", "writes", -3),
    ]
    allocation.check(charges, costs, left)


def test_what_nobody_bears_says_why() -> None:
    other = date(2026, 3, 2)
    charges = [
        DayCharge(DAY, NODES, 100, {"retries": 50, "bytes": 20}),
        DayCharge(DAY, DISK, 10, {}, "others'"),
        DayCharge(other, NODES, 7, {"writes": 100}),
    ]
    costs, left = allocation.allocate(charges, work(writes=[1, 1, 1]))
    assert costs == []
    assert left == [
        Unallocated(DAY, DISK, "others'", 10),
        Unallocated(DAY, NODES, "no retries on this day", 50),
        Unallocated(DAY, NODES, "not recorded before 0.2", 20),
        Unallocated(DAY, NODES, "the price book gives no driver for this part", 30),
        Unallocated(other, NODES, "no work on this day", 7),
    ]
    allocation.check(charges, costs, left)


WEIGHTS = st.lists(st.integers(0, 10**12), min_size=3, max_size=3)


@given(
    st.lists(
        st.tuples(
            st.integers(-(10**18), 10**18),
            st.dictionaries(st.sampled_from(["writes", "busy", "idle"]), st.integers(0, 33)),
            st.sampled_from([NODES, DISK]),
            st.sampled_from(["", "ignored"]),
        )
    ),
    WEIGHTS, WEIGHTS, WEIGHTS,
)  # fmt: skip
def test_the_books_are_balanced(
    amounts: list[tuple[int, dict[Driver, int], Line, str]],
    a: list[int],
    b: list[int],
    c: list[int],
) -> None:
    charges = [DayCharge(DAY, line, amount, parts, why) for amount, parts, line, why in amounts]
    costs, left = allocation.allocate(charges, work(writes=a, busy=b, idle=c))
    allocation.check(charges, costs, left)
    total = sum(cost.amount for cost in costs) + sum(row.amount for row in left)
    assert total == sum(charge.amount for charge in charges)
    by = allocation.summed(costs, ("queue", "line"))
    assert sum(row.amount for row in by) == sum(cost.amount for cost in costs)


def test_a_lost_unit_is_found() -> None:
    charges = [DayCharge(DAY, NODES, 100, {"writes": 100})]
    costs, left = allocation.allocate(charges, work(writes=[1, 1, 1]))
    with pytest.raises(AssertionError, match="does not add up"):
        allocation.check(charges, costs[1:], left)


def test_groups_share_equally_and_inside_by_weight() -> None:
    weights = allocation.equal_shares(["x", "x", "y", "z", "z"], [3, 1, 5, 0, 0])
    assert weights == [75 * 10**16, 25 * 10**16, 10**18, 5 * 10**17, 5 * 10**17]
