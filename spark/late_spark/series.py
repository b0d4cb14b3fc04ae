"""The measurements of the database over time: nodes, cores, CPU, storage, bytes, operations.

One canonical name per quantity, whoever measured it (`importers.py`):

- levels, which hold until the next sample: `nodes`, `processing_units`, `cores`, `cpu` (0 to 1),
  `storage_bytes`, `users`;
- flows, each sample being the amount since the one before: `reads`, `writes`, `queries`,
  `network_in_bytes`, `network_out_bytes`.

Quantities are exact fractions, for they are multiplied by prices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from statistics import median
from typing import NamedTuple

from late.errors import ConfigError
from late_spark.calendar import iso

HOUR_US = 3_600_000_000


class Key(NamedTuple):
    """The key of one series."""

    metric: str
    region: str = ""
    role: str = ""
    resource: str = ""


@dataclass(frozen=True)
class Series:
    """Samples of one key, ascending by time."""

    key: Key
    at_us: tuple[int, ...]
    values: tuple[Decimal, ...]
    source: str

    @property
    def step_us(self) -> int:
        """The usual distance of samples; an hour for a single one."""
        gaps = [b - a for a, b in zip(self.at_us, self.at_us[1:], strict=False)]
        return int(median(gaps)) if gaps else HOUR_US

    def holds(self) -> list[tuple[int, int, Decimal]]:
        """(from, to, value): a level holds until the next sample, but for no longer than three
        usual steps. After that the thing that was measured is taken to be gone: a node that was
        removed sends no zero. The first value holds one step back, for samples are taken at the
        end of what they measure."""
        step = self.step_us
        found = [(self.at_us[0] - step, self.at_us[0], self.values[0])]
        ends = [*self.at_us[1:], self.at_us[-1] + step]
        for at, end, value in zip(self.at_us, ends, self.values, strict=True):
            found.append((at, min(end, at + 3 * step), value))
        return found


@dataclass
class Metrics:
    """The series of a report."""

    series: dict[Key, Series] = field(default_factory=dict)

    @classmethod
    def of(cls, samples: Iterable[tuple[Key, int, Decimal]], source: str) -> Metrics:
        """From (key, time, value) in any order.

        Raises:
            ConfigError: two values of one key at one time.
        """
        grouped: dict[Key, dict[int, Decimal]] = defaultdict(dict)
        for key, at_us, value in samples:
            if grouped[key].setdefault(at_us, value) != value:
                raise ConfigError(f"{source}: {said(key)} has two values at {iso(at_us)}")
        found = cls()
        for key, points in sorted(grouped.items()):
            times = tuple(sorted(points))
            found.series[key] = Series(key, times, tuple(points[at] for at in times), source)
        return found

    def add(self, other: Metrics) -> None:
        """Take the series of another file in.

        Raises:
            ConfigError: both have samples of one key in overlapping times.
        """
        for key, series in other.series.items():
            mine = self.series.get(key)
            if mine is None:
                self.series[key] = series
                continue
            first, second = sorted((mine, series), key=lambda each: each.at_us[0])
            if second.at_us[0] <= first.at_us[-1]:
                raise ConfigError(
                    f"{series.source} and {mine.source} overlap: both measure {said(key)} at "
                    f"{iso(second.at_us[0])}"
                )
            times, values = first.at_us + second.at_us, first.values + second.values
            self.series[key] = Series(key, times, values, f"{first.source}, {second.source}")

    def find(
        self, metric: str, region: str | None = None, role: str | None = None,
        resource: str | None = None,
    ) -> list[Series]:  # fmt: skip
        """Series of a metric; None takes any region, role or resource."""
        return [
            series
            for key, series in self.series.items()
            if key.metric == metric
            and region in (None, key.region)
            and role in (None, key.role)
            and resource in (None, key.resource)
        ]


def said(key: Key) -> str:
    """`nodes (us-east1, leader)`."""
    marks = ", ".join(each for each in key[1:] if each)
    return f"{key.metric} ({marks})" if marks else key.metric


def level_hours(series: Iterable[Series], from_us: int, to_us: int) -> Fraction:
    """Level times hours over [from_us, to_us), summed over the series."""
    total = Fraction(0)
    for each in series:
        for start, end, value in each.holds():
            inside = min(end, to_us) - max(start, from_us)
            if inside > 0:
                total += Fraction(value) * inside
    return total / HOUR_US


def flow(series: Iterable[Series], from_us: int, to_us: int) -> Fraction:
    """Sum of the amounts sampled in (from_us, to_us]: a sample speaks of the time before it."""
    return sum(
        (
            Fraction(value)
            for each in series
            for at, value in zip(each.at_us, each.values, strict=True)
            if from_us < at <= to_us
        ),
        Fraction(0),
    )


def uncovered(series: Iterable[Series], from_us: int, to_us: int) -> tuple[int, int] | None:
    """The first part of [from_us, to_us) of which no series says anything; None if there is none.

    What is shorter than the series' usual step is no hole.
    """
    listed = list(series)
    slack = max((each.step_us for each in listed), default=0)
    spans = sorted((a, b) for each in listed for a, b, _ in each.holds())
    reached = from_us
    for start, end in spans:
        if start - reached > slack:
            return reached, min(start, to_us)
        reached = max(reached, end)
        if reached >= to_us:
            return None
    return (reached, to_us) if to_us - reached > slack else None


def by_hour(series: Iterable[Series], from_us: int, to_us: int) -> Mapping[int, list[Decimal]]:
    """Values by the hour they were sampled in (its begin); for averages and sums of an hour."""
    found: dict[int, list[Decimal]] = defaultdict(list)
    for each in series:
        for at, value in zip(each.at_us, each.values, strict=True):
            if from_us <= at < to_us:
                found[at // HOUR_US * HOUR_US].append(value)
    return found
