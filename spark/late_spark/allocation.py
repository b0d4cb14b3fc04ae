"""The allocation: every unit of every charge goes to a key, or stays unallocated with a reason.

    charges in the range = costs + unallocated            (exactly, in units; `check`)

A day's amount of a line is divided by the line's drivers (percent), and each driver's part among
the keys of that day by what the driver measures of them. Pure integers: the same input gives the
same cents, wherever it runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import NamedTuple

from late_spark import money
from late_spark.charges import DayCharge, Line
from late_spark.pricebook import Driver


class Key(NamedTuple):
    """The people and things that cause work; "" if there is none."""

    group: str
    queue: str
    name: str
    tenant: str = ""
    owner: str = ""


class Cost(NamedTuple):
    """The share of a key in a line on one day, by one driver."""

    day: date
    key: Key
    line: Line
    driver: Driver
    amount: int


class Unallocated(NamedTuple):
    """The part of a line on one day that no key bears, and the reason."""

    day: date
    line: Line
    reason: str
    amount: int


Weights = Mapping[Driver, Sequence[int]]
"""One weight per key of the day, in the keys' order, for each driver."""


class Work(NamedTuple):
    """The work of one day."""

    keys: Sequence[Key]
    """Ascending: ties of the remainders go to the first."""
    weights: Weights
    blank: Mapping[Driver, str]
    """Drivers that say nothing on this day, and why: "not recorded before 0.2"."""


def allocate(
    charges: Iterable[DayCharge], work: Mapping[date, Work]
) -> tuple[list[Cost], list[Unallocated]]:
    """Divide every day's charges among the keys of the day."""
    costs: list[Cost] = []
    left: dict[tuple[date, Line, str], int] = defaultdict(int)
    for charge in charges:
        if charge.reason:
            left[charge.day, charge.line, charge.reason] += charge.amount
            continue
        for driver, amount in _by_driver(charge):
            if driver is None:
                reason = "the price book gives no driver for this part"
                left[charge.day, charge.line, reason] += amount
                continue
            day = work.get(charge.day)
            problem = _problem(driver, day)
            if problem or day is None:
                left[charge.day, charge.line, problem] += amount
                continue
            parts = money.split(amount, day.weights[driver])
            costs.extend(
                Cost(charge.day, key, charge.line, driver, part)
                for key, part in zip(day.keys, parts, strict=True)
                if part
            )
    rows = [Unallocated(*at, amount) for at, amount in sorted(left.items()) if amount]
    return costs, rows


def _by_driver(charge: DayCharge) -> list[tuple[Driver | None, int]]:
    drivers: list[tuple[Driver | None, int]] = [
        (driver, percent) for driver, percent in sorted(charge.drivers.items()) if percent
    ]
    drivers.append((None, 100 - sum(percent for _, percent in drivers)))
    parts = money.split(charge.amount, [percent for _, percent in drivers])
    return [(driver, part) for (driver, _), part in zip(drivers, parts, strict=True) if part]


def _problem(driver: Driver, day: Work | None) -> str:
    if day is None or not day.keys:
        return "no work on this day"
    if not any(day.weights[driver]):
        return day.blank.get(driver) or f"no {driver} on this day"
    return ""


def equal_shares(groups: Sequence[object], inside: Sequence[int]) -> list[int]:
    """Weights by which each group has the same sum, and its members share that as `inside` says.

    Args:
        groups: of each key, the group that it belongs to.
        inside: of each key, its weight within the group; a group of zeros shares equally.
    """
    sums: dict[object, int] = defaultdict(int)
    sizes: dict[object, int] = defaultdict(int)
    for group, weight in zip(groups, inside, strict=True):
        sums[group] += weight
        sizes[group] += 1
    # Of a common size, so that the remainders of the division stay far below a unit of money.
    size = 10**18
    return [
        size * weight // sums[group] if sums[group] else size // sizes[group]
        for group, weight in zip(groups, inside, strict=True)
    ]


def check(charges: Sequence[DayCharge], costs: Sequence[Cost], left: Sequence[Unallocated]) -> None:
    """The books are balanced: by day and line, nothing was lost and nothing was made up."""
    balance: dict[tuple[date, Line], int] = defaultdict(int)
    for charge in charges:
        balance[charge.day, charge.line] += charge.amount
    for cost in costs:
        balance[cost.day, cost.line] -= cost.amount
    for row in left:
        balance[row.day, row.line] -= row.amount
    wrong = {at: amount for at, amount in balance.items() if amount}
    assert not wrong, f"the allocation does not add up: {wrong}"


class Focus(NamedTuple):
    """A cost summed to what a report shows."""

    by: tuple[str, ...]
    amount: int


def summed(costs: Iterable[Cost], by: Sequence[str]) -> list[Focus]:
    """Costs by some of `group, queue, name, tenant, owner, line, driver, day, month, region`,
    the largest first."""
    sums: dict[tuple[str, ...], int] = defaultdict(int)
    for cost in costs:
        sums[tuple(value(cost, each) for each in by)] += cost.amount
    rows = [Focus(key, amount) for key, amount in sums.items()]
    return sorted(rows, key=lambda row: (-row.amount, row.by))


def value(cost: Cost, dimension: str) -> str:
    if dimension == "line":
        return cost.line.name
    if dimension == "region":
        return cost.line.region
    if dimension == "driver":
        return cost.driver
    return of(cost.day, cost.key, dimension)


def of(day: date, key: Key, dimension: str) -> str:
    """A dimension of work: of time, or of who caused it."""
    if dimension == "day":
        return day.isoformat()
    if dimension == "month":
        return day.isoformat()[:7]
    return str(getattr(key, dimension))
