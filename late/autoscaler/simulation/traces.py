"""Traces of load over time: four that are made from a seed, a recorded one, and files.

Pure but for `trips` and `read`.

Load is in nodes at 100 % CPU, one figure a minute. The shapes are those of a dispatch service:
people by day and by week, a Friday night, one burst, and two weeks of bad luck.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from late.autoscaler.metrics.file import moment_us
from late.errors import ConfigError

MINUTES_MAX = 366 * 1440
MINUTE_US = 60_000_000
DAY = 1440
WEEK = 7 * DAY
START_US = 1_767_571_200_000_000
"""Monday 2026-01-05 00:00 UTC: where made traces begin."""


class Conditions(msgspec.Struct, frozen=True):
    """The delays and faults between the database and its controller. Times are in minutes."""

    delay: int = 3
    """Age of the newest metric."""
    noise: float = 0.02
    """Standard deviation of a reading, as a share of it."""
    gap: float = 0.0
    """Chance per minute that metrics stop for `gap_length`."""
    gap_length: int = 20
    provision: int = 2
    """Duration of a resize."""
    ramp: int = 2
    """Time over which new nodes take their share of the work."""
    failure: float = 0.0
    """Chance that a resize is refused."""


class Trace(msgspec.Struct, frozen=True):
    """A load, and the conditions around it."""

    name: str
    load: tuple[float, ...]
    world: Conditions = Conditions()
    start_us: int = START_US
    bursts: tuple[tuple[int, int], ...] = ()
    """Minutes (from, until) that are a burst, for which no target is promised."""
    low: tuple[float, ...] = ()
    """Work of lower priorities, one figure a minute; empty: there is none. It uses the capacity
    that the others leave, and work without room is not counted: nobody waits for it."""


def _people(minute: int, peak: float) -> float:
    """Return the load of people by day and week: least at four in the morning, less at weekends."""
    hour = minute % DAY / 60
    day = (1 - math.cos((hour - 4) / 24 * 2 * math.pi)) / 2
    weekend = 0.8 if minute // DAY % 7 >= 5 else 1.0
    share: float = day**1.3
    return peak * weekend * (0.25 + 0.75 * share)


def _wobble(rng: random.Random, minutes: int, share: float) -> list[float]:
    """Draw a slow random factor around 1, so that the days differ."""
    found, now = [], 0.0
    for _ in range(minutes):
        now = 0.98 * now + rng.gauss(0, share * 0.2)
        found.append(1 + now)
    return found


def _friday(minute: int) -> float:
    """Return the factor of Friday night: from 18:00 it nearly doubles within half an hour, until
    after 22:00."""
    if minute // DAY % 7 != 4:
        return 1.0
    since = minute % DAY - 18 * 60
    return 1 + 0.8 * max(0.0, min(1.0, since / 30, (285 - since) / 45))


def daily(seed: int = 1) -> Trace:
    """Make two weeks of days and nights."""
    rng, minutes = random.Random(seed), 2 * WEEK
    wobble = _wobble(rng, minutes, 0.03)
    return Trace("daily", tuple(_people(i, 24) * wobble[i] for i in range(minutes)))


def friday(seed: int = 2) -> Trace:
    """Make three weeks, each with a peak on Friday night."""
    rng, minutes = random.Random(seed), 3 * WEEK
    wobble = _wobble(rng, minutes, 0.03)
    load = tuple(_people(i, 20) * _friday(i) * wobble[i] for i in range(minutes))
    return Trace("friday", load)


def burst(seed: int = 3) -> Trace:
    """Make two weeks with one sudden burst: ten times the load for a quarter of an hour."""
    rng, minutes = random.Random(seed), 2 * WEEK
    wobble = _wobble(rng, minutes, 0.03)
    at = 9 * DAY + 6 * 60
    load = [_people(i, 16) * wobble[i] for i in range(minutes)]
    for i in range(at, at + 15):
        load[i] *= 10
    # The burst, working off the queue, and the way back to the old size.
    return Trace("burst", tuple(load), bursts=((at, at + 180),))


def rough(seed: int = 4) -> Trace:
    """Make two weeks of noisy, late and missing metrics, slow provisioning and refused calls."""
    rng, minutes = random.Random(seed), 2 * WEEK
    wobble = _wobble(rng, minutes, 0.06)
    load = tuple(_people(i, 20) * wobble[i] for i in range(minutes))
    world = Conditions(delay=5, noise=0.04, gap=0.002, provision=10, ramp=5, failure=0.2)
    return Trace("rough", load, world)


TRIPS = Path(__file__).with_name("trips.txt")
TRIP_NODES = 8.0
"""The nodes at 100 % CPU that a trip in progress stands for: the file is a small sample."""
TRIP_MINUTES = 45
"""The load is the mean of so many minutes: a few trips at a time are mostly chance."""


def trips() -> Trace:
    """Read 27 days of taxi trips in progress, from Monday 2019-03-04 on, by New York's clock.

    A line is a day and a character a minute: their number, in base 36. They are those of a sample
    of some 200 trips a day, so the load is a noisy one.

    Source: NYC Taxi and Limousine Commission, trip records.
    """
    counts = [int(each, 36) for each in TRIPS.read_text(encoding="ascii") if each != "\n"]
    load, total = [], 0
    for at, count in enumerate(counts):
        total += count - (counts[at - TRIP_MINUTES] if at >= TRIP_MINUTES else 0)
        load.append(TRIP_NODES * total / min(at + 1, TRIP_MINUTES))
    return Trace("trips", tuple(load), start_us=TRIPS_START_US)


TRIPS_START_US = 1_551_657_600_000_000
"""Monday 2019-03-04 00:00, as if New York's clock were that of UTC."""

