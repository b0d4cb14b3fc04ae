"""The cost of an order that handlers count: from `ctx.count` to the close, on both engines."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from late_spark import lake, lake_files, money
from late_spark.calendar import Calendar
from late_spark.close import command, counted
from late_spark.commands import Asked
from late_spark.export import export
from late_spark.place import Source
from sqlalchemy import update

import late
from late.errors import ConfigError
from late.schema.engine import make_engine, writing
from late.schema.tables import settlement
from late.testing import drain
from tests.integration.shared_kit import enqueue
from tests.spark import kit
from tests.spark.conftest import Related
from tests.spark.usage_kit import BERLIN, row
from tests.unit.cli_kit import Cli, cli

__all__ = ["cli"]

PRICES = """
version: 1
name: shop
currency: USD
time_zone: UTC
prices:
- {line: nodes, unit: node_hour, price: 1, quantity: 1, drivers: {tasks: 100}}
"""
NOON_US = int(datetime(2026, 10, 5, 12, tzinfo=UTC).timestamp()) * 1_000_000
MARCH = Calendar.of("2026-03", "2026-04", BERLIN)
ROWS = [
    row("2026-03-02T12:00:00Z", "q", "n", "done", 5, tenant="acme", counts={"orders": 4}),
    row("2026-03-02T13:00:00Z", "q", "n", "done", 5, tenant="globex",
        counts={"orders": 3, "trips": 1}),
    # Half past midnight in Berlin.
    row("2026-03-03T23:30:00Z", "q", "m", "done", 5, tenant="acme", counts={"orders": 2}),
    row("2026-03-06T12:00:00Z", "q", "m", "done", 5, counts={"orders": 1}),
    row("2026-03-07T12:00:00Z", "q", "m", "done", 5, counts=None),
    row("2026-04-07T12:00:00Z", "q", "m", "done", 5, counts={"orders": 9}),
]  # fmt: skip


def test_counts_are_added_up_by_day_and_tenant(related: Related) -> None:
    usage = related(ROWS)
    [orders, trips] = counted.load(usage, MARCH, ["orders", "trips"], by_tenant=False)
    values = {day.day: sum(of.values()) for day, of in orders.values.items()}
    assert [values[day] for day in range(2, 8)] == [7, 0, 2, 0, 1, 0]
    assert sorted(values) == list(range(2, 32))  # before the first one, nothing is known
    assert sum(sum(of.values()) for of in trips.values.values()) == 1
    [by_tenant] = counted.load(usage, MARCH, ["orders"], by_tenant=True)
    of_day = {day.day: of for day, of in by_tenant.values.items()}
    assert of_day[2] == {"acme": 4, "globex": 3}
    assert of_day[4] == {"acme": 2}
    with pytest.raises(ConfigError, match=r"no handler has counted it; counted: orders, trips"):
        counted.load(usage, MARCH, ["users"], by_tenant=False)
    with pytest.raises(ConfigError, match="give each name once"):
        counted.load(usage, MARCH, ["trips", "trips"], by_tenant=False)


def test_handlers_count_and_the_close_says_what_an_order_costs(cli: Cli) -> None:
    # Given handlers that have counted 12 orders, in a month that is over
    app = late.App(cli.url)

    @app.task(queue="shop", transaction=True)
    def order(ctx: late.Context, items: int) -> None:
        ctx.count("orders")
        ctx.count("items", items)

    enqueue(app, [order.call(items=n) for n in range(12)])
    assert drain(app) == {"done": 12}
    engine = make_engine(cli.url)
    with writing(engine) as connection:
        connection.execute(update(settlement).values(settled_at_us=NOON_US))
    engine.dispose()
    # When the month is closed
    Path("prices.yaml").write_text(PRICES)
    asked = ("close", "2026-10", "--prices", "prices.yaml", "--counted", "orders", "--counted",
             "items")  # fmt: skip
    ended = cli(*asked, "--out", "close")
    assert ended.code == 0, ended.err
    # Then from the first order on, 27 days of 24 USD are shared by 12 orders and 66 items
    table = Path("close/business.csv").read_text().splitlines()
    rows = {each["counted"]: each for each in csv.DictReader(table)}
    assert Fraction(rows["orders"]["cost"]) == 27 * 24
    assert Fraction(rows["orders"]["each"]) == 27 * 24 / 12
    assert Fraction(rows["items"]["count"]) == sum(range(12))
    assert "the journal has no orders of 4 days, 2026-10-01 the first" in ended.err
    assert "Cost for each: orders" in Path("close/index.html").read_text()
    # And from the lake it is the same, with the same sign-off
    export(cli.url, Path("lake"))
    again = cli(*asked, "--lake", "lake", "--out", "again")
    assert again.code == 0, again.err
    assert Path("again/business.csv").read_bytes() == Path("close/business.csv").read_bytes()
    # In a month that runs, the days to come are no cost of an order yet, and are forecast
    running = command.run(
        Asked(source=Source(url=cli.url), from_="", to="", prices=Path("prices.yaml"),
              out=Path("running")),
        "2026-10", "owner", counted=["orders"],
        now=lambda zone: datetime(2026, 10, 6, 9, tzinfo=zone),
    )  # fmt: skip
    [(_, (orders,))] = running.close.business
    assert (orders.amount, orders.counted) == (2 * 24 * money.ONE, Fraction(12))
    assert running.close.outlook.end is not None
    # A file that counts the same is refused
    Path("orders.csv").write_text("day,orders\n2026-10-05,1\n")
    both = cli(*asked, "--business", "orders.csv", "--out", "both")
    assert (both.code, "both count orders: give one of them" in both.err) == (2, True)


def test_compaction_of_journal_and_lake_keeps_every_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lake with a file of a version that did not count, and files that do
    url = kit_url(tmp_path)
    monkeypatch.setattr(lake_files, "COMPACT_FILES", 99)
    for seq in range(1, 5):
        kit.write(url, [kit.settled(seq, [kit.done(1, counts=(("orders", 10**seq),))])])
        export(url, tmp_path / "lake")
    manifest = lake.load(tmp_path / "lake")
    assert manifest is not None
    old = tmp_path / "lake" / manifest.files[0].path
    table = pq.read_table(old, partitioning=None)
    pq.write_table(table.drop_columns(["counts"]), old)
    # When its small files are put together
    monkeypatch.setattr(lake_files, "COMPACT_FILES", 2)
    newer, gone = lake_files.compacted(tmp_path / "lake", manifest)
    # Then the counts are there, and none is made up
    assert gone == 4
    found = pq.read_table(tmp_path / "lake" / newer.files[0].path, partitioning=None)
    assert found.column("counts").to_pylist() == [
        None, [("orders", 100)], [("orders", 1_000)], [("orders", 10_000)]]  # fmt: skip
    # And a row of the journal that goes on behind the lake brings only what is new
    kit.write(url, [kit.settled(5, [kit.done(1, counts=(("orders", 7),))])])
    kit.put_together(url, 2, 5)
    export(url, tmp_path / "lake")
    whole = lake.load(tmp_path / "lake")
    assert whole is not None
    rows = [
        each
        for file in whole.files
        for each in pq.read_table(tmp_path / "lake" / file.path, partitioning=None).to_pylist()
    ]
    assert sum(dict(each["counts"] or ()).get("orders", 0) for each in rows) == 11_107


def kit_url(place: Path) -> str:
    from tests.conformance.backends import BACKENDS

    return next(each for each in BACKENDS if not each.network).create(place)
