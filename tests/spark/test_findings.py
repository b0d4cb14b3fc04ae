"""What a reader must know first: days without a bill or without usage, and purchases."""

from __future__ import annotations

from datetime import date
from fractions import Fraction
from zoneinfo import ZoneInfo

from late_spark import cost, findings, money, page, values
from late_spark.allocation import Key
from late_spark.calendar import DAY_US, Calendar
from late_spark.charges import Charge, Line
from late_spark.drivers import Used

MARCH = Calendar.of("2026-03", "2026-04", ZoneInfo("UTC"))
ONE = money.ONE
KEY = Key("default", "mail", "send", "", "growth")


def billed(days: range, amount: int = ONE, **more: object) -> list[Charge]:
    """A charge for each of these days of March, counted from 0."""
    starts = [MARCH.from_us + day * DAY_US for day in days]
    return [
        Charge(Line("db"), at, at + DAY_US, amount, {"tasks": 100}, **more)  # type: ignore[arg-type]
        for at in starts
    ]


def worked(days: range, tasks: int = 10) -> list[Used]:
    return [Used(MARCH.days[day], KEY, 1, ended=tasks, attempts=tasks) for day in days]


def made(charges: list[Charge], used: list[Used]) -> cost.CostReport:
    return cost.report(charges, used, MARCH, title="t", currency="USD", by=["owner"])


def test_a_month_that_is_billed_to_its_middle_says_so_and_divides_by_covered_days() -> None:
    # Given a bill of 15 days beside a fee of the whole month, and work on all 31
    fee = Charge(Line("fee"), MARCH.from_us, MARCH.to_us, 31 * ONE, {"tasks": 100})
    found = made([*billed(range(15)), fee], worked(range(31)))
    # Then the other 16 days are named
    (gap,) = found.findings
    assert gap[:5] == ("usage without a bill", date(2026, 3, 16), date(2026, 3, 31), 16, 160)
    # and a task costs what 15 days of bill and fee cost, for the tasks of those days
    (row,) = found.rows
    exact = Fraction(15 + 15, 15 * 10)
    assert Fraction(row.per_million() or 0, ONE) == exact * 1_000_000
    assert (row.tasks, row.amount) == (310, 46 * ONE), "sums are of all days"
    text = page.cost(found)
    assert "No bill from 2026-03-16 to 2026-03-31 (16 days): 160 tasks ended" in text
    assert "200,000.00" in text
    (said,) = values.cost(found)["warnings"]
    assert (said["days"], said["tasks"]) == (16, 160)


def test_a_bill_without_usage_is_unallocated_and_not_refused() -> None:
    found = made(billed(range(31)), [])
    (gap,) = found.findings
    assert (gap.kind, gap.days, gap.amount) == ("bill without usage", 31, 31 * ONE)
    assert (found.totals.borne, found.totals.unallocated) == (0, 31 * ONE)
    assert "31.00 USD of the bill have nobody to bear them" in gap.said("USD", 2)
    assert found.rows == ()


def test_holes_on_both_sides_are_named_apart() -> None:
    used = worked(range(5)) + worked(range(6, 31))
    found = made(billed(range(10)) + billed(range(12, 31)), used)
    assert [(each.kind, each.first.day, each.last.day) for each in found.findings] == [
        ("usage without a bill", 11, 12), ("bill without usage", 6, 6),
    ]  # fmt: skip


def test_a_bill_that_has_months_only_covers_them() -> None:
    fee = Charge(Line("fee"), MARCH.from_us, MARCH.to_us, 31 * ONE, {"tasks": 100})
    assert made([fee], worked(range(31))).findings == ()
    assert findings.uncovered([], MARCH) == frozenset(MARCH.days)


def test_usage_without_any_tenant_is_named_where_tenants_are_asked_for() -> None:
    def found(used: list[Used], *by: str) -> tuple[findings.Finding, ...]:
        charges = billed(range(31))
        return cost.report(charges, used, MARCH, title="t", currency="USD", by=by).findings

    used = worked(range(31))
    (gap,) = found(used, "queue", "tenant")
    assert gap[:5] == ("usage without a tenant", MARCH.days[0], MARCH.days[-1], 31, 310)
    assert found(used, "queue") == ()
    acme = Used(MARCH.days[3], KEY._replace(tenant="acme"), 1, ended=1, attempts=1)
    assert found([*used, acme], "tenant") == ()
    # Without any usage, that is what is said
    assert [each.kind for each in found([], "tenant")] == ["bill without usage"]


def test_the_work_of_too_many_tenants_is_named_with_its_cost() -> None:
    acme, others = (
        Used(day, KEY._replace(tenant=tenant), 1, ended=ended, attempts=ended)
        for day, tenant, ended in ((MARCH.days[0], "acme", 1), (MARCH.days[0], "*", 3))
    )
    charges = billed(range(31))
    made_ = cost.report(charges, [acme, others], MARCH, title="t", currency="USD", by=("tenant",))
    [found] = [each for each in made_.findings if each.kind.startswith("tenants")]
    assert (found.tasks, found.amount) == (3, 3 * ONE // 4)
    assert found.said("USD", 2) == (
        "3 tasks and 0.75 USD are of tenants that were not told apart (the row *): one settlement "
        "tells the first hundred apart."
    )
    by_queue = cost.report(charges, [acme, others], MARCH, title="t", currency="USD", by=("queue",))
    assert not [each for each in by_queue.findings if each.kind == found.kind]


def test_a_purchase_on_a_single_day_is_named() -> None:
    at = MARCH.from_us + 3 * DAY_US
    bought = Charge(Line("db"), at, at, 9 * ONE, {"tasks": 100}, purchase=True)
    spread = Charge(Line("db"), MARCH.from_us, MARCH.to_us, 9 * ONE, {"tasks": 100}, purchase=True)
    nothing = billed(range(31), 0, purchase=True)
    found = made([bought, spread, *nothing], worked(range(31)))
    (one,) = found.findings
    assert (one.kind, one.first.day, one.amount) == ("purchase on single days", 4, 9 * ONE)
    assert one.said("USD", 2).startswith("db was bought on 2026-03-04 for 9.00 USD")
    hourly = billed(range(20), ONE, purchase=True)
    assert all(
        each.kind != "purchase on single days" for each in made(hourly, worked(range(31))).findings
    )
