"""Bills as clouds deliver them: kinds of files, parts, versions, and exports of other columns."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from late_spark import charges, focus, focus_split, money, pricebook
from late_spark.bills import files, reader

from late.errors import ConfigError

ONE = money.ONE
HEAD = (
    "BilledCost,EffectiveCost,BillingAccountId,BillingCurrency,BillingPeriodStart,"
    "BillingPeriodEnd,ChargePeriodStart,ChargePeriodEnd,ChargeClass,ServiceName,ProviderName,"
    "ResourceId,Tags"
)
PERIOD = "2026-03-01 00:00:00,2026-04-01 00:00:00"


def lines(days: range, *, kind: str = "", period: str = PERIOD) -> list[str]:
    return [
        f'0.{day:02}0000004,0.0{day:02}5,7,USD,{period},2026-03-{day:02} 00:00:00,'
        f'2026-03-{day:02} 01:00:00,{kind},Queue,AWS,r-{day},"{{""team"": ""a""}}"'
        for day in days
    ]  # fmt: skip


def text(days: range, **more: Any) -> str:
    return "\n".join([HEAD, *lines(days, **more)]) + "\n"


def book(**bill: object) -> pricebook.PriceBook:
    rules = [{"line": "q", "match": {"Tags.team": "a"}, "drivers": {"tasks": 100}}]
    raw = {"version": 1, "name": "t", "currency": "USD", "bill": {"rules": rules, **bill}}
    return pricebook.check(raw, "prices.yaml")


def as_parquet(source: Path, target: Path, **types: pa.DataType) -> None:
    """As a cloud writes it: costs are doubles, times are times, tags a map."""
    table = pyarrow.csv.read_csv(source)
    tags = [list(json.loads(each).items()) for each in table["Tags"].to_pylist()]
    made = pa.array(tags, pa.map_(pa.string(), pa.string()))
    table = table.set_column(table.schema.get_field_index("Tags"), "Tags", made)
    assert table.schema.field("BilledCost").type == pa.float64()
    assert pa.types.is_timestamp(table.schema.field("ChargePeriodStart").type)
    pq.write_table(table, target)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "bill.csv"
    path.write_text(text(range(1, 21)))
    return path


def test_every_kind_of_file_gives_the_same_charges(whole: Path, tmp_path: Path) -> None:
    # Given one bill as CSV, and exactly what its text says
    wanted = focus.load([whole], book())
    exact = sum(Fraction(f"0.0{day:02}5") for day in range(1, 21))
    assert Fraction(charges.total(wanted), ONE) == exact
    assert {charge.line.name for charge in wanted} == {"q"}
    # When it comes packed, as Parquet, or by lines of JSON
    packed = tmp_path / "bill.csv.gz"
    packed.write_bytes(gzip.compress(whole.read_bytes()))
    zstd = tmp_path / "bill.csv.zst"
    with pa.output_stream(str(zstd), compression="zstd") as out:
        out.write(b"\xef\xbb\xbf" + whole.read_bytes())
    as_parquet(whole, tmp_path / "bill.parquet")
    rows = pq.read_table(tmp_path / "bill.parquet").to_pylist()
    by_line = tmp_path / "bill.json"
    by_line.write_text(
        "".join(json.dumps(row | {"Tags": dict(row["Tags"])}, default=str) + "\n" for row in rows)
    )
    # Then all of them are the same
    for path in (packed, zstd, tmp_path / "bill.parquet", by_line):
        assert focus.load([path], book()) == wanted, path
    # and so is the bill in parts, of which a list lies beside them
    parts = tmp_path / "delivery" / "BILLING_PERIOD=2026-03"
    parts.mkdir(parents=True)
    for number, days in enumerate((range(1, 8), range(8, 16), range(16, 21))):
        part = tmp_path / f"part{number}.csv"
        part.write_text(text(days))
        as_parquet(part, parts / f"part-{number}.snappy.parquet")
    (parts / "bill-Manifest.json").write_text("{}")
    assert focus.load([parts.parent], book()) == wanted
    assert len(files.every([parts.parent])) == 3


def test_corrections_of_a_period_may_come_by_themselves(whole: Path, tmp_path: Path) -> None:
    later = tmp_path / "corrections.csv"
    later.write_text(text(range(3, 5), kind="Correction"))
    found = focus.load([whole, later], book())
    assert sum(charge.correction for charge in found) == 2
    later.write_text(text(range(3, 5)))
    with pytest.raises(ConfigError, match=r"bill.csv and .*corrections.csv overlap: .*2026-03-01"):
        focus.load([whole, later], book())


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("b.csv", b"", "bill .*b.csv is empty"),
        ("l.csv", b"x\nM\xfcller\n", "l.csv:2 is not UTF-8: save the file as `CSV UTF-8`"),
        ("b.png", b"\x89PNG\r\n\x1a\n\0\0", "b.png is no bill: neither CSV nor JSON nor Parquet"),
        ("b.txt", b"Dear customer,\nthank you\n", "b.txt has no column BillingAccountId: is it"),
        ("b.zip", b"PK\x03\x04 and more", "b.zip is a ZIP archive: unpack it"),
        ("b.parquet", b"PAR1 and no end", "b.parquet is damaged or its end is missing: fetch"),
        ("b.csv.gz", gzip.compress(text(range(1, 29)).encode())[:150], "b.csv.gz is damaged or"),
        ("b.csv", b"lineItem/LineItemType,bill/BillType\n", "is a legacy CUR of AWS: export CUR 2"),
        ("b.csv", HEAD.replace("Tags", "ResourceId").encode(), "has two columns 'ResourceId'"),
    ],
)  # fmt: skip
def test_what_is_no_bill_is_one_line(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as raised:
        focus.load([path], book())
    assert "\n" not in str(raised.value)


def test_another_encoding_is_told_where_it_shows(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_bytes(b"x\n" + b"a\n" * 500_000 + b"M\xfcller\n")
    with pytest.raises(ConfigError, match=r"m\.csv:500002 is not UTF-8"):
        list(reader.rows(reader.table(path)))


def test_parts_that_have_the_same_rows_overlap(tmp_path: Path) -> None:
    folder = tmp_path / "bill"
    folder.mkdir()
    (folder / "a.csv").write_text(text(range(1, 11)))
    (folder / "b.csv").write_text(text(range(4, 14)))
    with pytest.raises(ConfigError, match=r"a.csv and .*b.csv overlap: 7 rows are in both"):
        focus.load([folder], book())
    (folder / "a.csv").unlink()
    (folder / "b.csv").unlink()
    with pytest.raises(ConfigError, match=r"bill is a folder without files"):
        focus.load([folder], book())


def test_a_bill_of_another_account_is_refused(whole: Path) -> None:
    assert focus.load([whole], book(accounts=["7", "8"]))
    with pytest.raises(ConfigError, match=r"bill.csv:2: BillingAccountId is 7, and .* takes 8"):
        focus.load([whole], book(accounts=["8"]))


def test_effective_cost_is_what_is_divided_unless_told_or_missing(whole: Path) -> None:
    first = focus.load([whole], book())[0]
    assert (first.amount, first.invoiced) == (15 * ONE // 10_000, 10_000_004_000)
    assert focus.load([whole], book(cost="BilledCost"))[0].amount == first.invoiced
    whole.write_text(text(range(1, 21)).replace("EffectiveCost", "Effective"))
    assert focus.load([whole], book())[0].amount == first.invoiced


def test_focus_1_3_names_the_provider_anew_and_has_its_own_division(
    whole: Path, tmp_path: Path
) -> None:
    content = text(range(1, 3)).replace("ProviderName", "ServiceProviderName")
    content = content.replace("ResourceId", "AllocatedResourceId")
    whole.write_text(content)
    rules = [{"line": "aws", "match": {"ProviderName": "AWS"}}]
    found = focus.load([whole], book(rules=rules))
    assert {charge.line.name for charge in found} == {"aws"}
    names = focus_split.columns_of([whole])
    assert "x_ProviderAllocatedResourceId" in names
    assert not {*names} & {*focus_split.ADDED}


GOOGLE = {
    "billing_account_id": "01-02", "service": {"id": "S", "description": "Cloud Spanner"},
    "sku": {"id": "K", "description": "Node"}, "usage_start_time": "2026-03-31 23:00:00 UTC",
    "usage_end_time": "2026-04-01 00:00:00 UTC", "project": {"id": "p", "name": "Shop"},
    "labels": [{"key": "team", "value": "a"}], "location": {"region": "us-east1"},
    "cost": 1.25, "currency": "USD", "cost_type": "regular",
    "usage": {"amount": 3600.0, "unit": "seconds"},
    "credits": [{"name": "CUD", "amount": -0.25}, {"name": "Free", "amount": -0.1}],
    "invoice": {"month": "202603"}, "resource": {"name": "db", "global_name": "//spanner/db"},
    "adjustment_info": {"id": "", "type": ""},
}  # fmt: skip


@pytest.mark.parametrize("detailed", [False, True])
def test_exports_of_google_count_credits_and_name_corrections(
    tmp_path: Path, detailed: bool
) -> None:
    plain = {key: value for key, value in GOOGLE.items() if detailed or key != "resource"}
    corrected = plain | {
        "cost": -5.0, "credits": [], "labels": [], "cost_type": "adjustment",
        "invoice": {"month": "202604"}, "adjustment_info": {"id": "x", "type": "USAGE_CORRECTION"},
    }  # fmt: skip
    path = tmp_path / "export.parquet"
    pq.write_table(pa.Table.from_pylist([plain, corrected]), path)
    by_line = tmp_path / "export.json"
    by_line.write_text(json.dumps(plain) + "\n" + json.dumps(corrected) + "\n")
    found = focus.load([path], book())
    assert focus.load([by_line], book()) == found
    assert [(c.line.name, c.amount, c.correction) for c in found] == [
        ("q", ONE * 9 // 10, False), ("Cloud Spanner", -5 * ONE, True),
    ]  # fmt: skip
    # Its months are those of California, where it is the hour after 16:00 of March 31
    first, second = found
    assert first.period is not None
    assert second.period is not None
    assert first.period[1] == second.period[0] == first.end_us + 7 * 3_600_000_000
    row = next(focus.rows(path, book()))[1]
    assert (row["ResourceId"], row["RegionId"]) == ("//spanner/db" * detailed, "us-east1")
    assert Decimal(row["ListCost"]) == Decimal("1.25")


def aws(kind: str, unblended: float, **more: object) -> dict[str, object]:
    return {
        "bill_payer_account_id": "9", "bill_billing_period_start_date": "2026-03-01 00:00:00",
        "bill_billing_period_end_date": "2026-04-01 00:00:00", "line_item_currency_code": "USD",
        "line_item_line_item_type": kind, "line_item_unblended_cost": unblended,
        "line_item_usage_start_date": "2026-03-02 00:00:00",
        "line_item_usage_end_date": "2026-03-02 01:00:00", "line_item_product_code": "AmazonRDS",
        "product": [("product_name", "Amazon RDS")], "resource_tags": [("team", "a")],
        "reservation_effective_cost": 0.0, "savings_plan_savings_plan_effective_cost": 0.0,
        "savings_plan_total_commitment_to_date": 0.0, "savings_plan_used_commitment": 0.0,
        "reservation_unused_amortized_upfront_fee_for_billing_period": 0.0,
        "reservation_unused_recurring_fee": 0.0, "reservation_reservation_a_r_n": "", **more,
    }  # fmt: skip


def test_cur_2_of_aws_is_amortised(tmp_path: Path) -> None:
    rows = [
        aws("Usage", 1.5),
        aws("Fee", 876.0, reservation_reservation_a_r_n="arn:1"),
        aws("DiscountedUsage", 0.0, reservation_effective_cost=0.1),
        aws("RIFee", 3.0, reservation_unused_amortized_upfront_fee_for_billing_period=0.2,
            reservation_unused_recurring_fee=0.3),
        aws("SavingsPlanCoveredUsage", 2.0, savings_plan_savings_plan_effective_cost=1.2),
        aws("SavingsPlanNegation", -2.0),
        aws("SavingsPlanRecurringFee", 1.3, savings_plan_total_commitment_to_date=1.3,
            savings_plan_used_commitment=1.2),
        aws("SavingsPlanUpfrontFee", 100.0),
        aws("Tax", 0.7),
        aws("Refund", -0.5),
    ]  # fmt: skip
    maps = pa.map_(pa.string(), pa.string())
    kinds = {"product": maps, "resource_tags": maps}
    table = pa.table({
        name: pa.array([row[name] for row in rows], kinds.get(name)) for name in rows[0]
    })  # fmt: skip
    pq.write_table(table, tmp_path / "cur.parquet")
    found = focus.load([tmp_path / "cur.parquet"], book())
    amounts = ["1.5", "0", "0.1", "0.5", "1.2", "0", "0.1", "0", "0.7", "-0.5"]
    assert [money.decimal(c.amount) for c in found] == [Decimal(text) for text in amounts]
    assert sum(Fraction(c.invoiced, ONE) for c in found) == Fraction("982")
    assert [c.purchase for c in found].count(True) == 4
    assert {c.line.service for c in found} == {"Amazon RDS"}
    assert found[-1].correction
