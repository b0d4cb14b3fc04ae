"""`focus.csv`: the bill's own rows, divided, and each of their sums as the bill has it."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from late_spark import charges, cost, focus, focus_split, money, pricebook
from late_spark.allocation import Key
from late_spark.calendar import Calendar
from late_spark.drivers import Used

from late.errors import ConfigError
from tests.spark.usage_kit import BERLIN

DAYS = Calendar.of("2026-03-28", "2026-03-31", BERLIN)
FIRST, SECOND, _ = DAYS.days
USED = [
    Used(FIRST, Key("g", "mail", "send", "", "growth"), 1, ended=3, attempts=3),
    Used(FIRST, Key("g", "pay", "charge", "=acme", "money"), 1, ended=1, attempts=1),
    Used(SECOND, Key("g", "pay", "charge", "=acme", "money"), 1, ended=5, attempts=5),
]
COLUMNS = (
    "BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "ConsumedQuantity",
    "BillingAccountId", "BillingCurrency", "BillingPeriodStart", "BillingPeriodEnd",
    "ChargePeriodStart", "ChargePeriodEnd", "ChargeCategory", "ProviderName", "ServiceName",
)  # fmt: skip
OF = "7,USD,2026-03-01 00:00:00,2026-04-01 00:00:00"
DAY = "2026-03-27 23:00:00,2026-03-28 23:00:00"
BILL = (
    f"8,4,16,10,8.5,{OF},{DAY},Usage,AWS,Database\n"
    f"-1,0,NULL,-1,NULL,{OF},{DAY},Credit,AWS,Database\n"
    f"3,3,3,3,1,{OF},2026-03-27 23:00:00,2026-03-29 22:00:00,Usage,GCP,Database\n"
    f"7,7,7,7,1,{OF},2026-03-01 00:00:00,2026-03-02 00:00:00,Usage,AWS,Database\n"
    f"2,2,2,2,1,{OF},{DAY},Tax,AWS,Support\n"
    f"0,0,0,0,0,{OF},{DAY},Usage,AWS,Database\n"
)
BOOK = """
version: 1
name: production
currency: USD
time_zone: Europe/Berlin
bill:
  rules:
  - {line: database, match: {ServiceName: Database}, share: 50, drivers: {tasks: 100}}
