"""Two months to close: bills, work and what of it is right, recomputed apart from the code."""

from __future__ import annotations

import csv
from collections import defaultdict
from datetime import date, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from late_spark import commands, tenants
from late_spark.allocation import Key
from late_spark.calendar import Calendar
from late_spark.close import command
from late_spark.commands import Asked
from late_spark.drivers import Used
from late_spark.place import Source

PRICES = """
version: 1
name: shop
currency: USD
bill:
  rules:
  - {line: database, match: {ServiceName: Spanner}, share: 80, drivers: {tasks: 70, retries: 20}}
  - {line: network, match: {ServiceName: Network}, drivers: {bytes: 100}}
"""
BUDGETS = """
version: 1
total: 500
parts: {growth: 50, money: 400, new: 10}
months:
  2026-10: {parts: {growth: 60}}
"""
COLUMNS = (
    "BilledCost", "EffectiveCost", "ChargeClass", "ServiceName", "ChargePeriodStart",
    "ChargePeriodEnd", "BillingPeriodStart", "BillingPeriodEnd", "BillingAccountId",
    "BillingCurrency",
)  # fmt: skip
FIRST = date(2026, 9, 1)
OWNERS = {"growth": 1, "money": 3}
"""The share of each owner in a day's tasks, times the day of the month."""


def billed(day: date, service: str, cost: str, *, of: int, kind: str = "") -> dict[str, str]:
    cells = (cost, cost, kind, service, str(day), str(day + timedelta(days=1)),
             f"2026-{of:02}-01", f"2026-{of + 1:02}-01", "7", "USD")  # fmt: skip
    return dict(zip(COLUMNS, cells, strict=True))


def bills() -> dict[int, list[dict[str, str]]]:
    """September whole, with a day that nobody worked; October without its last three days."""
    found: dict[int, list[dict[str, str]]] = {9: [], 10: []}
    for n in range(58):
        day = FIRST + timedelta(days=n)
        found[day.month].append(billed(day, "Spanner", f"{7 + n}.0{n:02}1", of=day.month))
        found[day.month].append(billed(day, "Network", "0.3333333", of=day.month))
    found[10].append(billed(date(2026, 9, 9), "Spanner", "-5.00", of=10, kind="Correction"))
    found[10].append(billed(date(2026, 10, 9), "Mystery", "1.11", of=10))
    return found


def work() -> list[Used]:
    return [
        Used(day, Key("g", owner, "n", "", owner), 1, ended=share * day.day, bytes=share,
             attempts=share * day.day, retries=1 if owner == "money" else 0)
        for n in range(61)
        for day in [FIRST + timedelta(days=n)]
        for owner, share in OWNERS.items()
        if day != date(2026, 10, 5)
    ]  # fmt: skip


def expected(month: int) -> dict[str, Fraction]:
    """Return what each owner bears in a month, and the total."""
    found: dict[str, Fraction] = defaultdict(Fraction)
    for day, costs in expected_by_day().items():
        if day.month == month:
            for name, cost in costs.items():
                found[name] += cost
    return found


def expected_by_day() -> dict[date, dict[str, Fraction]]:
    by_day: dict[date, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for row in [row for rows in bills().values() for row in rows]:
        day = date.fromisoformat(row["ChargePeriodStart"])
        cost = Fraction(row["EffectiveCost"])
        found = by_day[day]
        found["total"] += cost
        if day == date(2026, 10, 5) or row["ServiceName"] == "Mystery":
            continue
        shares = {owner: Fraction(share, 4) for owner, share in OWNERS.items()}
        if row["ServiceName"] == "Network":
            for owner, share in shares.items():
                found[owner] += cost * share
            continue
        for owner, share in shares.items():
            found[owner] += cost * Fraction(8, 10) * Fraction(7, 10) * share
        found["money"] += cost * Fraction(8, 10) * Fraction(2, 10)
    return by_day


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A question whose usage is that of `work`, without Spark."""
    return prepared(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> tuple[command.Done, Path]:
    """One close for all tests that only look at it, and its folder."""
    place = tmp_path_factory.mktemp("closed")
    with pytest.MonkeyPatch.context() as patch:
        return made(prepared(patch, place)), place / "close"


def prepared(monkeypatch: pytest.MonkeyPatch, place: Path) -> Asked:
    """Fill a folder and go there."""

    def worked(_: Asked, days: Calendar, *__: Any, **___: Any) -> list[Used]:
        return [row for row in work() if days.days[0] <= row.day <= days.days[-1]]

    monkeypatch.chdir(place)
    monkeypatch.setattr(commands, "usage", lambda *_: None)
    monkeypatch.setattr(commands, "work", worked)
    monkeypatch.setattr(tenants, "behind", lambda *_: {})
    monkeypatch.setattr(Source, "check", lambda *_: None)
    Path("prices.yaml").write_text(PRICES)
    Path("budgets.yaml").write_text(BUDGETS)
    for month, rows in bills().items():
        with Path(f"{month}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    return Asked(
        source=Source(usage="usage"), from_="", to="", prices=Path("prices.yaml"),
        out=Path("close"), bills=[Path("9.csv"), Path("10.csv")],
    )  # fmt: skip


def made(asked: Asked, month: str = "2026-10") -> command.Done:
    return command.run(asked, month, "owner", Path("budgets.yaml"))


def read(name: str, folder: Path = Path("close")) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / name).read_text().splitlines()))
