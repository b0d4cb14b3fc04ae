"""Charges: what there is to pay, before anybody is asked to bear it.

They come from a price book and measured quantities (`priced`), or from a real bill (`focus.py`).
A charge has a time; `by_day` divides it over the local days of the report, by seconds, and says
what of it lies outside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from late.errors import ConfigError
from late_spark import money, pricebook, series
from late_spark.calendar import Calendar, iso, month_bounds
from late_spark.pricebook import Driver, Parts, Price, PriceBook
from late_spark.series import Metrics


class Line(NamedTuple):
    """The purpose of a charge. Two rules of a price book may name the same line and divide it in
    different ways, and so may a price and the one that follows it."""

    name: str
    service: str = ""
    region: str = ""
    role: str = ""


_How = tuple[str, tuple[tuple[Driver, int], ...]]
"""Why nobody bears a charge, and what divides it: what tells the charges of one line apart."""


@dataclass(frozen=True)
class Charge:
    """An amount for a span of time [start_us, end_us)."""

    line: Line
    start_us: int
    end_us: int
    amount: int
    drivers: Parts
    reason: str = ""
    """Why nobody of this deployment bears it; "" for what is to be divided."""
    purchase: bool = False
    """Bought ahead, such as a commitment, and not used."""
    invoiced: int = 0
    """Of a bill: what is on the invoice (BilledCost); `amount` may spread what was bought ahead."""
    period: tuple[int, int] | None = None
    """Of a bill: its billing period, [begin, end)."""
    correction: bool = False
    """Of a bill: it changes what an earlier bill said."""


@dataclass(frozen=True)
class DayCharge:
    """The part of a line that falls on one local day."""

    day: date
    line: Line
    amount: int
    drivers: Parts
    reason: str = ""


@dataclass(frozen=True)
class Outside:
    """The part of the charges before or after the range of the report."""

    line: Line
    amount: int


def by_day(charges: Iterable[Charge], calendar: Calendar) -> tuple[list[DayCharge], list[Outside]]:
    """Every charge over the days that it spans, by seconds; the parts add up to the charges."""
    merged: dict[tuple[Line, int, int, _How], int] = defaultdict(int)
    for charge in charges:
        # Many rows of a bill are the same thing in the same hour: added up first, they are
        # divided once.
        how = charge.reason, tuple(sorted(charge.drivers.items()))
        merged[charge.line, charge.start_us, charge.end_us, how] += charge.amount
    inside: dict[tuple[date, Line, _How], int] = defaultdict(int)
    outside: dict[Line, int] = defaultdict(int)
    for (line, start, end, how), amount in merged.items():
        for day, part in over_days(amount, start, end, calendar):
            if day is None:
                outside[line] += part
            else:
                inside[day, line, how] += part
    days = [
        DayCharge(day, line, amount, dict(drivers), reason)
        for (day, line, (reason, drivers)), amount in sorted(inside.items())
    ]
    return days, [Outside(line, amount) for line, amount in sorted(outside.items()) if amount]


def within(charge: Charge, calendar: Calendar) -> bool:
    """Return whether a part of a charge, or the moment that it is for, lies in the range."""
    end_us = max(charge.end_us, charge.start_us + 1)
    return charge.start_us < calendar.to_us and end_us > calendar.from_us


def over_days(
    amount: int, start: int, end: int, calendar: Calendar
) -> list[tuple[date | None, int]]:
    """Divide an amount over days, by seconds: (day, part); None is outside of the range."""
    if end <= start:
        # A purchase or a correction at one moment.
        inside = calendar.from_us <= start < calendar.to_us
        return [(calendar.day(start) if inside else None, amount)]
    spans: list[tuple[date | None, int]] = [
        (None, max(0, min(end, calendar.from_us) - start)),
        (None, max(0, end - max(start, calendar.to_us))),
    ]
    if start < calendar.to_us and end > calendar.from_us:
        first = calendar.day(max(start, calendar.from_us))
        offset = (first - calendar.days[0]).days
        for day, begin, close in calendar.bounds[offset:]:
            if begin >= end:
                break
            spans.append((day, min(end, close) - max(start, begin)))
    spans = [(day, length) for day, length in spans if length > 0]
    parts = money.split(amount, [length for _, length in spans])
    return [(day, part) for (day, _), part in zip(spans, parts, strict=True)]


def priced(book: PriceBook, metrics: Metrics, calendar: Calendar, path: Path | str) -> list[Charge]:
    """Price the measured quantities by the price book, one charge per line and day.

    Raises:
        ConfigError: a line without a price or without a measurement for a part of the range, or
            something measured that no line has a price for.
    """
    if not book.prices:
        raise ConfigError(f"price book {path} has no prices: give some, or a bill with --bill")
    lines: dict[str, list[Price]] = defaultdict(list)
    for price in book.prices:
        lines[price.line].append(price)
    for name, prices in lines.items():
        _priced_throughout(name, prices, book, calendar, path)
    _all_priced(book, metrics, calendar, path)
    found = []
    for price in book.prices:
        start, end = pricebook.span(price, book.tz)
        line = Line(price.line, price.service, price.region, price.role)
        each: Fraction = Fraction(price.price) * price.replicas * money.ONE
        # What is rounded is the sum up to each day: a fee of 1,700 a month is 1,700 in 31 parts,
        # and not three units more.
        exact, given = Fraction(0), 0
        for _, begin, close in calendar.bounds:
            begin, close = max(begin, start), min(close, end)
            if begin < close:
                exact += each * _quantity(price, metrics, begin, close, calendar, path)
                amount = round(exact) - given  # half to even
                given += amount
                found.append(Charge(line, begin, close, amount, price.drivers))
    return found


def _quantity(
    price: Price, metrics: Metrics, start: int, end: int, calendar: Calendar, path: Path | str
) -> Fraction:
    """In the price's unit, for one replica."""
    hours = Fraction(end - start, series.HOUR_US)
    month = month_bounds(calendar.day(start), calendar.tz)
    of_month = Fraction(end - start, month[1] - month[0])
    if price.unit == "month":
        return Fraction(1 if price.quantity is None else price.quantity) * of_month
    monthly = price.unit in ("gb_month", "gib_month")
    if price.quantity is not None:
        return Fraction(price.quantity) * (of_month if monthly else hours)
    assert price.metric is not None
    wanted = price.metric
    chosen = metrics.find(wanted.name, wanted.region, wanted.role, wanted.resource)
    where = f"price book {path}: {price.line}: metric {wanted.name}"
    if not chosen:
        raise ConfigError(
            f"{where}: no file of --metrics has it for this region, role and resource"
        )
    hole = series.uncovered(chosen, start, end)
    if hole is not None:
        sources = ", ".join(sorted({each.source for each in chosen}))
        raise ConfigError(f"{where}: {sources} has no value from {iso(hole[0])} to {iso(hole[1])}")
    scale = {"gb": 10**9, "gb_month": 10**9, "gib": 2**30, "gib_month": 2**30, "million": 10**6}
    size = Fraction(1, scale.get(price.unit, 1))
    if price.unit in pricebook.FLOWS:
        return series.flow(chosen, start, end) * size
    level = series.level_hours(chosen, start, end) * size
    return level * of_month / hours if monthly else level


