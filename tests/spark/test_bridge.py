"""Two views of one bill, recomputed with fractions from its rows: billed in a month, used in it."""

from __future__ import annotations

import csv
from collections import defaultdict
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from late_spark import bridge, cost, focus, money, page, pricebook, tables, values
from late_spark.allocation import Key
from late_spark.calendar import Calendar
from late_spark.drivers import Used

TZ = ZoneInfo("America/New_York")
AUGUST = Calendar.of("2026-08", "2026-09", TZ)
SEPTEMBER = Calendar.of("2026-09", "2026-10", TZ)
COLUMNS = (
    "BilledCost", "EffectiveCost", "ChargeCategory", "ChargeClass", "ServiceName",
    "ChargePeriodStart", "ChargePeriodEnd", "BillingPeriodStart", "BillingPeriodEnd",
    "BillingAccountId", "BillingCurrency",
)  # fmt: skip
RULES = [
    {"line": "nodes", "match": {"ServiceName": "Spanner"}, "drivers": {"tasks": 100}},
    {"line": "net", "match": {"ServiceName": "Net*"}, "share": 30, "drivers": {"tasks": 100}},
]


def month(number: int) -> str:
    return f"2026-{number:02}-01T00:00:00Z"


def row(
    billed: str, effective: str, service: str, start: str, end: str, of: int, *,
    kind: str = "Usage", correction: bool = False,
) -> dict[str, str]:  # fmt: skip
    cells = (
        billed, effective, kind, "Correction" if correction else "", service, start, end,
        month(of), month(of + 1), "7", "USD",
    )  # fmt: skip
    return dict(zip(COLUMNS, cells, strict=True))


ROWS = {
    "august.csv": [
        *(row(f"{3 + day}.07", f"{day}.01", "Spanner", f"2026-08-{day:02}", f"2026-08-{day + 1:02}",
              8) for day in range(1, 31)),
        # Across New York's midnight of the month, and a purchase for a year.
        row("1.3", "1.3", "Network", "2026-08-31T20:00:00Z", "2026-09-01T06:00:00Z", 8),
        row("365", "0", "Spanner", "2026-08-02", "2026-08-02", 8, kind="Purchase"),
    ],
    "september.csv": [
        *(row("4.0000004", "4.0000004", "Network", f"2026-09-{day:02}", f"2026-09-{day + 1:02}", 9)
          for day in range(1, 30)),
        row("-5.00", "-5.00", "Spanner", "2026-08-10", "2026-08-11", 9, correction=True),
        row("0.25", "0.25", "Spanner", "2026-08-31", "2026-09-01", 9),
    ],
}  # fmt: skip


@pytest.fixture
def bills(tmp_path: Path) -> list[Path]:
    paths = []
    for name, rows in ROWS.items():
        paths.append(tmp_path / name)
        with paths[-1].open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    return paths


def book() -> pricebook.PriceBook:
    raw = {"version": 1, "name": "t", "currency": "USD", "bill": {"rules": RULES}}
    return pricebook.check(raw, "prices.yaml")


def report(bills: list[Path], days: Calendar) -> cost.CostReport:
    used = [Used(day, Key("g", "q", "n", "", "a"), 1, ended=1, attempts=1) for day in days.days]
    billed = focus.load(bills, book())
    return cost.report(billed, used, days, title="t", currency="USD", by=["owner"])


