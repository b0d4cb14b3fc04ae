"""What stands beside the sums of a close: the days to come, causes, owners' pages, orders."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from late_spark import commands, money
from late_spark.close import business, command, owner_pages
from late_spark.commands import Asked
from prometheus_client.parser import text_string_to_metric_families

from late.errors import ConfigError
from tests.spark.close_kit import (
    FIRST,
    OWNERS,
    asked,
    closed,
    expected,
    expected_by_day,
    made,
    read,
    work,
)
from tests.spark.xlsx_kit import named

__all__ = ["asked", "closed"]

Closed = tuple[command.Done, Path]

CENT = Fraction(1, 100)
OCTOBER = [date(2026, 10, day) for day in range(1, 29)]
"""The days that the bill covers."""
SEPTEMBER = [FIRST + timedelta(days=n) for n in range(30)]


def total(days: Sequence[date]) -> Fraction:
    by_day = expected_by_day()
    return sum((by_day[day]["total"] for day in days), Fraction(0))


def test_a_month_that_runs_is_forecast_to_its_end(closed: Closed) -> None:
    # Given a bill that grows by a unit a day and ends three days before the month does
    done, folder = closed
    end = done.close.outlook.end
    assert end is not None
    assert (end.days_seen, end.days_left, end.days_before) == (28, 3, 0)
    assert abs(Fraction(end.so_far) - total(OCTOBER)) < CENT
    rest = sum(7 + n + Fraction(n, 1000) + Fraction(1, 3) for n in range(58, 61))
    assert end.end.estimate == pytest.approx(float(total(OCTOBER) + rest), rel=0.02)
    assert end.end.low < end.end.estimate < end.end.high
    rows = {row["owner"]: row for row in read("comparison.csv", folder)}
    for owner in OWNERS:
        assert Fraction(rows[owner]["expected"]) > Fraction(rows[owner]["2026-10"])
    assert Fraction(rows["Total"]["expected"]) == Fraction(done.close.cents(end.end.estimate), 100)
    assert "Where the month will end" in (folder / "index.html").read_text()


def test_a_budget_that_will_not_do_is_said_before_it_is_spent(asked: Asked) -> None:
    # Given 28 days that cost 1,424, and three more of 65
    Path("budgets.yaml").write_text("version: 1\ntotal: 1500\nparts: {growth: 210, money: 5000}\n")
    done = made(asked)
    assert (done.close.total().left or 0) > 0
    assert done.close.warnings()[-2:-1] == ["At its end the month will be over budget, clearly."]
    # The metrics say the same; a part without a budget has none.
    found = {
        (sample.name, sample.labels["part"]): sample.value
        for family in text_string_to_metric_families(Path("close/budgets.prom").read_text())
        for sample in family.samples
    }
    assert {part for _, part in found} == {"Total", "growth", "money"}
    for row in (done.close.total(), *done.close.rows()):
        if row.budget is not None:
            of = row.name[0]
            assert row.expected is not None
            assert found["late_budget_spent_ratio", of] == pytest.approx(row.this / row.budget)
            assert found["late_budget_expected_ratio", of] == pytest.approx(
                row.expected / row.budget
            )
    spent, ends = (found[f"late_budget_{each}_ratio", "growth"] for each in ("spent", "expected"))
    assert spent < 1 < ends
    assert done.close.warnings()[-1] == (
        "At its end the month will be over the budgets of growth "
        f"({spent:.0%} spent, {ends:.0%} expected)."
    )
    # The last day that is known is 28 October, in UTC.
    assert found["late_budget_known_timestamp_seconds", "Total"] == 1_793_232_000


def test_a_month_that_is_over_has_nothing_ahead(asked: Asked) -> None:
    done = made(replace(asked, bills=[Path("9.csv")]), "2026-09")
    assert (done.close.outlook.end, done.close.outlook.daily) == (None, {})
    assert "Where the month will end" not in Path("close/index.html").read_text()


def test_the_day_on_which_the_bill_was_made_is_not_over(asked: Asked) -> None:
    # Given a last day of which the bill has a quarter
    text = Path("10.csv").read_text()
    last = next(line for line in text.splitlines() if "Spanner,2026-10-28" in line)
    Path("10.csv").write_text(
        "\n".join(
            line.replace("2026-10-29", "2026-10-28T06:00:00Z") if ",2026-10-28," in line else line
            for line in text.splitlines()
        )
    )
    assert last
    end = made(asked).close.outlook.end
    assert end is not None
    assert (end.days_seen, end.days_left) == (27, 4)


def test_prices_of_days_to_come_are_not_spent(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a price book alone, an hour at 0.50 and a fee of 310 a month: 22 a day
    today = date(2026, 10, 10)
    monkeypatch.setattr(commands, "work", lambda *_, **__: [r for r in work() if r.day <= today])
    Path("prices.yaml").write_text(
        "version: 1\nname: shop\ncurrency: USD\nprices:\n"
        "- {line: nodes, unit: node_hour, price: 0.5, quantity: 1, drivers: {tasks: 100}}\n"
        "- {line: support, unit: month, price: 310, drivers: {tasks: 100}}\n"
    )
    Path("budgets.yaml").write_text("version: 1\ntotal: 600\n")
    done = command.run(
        replace(asked, bills=[]), "2026-10", "owner", Path("budgets.yaml"),
        now=lambda tz: datetime(2026, 10, 10, 12, tzinfo=tz),
    )  # fmt: skip
    total = done.close.total()
    assert (total.this, total.left) == (10 * 22_00, 380_00)
    assert total.expected == pytest.approx(31 * 22_00, rel=0.01)
    warnings = done.close.warnings()
    assert "At its end the month will be over budget, clearly." in warnings
    assert not [each for each in warnings if "2026-10-31" in each or "is over" in each]


def test_what_moved_the_cost_is_the_number_of_tasks_or_the_cost_of_each(closed: Closed) -> None:
    _, folder = closed
    by_day = expected_by_day()
    rows = {row["queue"]: row for row in read("moved.csv", folder)}
    assert set(rows) == set(OWNERS)
    for owner, share in OWNERS.items():
        # The month runs: 28 days of each are compared. Nobody worked on 5 October.
        was = sum((by_day[day][owner] for day in SEPTEMBER[:28]), Fraction(0))
        now = sum((by_day[day][owner] for day in OCTOBER), Fraction(0))
        tasks = [share * sum(day.day for day in days if day != date(2026, 10, 5))
                 for days in (SEPTEMBER[:28], OCTOBER)]  # fmt: skip
        by_tasks = was * (tasks[1] - tasks[0]) / tasks[0]
        row = {name: Fraction(rows[owner][name]) for name in ("by_tasks", "by_rate", "2026-10")}
        assert abs(row["2026-10"] - now) < Fraction(1, 10**9)
        assert abs(row["by_tasks"] - by_tasks) < Fraction(1, 10**9)
        assert abs(row["by_rate"] - (now - was - by_tasks)) < Fraction(1, 10**9)


def test_unusual_days_and_releases_are_on_the_page(asked: Asked) -> None:
    Path("releases.yaml").write_text("v3: 2026-10-04T12:00:00Z\nv2: 2026-10-16\nv1: 2026-08-01\n")
    done = command.run(asked, "2026-10", "owner", releases=Path("releases.yaml"))
    text = Path("close/index.html").read_text()
    stopped = [each for each in done.close.outlook.unusual if each.kind == "no work"]
    assert {each.queue for each in stopped} == set(OWNERS)
    assert all(each.first == each.last == date(2026, 10, 5) for each in stopped)
    assert all("; v3 was released on 2026-10-04" in each.cause for each in stopped)
    assert [each.name for each in done.close.outlook.released] == ["v3", "v2"]
    assert "releases releases.yaml" in done.signed.inputs
    assert "v3 was released on 2026-10-04" in text
    assert {row["what"] for row in read("gaps.csv")}


def test_each_owner_has_a_page_that_stands_alone(closed: Closed) -> None:
    done, folder = closed
    assert {path.name for path in (folder / "owners").iterdir()} == {"growth.html", "money.html"}
    rows = {row["owner"]: row for row in read("comparison.csv", folder)}
    for owner in OWNERS:
        text = (folder / f"owners/{owner}.html").read_text()
        # It has the very cents of the close, nothing of others, and needs no other file
        assert f"{float(rows[owner]['2026-10']):,.2f}" in text
        assert f"{float(rows[owner]['2026-09']):,.2f}" in text
        assert done.signed.hash in text
        (other,) = set(OWNERS) - {owner}
        assert other not in text
        assert not re.search(r"(?:src|href)=|<script|@import|url\(", text)
    mine = dict(owner_pages.closes(done.close, {}))
    for owner, each in mine.items():
        assert each.total().this == sum(row.this for row in each.rows())
        assert Fraction(each.total().this, 100) == Fraction(rows[owner]["2026-10"])


def test_owners_names_are_no_paths() -> None:
    taken: set[str] = set()
    names = [owner_pages.file_name(each, taken) for each in ("../../etc", "Ops", "ops", "", "ä")]
    assert names == ["etc.html", "Ops.html", "ops-2.html", "owner.html", "owner-2.html"]


def test_the_workbook_has_charts_and_a_table_whose_sum_is_the_month(closed: Closed) -> None:
    done, folder = closed
    path = folder / "cost.xlsx"
    names, *rows = named(path, "Data")
    assert names == ["day", "owner", "queue", "task", "tenant", "line", "cost"]
    by_owner: dict[str, Fraction] = {}
    for row in rows:
        by_owner[row[1]] = by_owner.get(row[1], Fraction(0)) + Fraction(row[6])
    assert round(sum(by_owner.values()) * 100) == done.close.total().this
    for owner in OWNERS:
        # Each of some sixty cells is rounded by less than a cent
        assert abs(by_owner[owner] - expected(10)[owner]) < CENT * 60
    with zipfile.ZipFile(path) as book:
        files = book.namelist()
        assert 'name="costs"' in book.read("xl/tables/table1.xml").decode()
    assert len([name for name in files if name.startswith("xl/charts/chart")]) == 2
    assert [row[0] for row in named(path, "Close")][-1] == "Total"
    assert named(path, "Unusual days")[1][2] in OWNERS


def orders(tenants: Sequence[str] = ("",)) -> dict[tuple[date, str], int]:
    """Orders by day and tenant; none is known of 7 October, and none were made on the 8th."""
    return {
        (day, tenant): 0 if day == date(2026, 10, 8) else (day.day + 10) * (at + 1)
        for day in (*SEPTEMBER, *OCTOBER)
        for at, tenant in enumerate(tenants)
        if day != date(2026, 10, 7)
    }


def test_the_cost_of_an_order_is_all_cost_by_all_orders_of_the_days_with_both(
    asked: Asked,
) -> None:
    counted = orders()
    lines = [f"{day},{count},{count / 4}" for (day, _), count in counted.items()]
    Path("orders.csv").write_text("\n".join(["day,orders,trips", *lines]))
    done = command.run(asked, "2026-10", "owner", business=[Path("orders.csv")])
    rows = {row["counted"]: row for row in read("business.csv")}
    for name, factor in (("orders", Fraction(1)), ("trips", Fraction(1, 4))):
        for month, column in ((OCTOBER, "each"), (SEPTEMBER, "each_2026-09")):
            days = [day for day in month if (day, "") in counted]
            wanted = total(days) / (sum(counted[day, ""] for day in days) * factor)
            assert abs(Fraction(rows[name][column]) - wanted) < Fraction(2, 10**12)
    assert "orders.csv has no orders of 2026-10-07: cost for each leaves that out." in (
        done.close.warnings()
    )
    # A day without orders costs as well, and has no point in the chart
    daily = done.close.business[0][1][0].daily
    assert date(2026, 10, 8) not in daily
    assert len(daily) == len(counted) - 1
    assert "Cost for each: orders" in Path("close/index.html").read_text()
    assert "business orders.csv" in done.signed.inputs


def test_an_order_of_a_tenant_costs_what_the_tenant_bears(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an owner who is a tenant each, so that what a tenant bears is known
    worked = [replace(row, key=row.key._replace(tenant=row.key.owner)) for row in work()]
    monkeypatch.setattr(
        commands, "work", lambda _, days, *__, **___: [r for r in worked if r.day in days.days]
    )
    counted = orders(tuple(OWNERS))
    lines = [f"{day},{tenant},{count}" for (day, tenant), count in counted.items()]
    Path("orders.csv").write_text("\n".join(["day,tenant,orders", *lines]))
    command.run(asked, "2026-10", "owner,tenant", business=[Path("orders.csv")])
    rows = {row["tenant"]: row for row in read("business.csv")}
    assert set(rows) == {"(all)", *OWNERS}
    by_day, days = expected_by_day(), [day for day in OCTOBER if day != date(2026, 10, 7)]
    for tenant in OWNERS:
        amount = sum((by_day[day][tenant] for day in days), Fraction(0))
        wanted = amount / sum(counted[day, tenant] for day in days)
        assert abs(Fraction(rows[tenant]["each"]) - wanted) < Fraction(1, 10**9)
    with pytest.raises(ConfigError, match=r"is by tenant, and the close is not: give --by owner"):
        command.run(asked, "2026-10", "owner", business=[Path("orders.csv")])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "--business o.csv: No such file"),
        ("", "--business o.csv: the first line names the columns: day, perhaps tenant"),
        ("day\n2026-10-01\n", "--business o.csv: the first line names the columns"),
        ("at,orders\n2026-10-01,1\n", "--business o.csv: the first line names the columns"),
        ("day,orders,orders\n", "--business o.csv: the first line names the columns"),
        ("day,[x]\n2026-10-01,1\n", "--business o.csv: the first line names the columns"),
        ("day,orders\n", "--business o.csv has no rows: export it again"),
        ("day,orders\n2026-10-01,1,2\n", "o.csv:2 has not as many cells as columns"),
        ("day,orders\nmonday,1\n", "o.csv:2: 'monday' is no day such as 2026-10-01"),
        ("day,orders\n2026-10-01,many\n", "o.csv:2: orders: 'many' is not a number"),
        ("day,orders\n2026-10-01,nan\n", "o.csv:2: orders: 'nan' is not a number"),
        ("day,orders\n2026-10-01,-1\n", "o.csv:2: orders: -1 is below zero"),
        ("day,orders\n2026-10-01,1\n2026-10-01,1\n", "o.csv:3 has 2026-10-01 .*a second time"),
        (b"\xff\xfe", "--business o.csv is no CSV: export it again"),
    ],
)
def test_a_bad_file_of_orders_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes | None, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("o.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=said) as found:
        business.load([Path("o.csv")], by_tenant=False)
    assert "\n" not in str(found.value)


def test_two_files_do_not_count_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = [Path("p.csv"), Path("q.csv")]
    for path in files:
        path.write_text("day,orders\n2026-10-01,1\n")
    with pytest.raises(ConfigError, match=r"q\.csv and p\.csv both count orders: give one"):
        business.load(files, by_tenant=False)


def test_amounts_of_an_owner_add_up_to_the_close(closed: Closed) -> None:
    done, _ = closed
    whole = done.close.this
    parts = [each.this for _, each in owner_pages.closes(done.close, {})]
    assert sum(cost.amount for part in parts for cost in part.costs) == whole.totals.borne
    assert sum(part.total_cents for part in parts) == whole.borne_cents
    assert all(part.totals.borne % (money.ONE // 100) == 0 for part in parts)
