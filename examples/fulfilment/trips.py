"""Trips: read from a CSV, or made up with the same columns."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path

COLUMNS = (
    "pickup",
    "dropoff",
    "passengers",
    "distance",
    "fare",
    "tip",
    "tolls",
    "total",
    "color",
    "payment",
    "pickup_zone",
    "dropoff_zone",
    "pickup_borough",
    "dropoff_borough",
)
ZONES = ("Lenox Hill West", "Midtown East", "Astoria", "Park Slope", "East Harlem South", "SoHo")
TRIPS_PER_DAY = 210
"""The rate of the public sample of March 2019; generated trips come at the same rate."""


class BadTrips(ValueError):
    """The file cannot be used; the message names the line and the value."""


@dataclass(frozen=True, slots=True)
class Trip:
    """The part of one row that the service keeps. Times are those of the city, and only their
    distances count; the total is in USD."""

    pickup: datetime
    dropoff: datetime
    zone: str
    total: Decimal
    payment: str


def parse(row: Mapping[str, str | None]) -> Trip:
    """One row of the CSV.

    Raises:
        ValueError: a time or an amount that is none, or a drop-off before the pick-up.
    """
    pickup = datetime.fromisoformat(row["pickup"] or "")
    dropoff = datetime.fromisoformat(row["dropoff"] or "")
    if dropoff < pickup:
        raise ValueError(f"drop-off {dropoff} before pick-up {pickup}")
    try:
        total = Decimal(row["total"] or "")
    except InvalidOperation:
        raise ValueError(f"total is no amount: {row['total']!r}") from None
    if not total.is_finite():
        raise ValueError(f"total is no amount: {row['total']!r}")
    return Trip(
        pickup, dropoff, row["pickup_zone"] or "unknown", total, row["payment"] or "unknown"
    )


def read(path: Path) -> list[Trip]:
    """Read all trips of the file, by pick-up time.

    Raises:
        BadTrips: no such file, a column is missing, or a row cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise BadTrips(f"{path}: columns missing: {', '.join(missing)}")
            return sorted(_parsed(path, rows), key=lambda trip: trip.pickup)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadTrips(f"{path}: {error}") from error


def _parsed(path: Path, rows: csv.DictReader[str]) -> Iterator[Trip]:
    for row in rows:
        try:
            yield parse(row)
        except ValueError as error:
            raise BadTrips(f"{path}, line {rows.line_num}: {error}") from error


def generate(count: int, *, seed: int = 2019) -> list[Trip]:
    """`count` trips with the columns of the file, through the same parser; the same for a seed."""
    rng = random.Random(seed)
    pickup = datetime(2019, 3, 1)
    trips = []
    for _ in range(count):
        pickup += timedelta(seconds=round(rng.expovariate(TRIPS_PER_DAY / 86_400)))
        minutes = min(rng.lognormvariate(2.4, 0.7), 100.0)
        distance = round(minutes * rng.uniform(0.1, 0.3), 2)
        fare = round(2.5 + 2.5 * distance, 2)
        tip = round(fare * rng.choice((0, 0, 0.15, 0.2)), 2)
        row = {
            "pickup": pickup.isoformat(sep=" "),
            "dropoff": (pickup + timedelta(seconds=round(minutes * 60))).isoformat(sep=" "),
            "passengers": str(rng.randint(1, 5)),
            "distance": str(distance),
            "fare": str(fare),
            "tip": str(tip),
            "tolls": "0.0",
            "total": f"{fare + tip + 3.3:.2f}",
            "color": rng.choice(("yellow", "green")),
            "payment": rng.choice(("credit card", "credit card", "cash")),
            "pickup_zone": rng.choice(ZONES),
            "dropoff_zone": rng.choice(ZONES),
            "pickup_borough": "Manhattan",
            "dropoff_borough": "Manhattan",
        }
        trips.append(parse(row))
    return trips