def expected(start: datetime, end: datetime, of: int) -> dict[str, dict[str, Fraction]]:
    """The bridge by line, apart from the code: by hours of each row, in fractions."""
    found: dict[str, dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for rows in ROWS.values():
        for each in rows:
            begin, close = (
                datetime.fromisoformat(each[name]).replace(tzinfo=UTC)
                for name in ("ChargePeriodStart", "ChargePeriodEnd")
            )
            billed, amount = Fraction(each["BilledCost"]), Fraction(each["EffectiveCost"])
            if close == begin:
                inside = Fraction(start <= begin < end)
                before, after = Fraction(begin < start), Fraction(begin >= end)
            else:
                hours = close - begin
                inside = Fraction(max(min(close, end) - max(begin, start), hours * 0) / hours)
                inside = inside.limit_denominator(1000)
                before = Fraction(max(min(close, start) - begin, hours * 0) / hours)
                before = before.limit_denominator(1000)
                after = 1 - inside - before
            line = found["nodes" if each["ServiceName"] == "Spanner" else "net"]
            month_of = int(each["BillingPeriodStart"][5:7])
            if month_of == of:
                line["billed"] += billed
                line["spread"] += amount - billed
                line["before"] -= amount * before
                line["after"] -= amount * after
            elif month_of < of:
                line["billed_earlier"] += amount * inside
            else:
                later = "corrections" if each["ChargeClass"] else "billed_later"
                line[later] += amount * inside
    return found


@pytest.mark.parametrize(("days", "of"), [(AUGUST, 8), (SEPTEMBER, 9)])
def test_every_step_of_every_line_is_that_of_the_rows(
    bills: list[Path], tmp_path: Path, days: Calendar, of: int
) -> None:
    found = report(bills, days)
    wanted = expected(*(datetime(2026, month, 1, tzinfo=TZ) for month in (of, of + 1)), of)
    assert found.bridge is not None
    rounded = Fraction(1, 10**10)  # rows of ten hours are not whole units
    for line, steps in found.bridge.lines.items():
        for step, amount in steps.items():
            assert abs(Fraction(amount, money.ONE) - wanted[line][step]) < rounded, (line, step)
    # and what was used is what the steps lead to, in the report and in the file
    assert sum(found.bridge.steps().values()) == found.totals.in_range
    tables.bridge(found.bridge, tmp_path / "bridge.csv")
    *rows, last = csv.DictReader((tmp_path / "bridge.csv").read_text().splitlines())
    for row in (*rows, last):
        steps = sum(Fraction(row[step]) for step in bridge.STEPS)
        assert steps == Fraction(row["used"])
    assert sum(Fraction(row["used"]) for row in rows) == Fraction(last["used"])
    assert Fraction(last["used"]) == Fraction(found.totals.in_range, money.ONE)


def test_a_correction_in_the_next_bill_restates_the_month_by_line(bills: list[Path]) -> None:
    first, restated = report(bills[:1], AUGUST), report(bills, AUGUST)
    assert first.bridge is not None
    assert first.bridge.restated == 0
    # Given September's bill with -5.00 for August and 0.25 that came late, of which New York's
    # August has all, and four hours of September 1 in UTC
    assert restated.bridge is not None
    steps = restated.bridge.steps()
    assert (steps["corrections"], steps["billed_later"]) == (
        -5 * money.ONE,
        money.ONE // 4 + 4_000_000_400_000 * 4 // 24,
    )
    assert restated.totals.in_range - first.totals.in_range == restated.bridge.restated
    assert [each[:4] for each in restated.bridge.adjustments] == [
        ("nodes", "2026-09", "2026-08", "correction"),
        ("nodes", "2026-09", "2026-08", "late charge"),
    ]
    # Then August's figure says that it was restated, and the table names the line
    text = page.cost(restated)
    assert "USD in the range, restated" in text
    assert "Restated: 466.17 USD were billed at first, -4.08 came with later bills." in text
    assert "<td class=n>-5.00</td>" in text
    assert "restated" not in page.cost(first)
    assert values.cost(restated)["bridge"]["restated"] == "-4.083333266667"
    # and September shows the same as an adjustment to August, which is not in its own cost
    september = report(bills, SEPTEMBER)
    assert september.bridge is not None
    assert september.bridge.restated == 0
    assert "Adjustments to earlier months, by line" in page.cost(september)
    assert september.bridge.adjustments[0].inside == 0


def test_prices_have_no_bridge() -> None:
    assert bridge.of([], AUGUST) is None