SHIPPED: dict[str, Callable[[], Trace]] = {
    "daily": daily,
    "friday": friday,
    "burst": burst,
    "rough": rough,
}
"""Those that are made."""
RECORDED: dict[str, Callable[[], Trace]] = {"trips": trips}


def read(path: Path) -> Trace:
    """Read a recorded load: CSV with a column `load`, optionally `low`, one line a minute. With a
    column `at` it begins at the time of its first line, else on a Monday at 00:00 UTC.

    Raises:
        ConfigError: it cannot be read, has no such column, a value that is no load, or lines that
            are not a minute apart; it names the line.
    """
    load: list[float] = []
    low: list[float] = []
    start_us = START_US
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                text = row.get("load")
                if text is None:
                    raise ConfigError(f"trace {path}: no column `load`")
                load.append(_load(text, f"trace {path}, line {number}"))
                if (text := row.get("at")) is not None:
                    at_us = _moment(text, f"trace {path}, line {number}")
                    start_us = start_us if load[1:] else at_us
                    if abs(at_us - start_us - (len(load) - 1) * MINUTE_US) > MINUTE_US // 2:
                        raise ConfigError(
                            f"trace {path}, line {number}: at = {text[:32]!r} is not minute "
                            f"{len(load)} of the file: one line a minute"
                        )
                if (text := row.get("low")) is not None:
                    low.append(_load(text, f"trace {path}, line {number}", "low"))
                if len(load) > MINUTES_MAX:
                    raise ConfigError(f"trace {path}: more than {MINUTES_MAX} minutes")
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigError(f"trace {path}: {error}") from None
    if not load:
        raise ConfigError(f"trace {path} is empty")
    if low and len(low) != len(load):
        raise ConfigError(f"trace {path}: `low` is missing in some lines")
    return Trace(path.stem, tuple(load), start_us=start_us, low=tuple(low))


def _moment(text: str, where: str) -> int:
    try:
        return moment_us(text)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{where}: at = {text[:32]!r}: {str(error)[:120]}") from None


def _load(text: str, where: str, name: str = "load") -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{where}: {name} = {text[:32]!r} is not a number") from None
    if not (math.isfinite(value) and 0 <= value <= 1e6):
        raise ConfigError(f"{where}: {name} = {text[:32]!r} is not within 0..1000000")
    return value
