"""Pictures of costs: what the bars say adds up to the table, also on days of credits."""

from __future__ import annotations

import re
from collections import defaultdict
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from late_spark import charts, cost, money, page
from late_spark.allocation import Key
from late_spark.calendar import DAY_US, Calendar
from late_spark.charges import Charge, Line
from late_spark.drivers import Used

DAYS = Calendar.of("2026-03-01", "2026-03-11", ZoneInfo("UTC"))
RECT = re.compile(
    r'<rect x="[\d.]+" y="(-?[\d.]+)" width="[\d.]+" height="([\d.]+)" class="s(\d)">'
    r"<title>(\S+), (.+?): (-?[\d,.]+) USD</title>"
)


def made(by: str, owners: int = 3) -> cost.CostReport:
    """Parts of cents each day, a credit on the fourth, and a last day that nobody bears."""
    mill = money.ONE // 1000
    billed = [
        Charge(Line(f"l{n % 2}"), DAYS.from_us + n * DAY_US, DAYS.from_us + (n + 1) * DAY_US,
               -7_777 * mill if n == 3 else 10_007 * mill, {"tasks": 100})
        for n in range(10)
    ]  # fmt: skip
    used = [
        Used(day, Key("g", "q", "n", "", f"o{n:02}"), 1, ended=n + 1, attempts=1)
        for day in DAYS.days[:-1]
        for n in range(owners)
    ]
    return cost.report(billed, used, DAYS, title="t", currency="USD", by=cost.dimensions(by))


@pytest.mark.parametrize(("by", "owners"), [("owner", 3), ("owner,line", 12), ("day", 3)])
def test_the_bars_add_up_to_the_tables(by: str, owners: int) -> None:
    report = made(by, owners)
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for *_, name, value in RECT.findall(page.cost(report)):
        sums[name] += Decimal(value.replace(",", ""))
    assert sum(sums.values()) == Decimal(report.total_cents) / 100
    assert sums.pop("(unallocated)") == Decimal(report.unallocated_cents) / 100
    for name, cents in report.charted_cents().items():
        if name in sums:
            assert sums.pop(name) == Decimal(cents) / 100
    assert list(sums) == ([] if owners < 6 else ["6 others"])
    if by == "owner":
        assert report.charted_cents() == {row.by[0]: row.cents for row in report.rows}


def test_a_day_of_credits_hangs_below_zero() -> None:
    found = RECT.findall(page.cost(made("owner")))
    by_day: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for y, height, _, day, _, value in found:
        by_day[day].append((float(y), float(height), float(value.replace(",", ""))))
    (credit,) = (rows for day, rows in by_day.items() if day == "03-04")
    assert all(value < 0 for *_, value in credit)
    zero = min(y for y, *_ in credit)
    assert max(y + height for y, height, _ in by_day["03-01"]) == pytest.approx(zero, abs=0.1)
    # The bars are as long as what they say.
    per_unit = {round(height / abs(value)) for y, height, value in (*credit, *by_day["03-01"])}
    assert len(per_unit) == 1
    lowest = max(y + height for y, height, _ in credit)
    assert lowest - zero == pytest.approx(sum(height for _, height, _ in credit), abs=0.2)
    assert lowest <= charts.HEIGHT - charts.BOTTOM + 0.1


@pytest.mark.parametrize(
    ("top", "depth", "ends"),
    [(10, 0, (0, 10)), (0, 0, (0, 1)), (10, 1, (-2.5, 10)), (0, 3, (-3, 0)), (1, 90, (-100, 25))],
)
def test_scales_have_zero_among_their_values(
    top: float, depth: float, ends: tuple[float, float]
) -> None:
    scale = charts.both_ways(top, depth)
    assert 0 in scale
    assert (scale[0], scale[-1]) == ends
