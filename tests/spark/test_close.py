"""The close of a month: figures recomputed with fractions apart from the code, and its sign-off."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from late_spark import commands
from late_spark.allocation import Key
from late_spark.calendar import Calendar
from late_spark.close import command, signoff
from late_spark.commands import Asked, Source
from late_spark.drivers import Used

from late.errors import ConfigError, StoreError

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
    """What each owner bears in a month, and what nobody does."""
    found: dict[str, Fraction] = defaultdict(Fraction)
    for row in [row for rows in bills().values() for row in rows]:
        day = date.fromisoformat(row["ChargePeriodStart"])
        cost = Fraction(row["EffectiveCost"])
        if day.month != month:
            continue
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
    return found


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A question whose usage is that of `work`, without Spark."""

    def worked(_: Asked, days: Calendar, *__: Any, **___: Any) -> list[Used]:
        return [row for row in work() if days.days[0] <= row.day <= days.days[-1]]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "usage", lambda *_: None)
    monkeypatch.setattr(commands, "work", worked)
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


def read(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((Path("close") / name).read_text().splitlines()))


def test_a_month_stands_beside_the_last_and_the_budget(asked: Asked) -> None:
    made(asked)
    this, last = expected(10), expected(9)
    cent = Fraction(1, 100)
    rows = {row["owner"]: row for row in read("comparison.csv")}
    for owner in OWNERS:
        assert abs(Fraction(rows[owner]["2026-10"]) - this[owner]) < cent
        assert abs(Fraction(rows[owner]["2026-09"]) - last[owner]) < cent
    # The tables add up, to the cent, to what the rows of the bills are
    total = rows.pop("Total")
    for month, wanted in (("2026-10", this), ("2026-09", last)):
        assert sum(Fraction(row[month]) for row in rows.values()) == Fraction(total[month])
        assert abs(Fraction(total[month]) - wanted["total"]) <= cent / 2
        lines = sum(Fraction(row[month]) for row in read("lines.csv"))
        assert abs(lines - wanted["total"]) < Fraction(1, 10**9)
    for row in (*rows.values(), total):
        assert Fraction(row["change"]) == Fraction(row["2026-10"]) - Fraction(row["2026-09"])
    # The month's own budget comes before that of all months; who has one and no cost is there
    assert {name: row["budget"] for name, row in rows.items()} == {
        "growth": "60", "money": "400", "new": "10", "(unallocated)": "",
    }  # fmt: skip
    assert (rows["new"]["2026-10"], rows["new"]["left"]) == ("0", "10")
    assert Fraction(total["left"]) == 500 - Fraction(total["2026-10"])


def test_the_page_has_gaps_corrections_reasons_and_budgets(asked: Asked) -> None:
    done = made(asked)
    text = Path("close/index.html").read_text()
    for said in (
        "No bill from 2026-10-29 to 2026-10-31 (3 days)",
        "No usage on 2026-10-05",
        "2026-09 is restated:",
        "-5.00 came with later bills",
        "The month is over its budget.",
        "Over their budgets: money, growth.",
        "no rule of the price book fits",
        "20 percent are others&#x27;",
        "approved by",
        done.signed.hash,
    ):
        assert said in text, said
    assert [row["what"] for row in read("gaps.csv")] == [
        "usage without a bill", "bill without usage"
    ]  # fmt: skip
    assert [tuple(row.values()) for row in read("corrections.csv")] == [
        ("database", "2026-09", "2026-10", "correction", "-5")
    ]
    left = sum(Fraction(row["cost"]) for row in read("unallocated.csv"))
    this = expected(10)
    assert abs(left - (this["total"] - this["growth"] - this["money"])) < Fraction(1, 10**9)
    # Costs per task leave out the three days without a bill.
    tasks = sum(4 * day for day in range(1, 29) if day != 5)
    each = (this["growth"] + this["money"]) / tasks * 1_000_000
    assert f"{float(round(each * 100)) / 100:,.2f}" in text


def test_run_again_it_is_the_same_or_says_what_changed(asked: Asked) -> None:
    first = made(asked)
    inode = Path("close").stat().st_ino
    again = made(asked)
    assert (again.unchanged, again.signed) == (True, first.signed)
    assert Path("close").stat().st_ino == inode
    # An input that changed is named, and so is what came out otherwise
    Path("10.csv").write_text(Path("10.csv").read_text().replace("1.11", "1.12"))
    with pytest.raises(ConfigError, match=r"another close of 2026-10: input bill 10.csv changed"):
        made(asked)
    assert Path("close").stat().st_ino == inode
    forced = made(replace(asked, force=True))
    assert "input bill 10.csv changed" in forced.changes
    assert "output comparison.csv changed" in forced.changes
    assert not any("usage" in each or "9.csv" in each for each in forced.changes)
    assert forced.signed.hash != first.signed.hash
    # and so is a file that somebody wrote into afterwards
    page = Path("close/index.html")
    page.write_text(page.read_text().replace("growth", "g"))
    Path("close/lines.csv").unlink()
    with pytest.raises(ConfigError, match=r"index.html was altered by hand; lines.csv is gone"):
        made(asked)


def test_the_hash_is_that_of_all_files(asked: Asked) -> None:
    signed = made(asked).signed
    found = {path.relative_to("close") for path in Path("close").rglob("*") if path.is_file()}
    names = {str(path) for path in found} - {"report.json", signoff.FILE}
    assert set(signed.outputs) == names
    assert {name.split()[0] for name in signed.inputs} == {"bill", "price", "budgets", "usage"}
    assert json.loads(Path("close/report.json").read_text())["signoff"] == signed.hash
    hashes = re.findall(r"[0-9a-f]{64}", Path("close/index.html").read_text())
    assert signed.hash in hashes
    assert signoff.PLACE not in hashes


def test_a_first_month_has_nothing_beside_it(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    done = made(replace(asked, bills=[Path("10.csv")]))
    assert done.close.last is None
    assert "Nothing to compare with: 2026-09: no bill of it was given" in done.close.warnings()

    def check(_: Source, days: Calendar) -> None:
        if days.days[0].month == 9:
            raise StoreError("the journal begins later")

    monkeypatch.setattr(Source, "check", check)
    done = made(replace(asked, out=Path("other")))
    assert "Nothing to compare with: 2026-09: the journal begins later" in done.close.warnings()


@pytest.mark.parametrize(
    ("month", "change", "said"),
    [
        ("2026-13", lambda: None, "'2026-13' is no month such as 2026-10"),
        ("2026-10", lambda: Path("budgets.yaml").write_text("version: 1\ntotl: 3\n"),
         "budgets budgets.yaml: .*unknown field `totl`"),
        ("2026-10", lambda: Path("budgets.yaml").write_text("version: 1\ntotal: -3\n"),
         "budgets budgets.yaml: total is negative"),
        ("2026-10", lambda: Path("budgets.yaml").write_text("version: 1\nby: queue\nparts: {q: 1}"),
         "are by queue, and the close is by owner: give --by queue"),
        ("2026-10", lambda: Path("budgets.yaml").unlink(), "budgets budgets.yaml: No such file"),
        ("2026-10", lambda: Path("10.csv").write_text(""), "bill 10.csv is empty"),
    ],
)  # fmt: skip
def test_bad_input_writes_nothing(
    asked: Asked, month: str, change: Callable[[], object], said: str
) -> None:
    change()
    with pytest.raises(ConfigError, match=said):
        made(asked, month)
    assert not Path("close").exists()
    assert not list(Path().glob(".close*"))