def _priced_throughout(
    name: str, prices: list[Price], book: PriceBook, calendar: Calendar, path: Path | str
) -> None:
    """Between two prices of a line there is no hole, nor at the ends of the range."""
    reached = calendar.from_us
    for start, end in sorted(pricebook.span(price, book.tz) for price in prices):
        if start > reached:
            break
        reached = max(reached, end)
    if reached < calendar.to_us:
        raise ConfigError(
            f"price book {path}: {name!r} has no price from {iso(reached)} on, within the report's "
            f"range {iso(calendar.from_us)} to {iso(calendar.to_us)}"
        )


def _all_priced(book: PriceBook, metrics: Metrics, calendar: Calendar, path: Path | str) -> None:
    """A measured series of a metric that has a price must be priced itself: a region that was
    added and forgotten in the price book would be free."""
    names = {price.metric.name for price in book.prices if price.metric}
    taken = {
        each.key
        for price in book.prices
        if price.metric
        for each in metrics.find(
            price.metric.name, price.metric.region, price.metric.role, price.metric.resource
        )
    }
    for key, each in metrics.series.items():
        used = any(value for value in each.values) and each.at_us[0] < calendar.to_us
        if key.metric in names and key not in taken and used:
            raise ConfigError(
                f"price book {path}: no line has a price for {series.said(key)} of {each.source}"
            )


def total(charges: Iterable[Charge]) -> int:
    """In units."""
    return sum(charge.amount for charge in charges)