"""


def book(tmp_path: Path) -> pricebook.PriceBook:
    path = tmp_path / "prices.yaml"
    path.write_text(BOOK)
    return pricebook.load(path)


def divided(tmp_path: Path, text: str, by: str = "owner") -> list[dict[str, str]]:
    bill = tmp_path / "bill.csv"
    bill.write_text(",".join(COLUMNS) + "\n" + text)
    prices = book(tmp_path)
    report = cost.report(
        focus.load([bill], prices), USED, DAYS, title="t", currency="USD", by=cost.dimensions(by)
    )
    out = tmp_path / "focus.csv"
    origins = focus_split.of_bills([bill], prices)
    written = focus_split.write(report, origins, focus_split.columns_of([bill]), out)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert written == len(rows)
    return rows


def total(rows: Sequence[Mapping[str, str]], column: str) -> Decimal:
    return sum((Decimal(row[column]) for row in rows if row[column]), Decimal(0))


def test_every_column_adds_up_to_that_of_the_bill(tmp_path: Path) -> None:
    rows = divided(tmp_path, BILL)
    sums = {"BilledCost": 19, "EffectiveCost": 16, "ListCost": 28, "ContractedCost": 21}
    assert {column: total(rows, column) for column in sums} == sums
    assert total(rows, "ConsumedQuantity") == Decimal("11.5")


def test_what_is_no_amount_stays_as_it_is(tmp_path: Path) -> None:
    rows = divided(tmp_path, BILL)
    assert {(row["ChargeCategory"], row["ProviderName"]) for row in rows} == {
        ("Usage", "AWS"), ("Credit", "AWS"), ("Usage", "GCP"), ("Tax", "AWS")
    }  # fmt: skip
    assert {row["ListCost"] for row in rows if row["ChargeCategory"] == "Credit"} == {""}
    assert {row["ChargePeriodEnd"] for row in rows if row["ProviderName"] == "GCP"} == {
        "2026-03-29 22:00:00"
    }
    assert {row["AllocatedMethodId"] for row in rows} == {focus_split.METHOD}


def test_a_row_is_divided_by_the_work_of_its_days(tmp_path: Path) -> None:
    rows = divided(tmp_path, BILL)
    # Half of 8 USD is others'; three of four tasks of the day were growth's.
    assert {
        row["AllocatedResourceId"]: (row["BilledCost"], row["EffectiveCost"])
        for row in rows
        if row["ListCost"] and Decimal(row["ChargePeriodEnd"][8:10]) == 28 and
        row["ChargeCategory"] == "Usage" and Decimal(row["BilledCost"])
    } == {"growth": ("3", "1.5"), "money": ("1", "0.5"), "unallocated": ("4", "2")}  # fmt: skip
    # 24 of its 47 hours were on a day of both, 23 on one of money's alone.
    found = {
        row["AllocatedResourceId"]: Decimal(row["BilledCost"])
        for row in rows
        if row["ProviderName"] == "GCP"
    }
    assert found["growth"] == pytest.approx(Decimal("1.5") * 24 / 47 * 3 / 4, abs=Decimal("1e-9"))
    assert found["unallocated"] == Decimal("1.5")


def test_it_says_why_nobody_bears_a_part(tmp_path: Path) -> None:
    rows = divided(tmp_path, BILL)
    reasons = {
        json.loads(row["AllocatedTags"])["unallocated"]
        for row in rows
        if row["AllocatedResourceId"] == "unallocated"
    }
    assert reasons == {
        "50 percent are others', says the price book", focus.NO_RULE, focus_split.OUTSIDE
    }  # fmt: skip


def test_a_row_without_any_cost_stays_once(tmp_path: Path) -> None:
    rows = divided(tmp_path, BILL)
    assert sum(not Decimal(row["BilledCost"]) and bool(row["ListCost"]) for row in rows) == 1


def test_a_strangers_name_is_no_formula(tmp_path: Path) -> None:
    names = {row["AllocatedResourceId"] for row in divided(tmp_path, BILL, "tenant")}
    assert names == {"'=acme", "(none)", "unallocated"}


def test_a_number_that_is_none_names_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bill.csv:2: ListCost: 'much' is not a number"):
        divided(tmp_path, BILL.replace("8,4,16,", "8,4,much,", 1))


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=14, min_value=-(10**20),
                max_value=10**20),
    st.lists(st.integers(0, 10**20), min_size=1, max_size=9).filter(any),
)  # fmt: skip
def test_parts_of_a_number_add_up_to_it(value: Decimal, weights: list[int]) -> None:
    parts = focus_split.split_number(str(value), weights, "x")
    assert sum(map(Fraction, parts)) == Fraction(value)


def test_without_a_bill_the_rows_are_the_price_books(tmp_path: Path) -> None:
    line = charges.Line("nodes", "Cloud Spanner", "eu")
    billed = [charges.Charge(line, DAYS.from_us, DAYS.to_us, 71 * money.ONE, {"tasks": 100})]
    report = cost.report(billed, USED, DAYS, title="t", currency="USD", by=["owner"])
    out = tmp_path / "focus.csv"
    focus_split.write(report, focus_split.of_prices(billed, report), focus_split.PRICED, out)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert total(rows, "BilledCost") == 71
    assert total(rows, "PricingQuantity") == 1
    assert {row["ServiceName"] for row in rows} == {"Cloud Spanner"}
    # All columns that the FOCUS project's validator demands, a price for each unit among them.
    assert rows[0].keys() >= {
        "CommitmentDiscountCategory", "CommitmentDiscountId", "CommitmentDiscountName",
        "CommitmentDiscountStatus", "CommitmentDiscountType", "PricingCategory",
    }  # fmt: skip
    for price in ("ListUnitPrice", "ContractedUnitPrice"):
        assert sum(Fraction(row[price]) * Fraction(row["PricingQuantity"]) for row in rows) == 71
