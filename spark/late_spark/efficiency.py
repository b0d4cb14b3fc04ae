"""The efficiency of the database: the ratios by which large fleets on Spanner are judged.

Queries per second per utilised core, concurrent users per utilised core, reads per write, and the
CPU of leader and replica regions, each against the best feasible. "Utilised cores" are cores times
CPU, so that an oversized database does not look slow and an overloaded one not good.

The best feasible is what the price book says under `feasible`; otherwise the best hour of the
range, which the deployment has shown that it can do. A hundredth of the hours is left out of the
best, for one odd sample must not be everybody's aim.

Source: the ratios are those that Uber's fulfilment platform reports for its Spanner fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from late_spark import series
from late_spark.calendar import Calendar
from late_spark.pricebook import Feasible
from late_spark.series import HOUR_US, Metrics

CPU_MAX = {"leader": 0.65, "replica": 0.65}
"""Spanner's recommended maximum for high-priority work in one region."""


@dataclass(frozen=True)
class Efficiency:
    """One ratio over the range."""

    name: str
    region: str
    value: float
    best: float
    basis: str
    """The source of `best`."""

    @property
    def of_best(self) -> float | None:
        return self.value / self.best if self.best else None


def measured(metrics: Metrics, feasible: Feasible, calendar: Calendar) -> list[Efficiency]:
    """Every ratio for which there is a measurement."""
    cores = _utilised(metrics, calendar)
    found = []
    for name, metric, best, flow in (
        ("queries per second per utilised core", "queries", feasible.queries_per_core, True),
        ("concurrent users per utilised core", "users", feasible.users_per_core, False),
    ):
        above = _hours(metrics, metric, calendar, flow=flow)
        found += _ratio(name, above, cores, best, "the price book")
    reads = _hours(metrics, "reads", calendar, flow=True)
    writes = _hours(metrics, "writes", calendar, flow=True)
    found += _ratio("reads per write", reads, writes, feasible.reads_per_write, "the price book")
    return found + _cpu(metrics, feasible, calendar)


def _hours(
    metrics: Metrics, name: str, calendar: Calendar, *, flow: bool, region: str | None = None
) -> dict[int, float]:
    """By hour: a flow per second, or a level's mean, summed over regions and resources."""
    found: dict[int, float] = {}
    for each in metrics.find(name, region):
        for hour, values in series.by_hour([each], calendar.from_us, calendar.to_us).items():
            amount = float(sum(values))
            amount = amount / (HOUR_US / 1_000_000) if flow else amount / len(values)
            found[hour] = found.get(hour, 0.0) + amount
    return found


def _utilised(metrics: Metrics, calendar: Calendar) -> dict[int, float]:
    """Cores times CPU by hour, added up over the regions."""

    def usage(region: str | None) -> dict[int, float]:
        hours: dict[int, list[float]] = {}
        for each in metrics.find("cpu", region):
            for hour, values in series.by_hour([each], calendar.from_us, calendar.to_us).items():
                hours.setdefault(hour, []).extend(float(value) for value in values)
        return {hour: fmean(values) for hour, values in hours.items()}

    everywhere, found = usage(None), dict[int, float]()
    for region in sorted({each.key.region for each in metrics.find("cores")}):
        # Each region's cores by its own CPU: the mean of a busy large region and an idle small one
        # is that of neither. Where CPU has no region, it is that of all.
        cpu = usage(region) or everywhere
        for hour, cores in _hours(metrics, "cores", calendar, flow=False, region=region).items():
            if hour in cpu:
                found[hour] = found.get(hour, 0.0) + cores * cpu[hour]
    return found


def _ratio(
    name: str,
    above: Mapping[int, float],
    below: Mapping[int, float],
    best: float | None,
    basis: str,
) -> list[Efficiency]:
    hours = [hour for hour in above if below.get(hour)]
    if not hours:
        return []
    value = sum(above[hour] for hour in hours) / sum(below[hour] for hour in hours)
    if best is None:
        best = _best([above[hour] / below[hour] for hour in hours])
        basis = f"the best of {len(hours)} hours"
    return [Efficiency(name, "", value, best, basis)]


def _best(values: list[float]) -> float:
    return sorted(values)[max(0, len(values) - 1 - len(values) // 100)]


def _cpu(metrics: Metrics, feasible: Feasible, calendar: Calendar) -> list[Efficiency]:
    found: dict[tuple[str, str], list[float]] = {}
    for each in metrics.find("cpu"):
        values = [
            float(value)
            for hour in series.by_hour([each], calendar.from_us, calendar.to_us).values()
            for value in hour
        ]
        found.setdefault((each.key.role, each.key.region), []).extend(values)
    given = {"leader": feasible.cpu_leader, "replica": feasible.cpu_replica}
    return [
        Efficiency(
            f"CPU, {role or 'role unknown'}",
            region,
            fmean(values),
            given.get(role) or CPU_MAX.get(role, 0.65),
            "the price book" if given.get(role) else "Spanner's recommendation",
        )
        for (role, region), values in sorted(found.items())
        if values
    ]
