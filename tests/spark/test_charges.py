"""Charges: from prices and measurements, from bills, and over the days of a report."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from late_spark import charges, focus, importers, money, pricebook
from late_spark.calendar import Calendar
from late_spark.charges import Charge, Line
from late_spark.series import Key, Metrics

from late.errors import ConfigError

UTC = ZoneInfo("UTC")
HOUR = 3_600_000_000
ONE = money.ONE
MARCH = Calendar.of("2026-03", "2026-04", UTC)
LINE = Line("nodes")


def book(*prices: dict[str, object], **more: object) -> pricebook.PriceBook:
    raw = {"version": 1, "name": "test", "currency": "USD", "prices": list(prices), **more}
    return pricebook.check(raw, "prices.yaml")


def hourly(name: str, start: int, values: list[object], **marks: str) -> Metrics:
    return Metrics.of(
        ((Key(name, **marks), start + n * HOUR, Decimal(str(v))) for n, v in enumerate(values)),
        "m.csv",
    )


def test_a_charge_is_divided_over_local_days_by_seconds() -> None:
    # Given a charge of one dollar a second short of three days, from noon before the range
    start = MARCH.from_us - 12 * HOUR
    charge = Charge(LINE, start, start + 48 * HOUR, 48 * ONE, {"tasks": 100})
    # When
    days, outside = charges.by_day([charge], MARCH)
    # Then
    assert [(d.day, d.amount) for d in days] == [
        (date(2026, 3, 1), 24 * ONE),
        (date(2026, 3, 2), 12 * ONE),
    ]
    assert [(o.line, o.amount) for o in outside] == [(LINE, 12 * ONE)]


def test_a_month_of_new_york_takes_the_hours_of_its_month_from_a_utc_bill() -> None:
    # Given a bill of September in UTC, one dollar an hour, and a report of New York's September
    september = Calendar.of("2024-09", "2024-10", ZoneInfo("America/New_York"))
    utc = Calendar.of("2024-09", "2024-10", UTC)
    charge = Charge(LINE, utc.from_us, utc.to_us, 720 * ONE, {})
    days, outside = charges.by_day([charge], september)
    # Then the four hours before New York's midnight are outside, and so says the report
    assert sum(o.amount for o in outside) == 4 * ONE
    assert sum(d.amount for d in days) == 716 * ONE
    assert days[-1].amount == 20 * ONE


def test_a_purchase_at_one_moment_is_on_its_day() -> None:
    at = MARCH.from_us + 5 * HOUR
    days, outside = charges.by_day([Charge(LINE, at, at, 7, {})], MARCH)
    assert [(d.day.day, d.amount) for d in days] == [(1, 7)]
    assert not outside


@pytest.mark.parametrize(
    ("start", "end", "inside"),
    [(-2, -1, False), (-1, 0, False), (-1, 1, True), (-1, 999, True), (743, 744, True),
     (744, 745, False), (-1, -1, False), (0, 0, True), (743, 743, True), (744, 744, False)],
)  # fmt: skip
def test_a_charge_is_within_the_range_if_a_part_of_it_is(
    start: int, end: int, inside: bool
) -> None:
    # Hours of March, which has 744; a purchase or a correction may be for one moment
    charge = Charge(LINE, MARCH.from_us + start * HOUR, MARCH.from_us + end * HOUR, ONE, {})
    assert charges.within(charge, MARCH) is inside
    days, _ = charges.by_day([charge], MARCH)
    assert bool(days) is inside


def test_charges_of_one_line_are_divided_each_in_its_own_way() -> None:
    # Given a line of which a rule ignores a part and two others divide theirs differently
    span = MARCH.from_us, MARCH.from_us + HOUR
    billed = [
        Charge(LINE, *span, 5, {}, "development"),
        Charge(LINE, *span, 7, {"writes": 100}),
        Charge(LINE, *span, 11, {"reads": 60, "busy": 40}),
        Charge(LINE, *span, 13, {"busy": 40, "reads": 60}),
    ]
    # When and then
    days, _ = charges.by_day(billed, MARCH)
    assert [(d.amount, d.drivers, d.reason) for d in days] == [
        (24, {"busy": 40, "reads": 60}, ""), (7, {"writes": 100}, ""), (5, {}, "development"),
    ]  # fmt: skip


def test_a_fee_is_what_its_days_add_up_to() -> None:
    fee = {"line": "net", "unit": "month", "price": "1700"}
    made = charges.priced(book(fee), Metrics(), MARCH, "prices.yaml")
    assert len(made) == 31
    assert charges.total(made) == 1700 * ONE
    assert {charge.amount for charge in made} == {54_838_709_677_419, 54_838_709_677_420}


def test_constant_prices_follow_each_other_and_cost_by_the_hour() -> None:
    prices = [
        {"line": "nodes", "unit": "node_hour", "price": "0.90", "quantity": 2, "to": "2026-03-16"},
        {"line": "nodes", "unit": "node_hour", "price": "1.00", "quantity": 2, "replicas": 3,
         "from": "2026-03-16"},
        {"line": "support", "unit": "month", "price": "310"},
    ]  # fmt: skip
    found = charges.priced(book(*prices), Metrics(), MARCH, "prices.yaml")
    nodes = [c.amount for c in found if c.line.name == "nodes"]
    assert nodes[:15] == [int(43.2 * 10) * ONE // 10] * 15
    assert nodes[15:] == [144 * ONE] * 16
    assert [c.amount for c in found if c.line.name == "support"] == [10 * ONE] * 31


def test_measured_nodes_cost_while_they_are_there() -> None:
    # Given two nodes for 31 days and a third for the first day, hourly samples at the hours' ends
    start = MARCH.from_us + HOUR
    two = hourly("nodes", start, [2] * (31 * 24), resource="a")
    two.add(hourly("nodes", start, [1] * 24, resource="b"))
    price = {"line": "n", "unit": "node_hour", "price": 1, "metric": {"name": "nodes"}}
    # When
    found = charges.priced(book(price), two, MARCH, "prices.yaml")
    # Then the first day has three nodes. The last sample of each is taken to hold for one more
    # step: what was there at the end of an hour may well be there in the next.
    assert [c.amount // ONE for c in found][:3] == [72, 49, 48]


def test_flows_and_storage() -> None:
    start = MARCH.from_us + HOUR
    metrics = hourly("network_out_bytes", start, [10**9] * (31 * 24), region="us")
    metrics.add(hourly("storage_bytes", start, [31 * 2**30] * (31 * 24)))
    prices = [
        {"line": "net", "unit": "gb", "price": "0.12",
         "metric": {"name": "network_out_bytes", "region": "us"}},
        {"line": "disk", "unit": "gib_month", "price": "0.30",
         "metric": {"name": "storage_bytes"}},
    ]  # fmt: skip
    found = charges.priced(book(*prices), metrics, MARCH, "prices.yaml")
    assert {c.amount for c in found if c.line.name == "net"} == {288 * ONE // 100}
    assert {c.amount for c in found if c.line.name == "disk"} == {30 * ONE // 100}


def with_hole(from_day: int, to_day: int) -> Metrics:
    """One node, whose samples are missing between two days."""
    metrics = hourly("nodes", MARCH.from_us, [1] * 24 * from_day)
    later = MARCH.from_us + to_day * 24 * HOUR
    metrics.add(hourly("nodes", later, [1] * 24 * (31 - to_day)))
    return metrics


@pytest.mark.parametrize(
    ("price", "metrics", "said"),
    [
        ({"quantity": 1, "from": "2026-03-02"}, Metrics(), "'n' has no price from 2026-03-01T00"),
        ({"quantity": 1, "to": "2026-03-30"}, Metrics(), "'n' has no price from 2026-03-30T00"),
        ({"metric": {"name": "nodes"}}, Metrics(), "prices.yaml: n: metric nodes: no file"),
        (
            {"metric": {"name": "nodes"}},
            hourly("nodes", MARCH.from_us, [1] * 24 * 10),
            "m.csv has no value from 2026-03-11T00:00:00Z to 2026-03-12",
        ),
        (
            {"metric": {"name": "nodes"}},
            with_hole(10, 20),
            "m.csv has no value from 2026-03-11T02:00:00Z to 2026-03-12T00:00:00Z",
        ),
        (
            {"metric": {"name": "nodes", "region": "us"}},
            hourly("nodes", MARCH.from_us, [1] * 24 * 31, region="eu"),
            r"no line has a price for nodes \(eu\) of m.csv",
        ),
    ],
)
def test_what_has_no_price_or_no_measurement_is_refused(
    price: dict[str, object], metrics: Metrics, said: str
) -> None:
    line = {"line": "n", "unit": "node_hour", "price": 1, **price}
    with pytest.raises(ConfigError, match=said):
        charges.priced(book(line), metrics, MARCH, "prices.yaml")


HEADER = (
    "BilledCost,BillingAccountId,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,"
    "ChargePeriodStart,ChargePeriodEnd,ServiceName,RegionId,Tags\n"
)
MONTH = "2026-03-01 00:00:00,2026-04-01T00:00:00Z"
ROWS = (
    f"10.5,7,USD,{MONTH},2026-03-02 00:00:00,2026-03-03 00:00:00,Cloud Spanner,us,"
    '"{""team"": ""a""}"\n'
    f"-0.5,7,USD,{MONTH},2026-03-02 00:00:00,2026-03-03 00:00:00,Cloud Spanner,NULL,NULL\n"
    f"0.0000004,7,USD,{MONTH},2026-03-02T00:00:00Z,2026-03-02T01:00:00Z,Queue,us,NULL\n"
)
RULES = {
    "bill": {
        "rules": [
            {"line": "team", "match": {"ServiceName": "Cloud*", "Tags.team": "a"}, "share": 40,
             "drivers": {"writes": 100}},
            {"line": "database", "match": {"ServiceName": "Cloud*"}, "drivers": {"bytes": 100}},
        ]
    }
}  # fmt: skip


def bill(tmp_path: Path, text: str, name: str = "bill.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_bill_is_matched_by_rules_and_nothing_of_it_is_dropped(tmp_path: Path) -> None:
    found = focus.load([bill(tmp_path, HEADER + ROWS)], book(**RULES))
    assert [(c.line.name, c.amount, c.reason) for c in found] == [
        ("team", 42 * ONE // 10, ""),
        ("team", 63 * ONE // 10, "60 percent are others', says the price book"),
        ("database", -ONE // 2, ""),
        ("Queue", 400_000, focus.NO_RULE),
    ]
    assert charges.total(found) == 10 * ONE + 400_000


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("BilledCost,", "Cost,", "has no column BilledCost"),
        (",Tags\n", ",Labels\n", "has no column Tags, which a rule wants"),
        ("-0.5,7,USD", "-0.5,7,EUR", r"bill.csv:3: BillingCurrency is EUR.* is in USD"),
        ("-0.5,", "half,", r"bill.csv:3: BilledCost: 'half' is not an amount"),
        ("2026-03-02T01:00:00Z", "tomorrow", "bill.csv:4: ChargePeriodEnd 'tomorrow'"),
        ("2026-03-02T01:00:00Z", "2026-03-01", "bill.csv:4: ChargePeriodEnd .* is before"),
        (",Queue,us,NULL", ",Queue,us", "bill.csv:4 has not as many cells as columns"),
        ("-0.5,", "NULL,", r"bill.csv:3: BilledCost is empty: choose another column"),
        (ROWS, "", "bill.csv has no rows"),
        (HEADER + ROWS, "", "bill.csv is empty"),
    ],
)
def test_a_broken_bill_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = HEADER + ROWS
    assert text.count(old) == 1
    with pytest.raises(ConfigError, match=said):
        focus.load([bill(tmp_path, text.replace(old, new))], book(**RULES))


def test_bills_of_one_period_overlap(tmp_path: Path) -> None:
    first, second = bill(tmp_path, HEADER + ROWS), bill(tmp_path, HEADER + ROWS, "again.csv")
    with pytest.raises(ConfigError, match=r"bill.csv and .*again.csv overlap: .* 2026-03-01"):
        focus.load([first, second], book(**RULES))
    with pytest.raises(ConfigError, match=r"bill.csv is given twice"):
        focus.load([first, first], book(**RULES))
    april = ROWS.replace("2026-03-01 00:00:00,", "2026-04-01 00:00:00,")
    focus.load([first, bill(tmp_path, HEADER + april, "april.csv")], book(**RULES))


def sampled(tmp_path: Path, text: str, *leaders: str) -> dict[Key, list[tuple[str, Decimal]]]:
    path = tmp_path / "metrics.txt"
    path.write_text(text)
    found = importers.load([path], frozenset(leaders))
    from late_spark.calendar import iso

    return {
        key: [(iso(at)[11:16], v) for at, v in zip(s.at_us, s.values, strict=True)]
        for key, s in found.series.items()
    }


def test_plain_metrics(tmp_path: Path) -> None:
    text = (
        "at,metric,value,region\n2026-03-01T00:00:00Z,cpu,0.5,us\n2026-03-01T01:00:00Z,cpu,0.6,eu\n"
    )
    assert sampled(tmp_path, text, "us") == {
        Key("cpu", "us", "leader"): [("00:00", Decimal("0.5"))],
        Key("cpu", "eu", "replica"): [("01:00", Decimal("0.6"))],
    }


def test_cloud_monitoring(tmp_path: Path) -> None:
    series = """{"timeSeries": [
      {"metric": {"type": "spanner.googleapis.com/instance/node_count"},
       "resource": {"type": "spanner_instance", "labels": {"instance_id": "i", "location": "us"}},
       "metricKind": "GAUGE",
       "points": [{"interval": {"endTime": "2026-03-01T01:00:00Z"}, "value": {"int64Value": "3"}}]},
      {"metric": {"type": "spanner.googleapis.com/instance/storage/used_bytes",
                  "labels": {"database": "a"}},
       "resource": {"type": "spanner_instance", "labels": {"instance_id": "i", "location": "us"}},
       "points": [{"interval": {"endTime": "2026-03-01T01:00:00Z"}, "value": {"int64Value": "5"}}]}
    ]}"""
    second = series.replace('"a"', '"b"').replace("node_count", "processing_units")
    assert sampled(tmp_path, f"{series}\n{second}") == {
        Key("nodes", "us", "", "i"): [("01:00", 3)],
        Key("processing_units", "us", "", "i"): [("01:00", 3)],
        Key("storage_bytes", "us", "", "i"): [("01:00", 10)],
    }


def test_cockroach_counters_become_flows_across_a_restart(tmp_path: Path) -> None:
    text = "".join(
        f"cr.node.sql.{what}.count,2026-03-01T0{hour}:00:00Z,1,{value}\n"
        for what, values in (("insert", (100, 150, 20)), ("update", (1, 2, 3)))
        for hour, value in enumerate(values)
    )
    text += "cr.node.liveness.livenodes,2026-03-01T00:00:00Z,1,2\n"
    text += "cr.node.liveness.livenodes,2026-03-01T00:00:00Z,2,3\ncr.node.other,2026-03-01,1,9\n"
    assert sampled(tmp_path, text) == {
        Key("writes", resource="n1"): [("01:00", 51), ("02:00", 21)],
        Key("nodes"): [("00:00", 3)],
    }


def test_postgres(tmp_path: Path) -> None:
    text = (
        "at,datname,xact_commit,tup_fetched,tup_inserted,tup_updated,tup_deleted,storage_bytes\n"
        "2026-03-01 00:00:00+00,shop,10,100,5,1,0,1000\n"
        "2026-03-01 01:00:00+00,shop,30,160,7,1,1,2000\n"
    )
    assert sampled(tmp_path, text) == {
        Key("queries", resource="shop"): [("01:00", 20)],
        Key("reads", resource="shop"): [("01:00", 60)],
        Key("writes", resource="shop"): [("01:00", 3)],
        Key("storage_bytes", resource="shop"): [("00:00", 1000), ("01:00", 2000)],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "no known format"),
        ("at,metric,value\nnow,cpu,1\n", r"metrics.txt:2: at: 'now' is not a time"),
        ("at,metric,value\n2026-03-01,cpu,\n", r"metrics.txt:2: value: '' is not a number"),
        ("at,metric,value\n2026-03-01,cpu,-1\n", "not a measured quantity"),
        ("at,metric,value\n2026-03-01,cpu,1\n2026-03-01,cpu,2\n", "cpu has two values at"),
        ('{"timeSeries": 3}', "is not Cloud Monitoring"),
        ("cr.node.sys.uptime,1\n", "metrics.txt:1: expected name, time"),
    ],
)
def test_broken_metrics_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sampled(tmp_path, text)


def test_files_that_measure_the_same_time_overlap() -> None:
    metrics = hourly("cpu", MARCH.from_us, [1, 1])
    with pytest.raises(ConfigError, match="overlap: both measure cpu at 2026-03-01T01:00"):
        metrics.add(hourly("cpu", MARCH.from_us + HOUR, [1, 1]))
