"""The cost report on small frames: exact values, and files that add up."""

from __future__ import annotations

import csv
import json
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from late_spark import (
    commands,
    cost,
    drivers,
    folder,
    lake,
    money,
    owners,
    page,
    pricebook,
    sheets,
    tables,
    values,
)
from late_spark.allocation import Key
from late_spark.calendar import Calendar
from late_spark.charges import Charge, Line
from late_spark.commands import Asked
from late_spark.drivers import Used
from late_spark.place import Source
from late_spark.relation import Relation

from late.errors import ConfigError
from tests.spark import usage_kit
from tests.spark.conftest import Related
from tests.spark.usage_kit import BERLIN
from tests.spark.xlsx_kit import sheet

DAYS = Calendar.of("2026-03-28", "2026-03-31", BERLIN)  # the 29th has 23 hours


def row(at: str, queue: str, name: str, outcome: str, count: int, **more: Any) -> tuple[Any, ...]:
    """A row as versions write it that record retries: each attempt is in the histograms."""
    times = {"waiting_hist": {20: count}} if more.get("attempts", count) else {}
    return usage_kit.row(at, queue, name, outcome, count, **times, **more)


ROWS = [
    row("2026-03-27T22:59:59Z", "mail", "send", "done", 1_000),  # before midnight in Berlin
    row("2026-03-27T23:00:00Z", "mail", "send", "done", 4, owner="growth"),
    row("2026-03-28T22:59:59Z", "mail", "send", "done", 6, owner="growth"),
    row("2026-03-28T23:00:00Z", "mail", "send", "retried", 3, retries=2, bytes=0, owner="growth"),
    row("2026-03-29T21:59:59Z", "pay", "charge", "done", 10, tenant="=acme", owner="money"),
    row("2026-03-29T21:59:59Z", "pay", "charge", "dead", 1, tenant="=acme", owner="money"),
    row("2026-03-29T22:00:00Z", "pay", "charge", "enqueued", 7, attempts=0, busy_us=0, bytes=0,
        tenant="=acme", owner="money"),
    row("2026-03-30T22:00:00Z", "mail", "send", "done", 1_000),  # the next midnight
]  # fmt: skip


@pytest.fixture(scope="module")
def usage(related: Related) -> Relation:
    return related(ROWS)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return usage_kit.write(ROWS, tmp_path_factory.mktemp("usage") / "rows")


SEND, CHARGE = Key("default", "mail", "send", "", "growth"), Key("default", "pay", "charge",
                                                                "=acme", "money")  # fmt: skip
FIRST, SECOND, THIRD = DAYS.days
USED = [
    Used(FIRST, SEND, 2, ended=10, attempts=10, busy_us=1_000, waiting_us=100, bytes=500),
    Used(SECOND, SEND, 1, again=3, retried=3, attempts=3, retries=2, busy_us=300, waiting_us=30),
    Used(SECOND, CHARGE, 2, ended=11, dead=1, attempts=11, busy_us=1_100, waiting_us=110,
         bytes=550),
    Used(THIRD, CHARGE, 1, enqueued=7, waiting_us=70),
]  # fmt: skip


def test_usage_is_added_up_by_local_day_and_key(usage: Relation) -> None:
    assert drivers.collect(drivers.daily(usage, DAYS)) == USED


def test_what_nobody_asks_for_is_not_told_apart(usage: Relation) -> None:
    found = drivers.collect(drivers.daily(usage, DAYS, {"tenant", "name"}))
    assert {row.key for row in found} == {
        Key("default", "mail", "", "", "growth"), Key("default", "pay", "", "", "money"),
    }  # fmt: skip
    assert sum(row.ended for row in found) == sum(row.ended for row in USED)


def test_an_owners_file_overrides_the_label(usage: Relation, tmp_path: Path) -> None:
    path = tmp_path / "owners.yaml"
    path.write_text("owners:\n- {owner: all, queue: 'ma*'}\n- {owner: x, task: charge}\n")
    found = drivers.collect(drivers.daily(usage, DAYS), owners.load(path))
    assert {(row.key.queue, row.key.owner) for row in found} == {("mail", "all"), ("pay", "x")}
    path.write_text("owners:\n- {team: all}\n")
    with pytest.raises(ConfigError, match=r"owners.yaml: .*unknown field `team`"):
        owners.load(path)


def test_weights_are_those_that_the_page_states() -> None:
    day = drivers.work(USED)[SECOND]
    assert day.keys == [SEND, CHARGE]
    assert {name: list(weights) for name, weights in day.weights.items()} == {
        "tasks": [0, 11],
        "writes": [0 + 1 + 6 + 0, 11 + 2 + 0 + 1],
        "reads": [3, 11],
        "bytes": [0, 550],
        "busy": [300, 1_100],
        "retries": [2, 0],
        "idle": [10**18, 10**18],
    }
    unrecorded = [Used(FIRST, SEND, retried=3, attempts=3, unrecorded=3)]
    assert "did not record retries" in drivers.work(unrecorded)[FIRST].blank["retries"]


def test_an_attempt_that_is_tried_again_on_the_next_day_is_no_gap_in_the_records() -> None:
    # Given a task that failed late on the first day, and whose retry ran on the second
    used = [
        Used(FIRST, SEND, 1, again=1, retried=1, attempts=1),
        Used(SECOND, SEND, 1, ended=1, attempts=1, retries=1),
    ]
    # Then the first day has no retries, and the version that wrote it is not blamed
    assert drivers.work(used)[FIRST].blank == {}
    charge = Charge(Line("n"), DAYS.from_us, DAYS.bounds[0][2], 24, {"retries": 100})
    found = cost.report([charge], used, DAYS, title="t", currency="USD", by=["owner"])
    assert found.why_unallocated() == [("n", "no retries on this day", 24)]


def charges() -> list[Charge]:
    line = Line("nodes", "Cloud Spanner", "eu")
    return [
        Charge(line, DAYS.from_us, DAYS.to_us, 71 * money.ONE, {"tasks": 100}),
        Charge(Line("tax"), DAYS.from_us - 5, DAYS.from_us, 3, {}, "nobody's"),
    ]


def made(by: str = "owner") -> cost.CostReport:
    return cost.report(charges(), USED, DAYS, title="t", currency="USD", by=cost.dimensions(by))


def test_by_time_the_rows_are_in_its_order() -> None:
    found = made("day,owner")
    assert [(r.by, r.cents, r.tasks) for r in found.rows] == [
        (("2026-03-28", "growth"), 24_00, 10),
        (("2026-03-29", "money"), 23_00, 11),
    ]
    assert found.charted == "owner"
    assert [(r.by, r.cents, r.tasks) for r in made("month").rows] == [(("2026-03",), 47_00, 21)]
    assert made("month").charted == "line"


def test_what_is_not_counted_is_not_shown_as_none(tmp_path: Path) -> None:
    # Given a report by line: a task has no line
    found = made("line")
    assert (found.counted, made("owner,day").counted) == (False, True)
    # When
    tables.write(found, tmp_path)
    sheets.write(found, tmp_path / "cost.xlsx")
    # Then there is no number of tasks, which would be a zero
    first = next(csv.DictReader((tmp_path / "costs.csv").read_text().splitlines()))
    assert (first["cost_usd"], first["tasks"], first["cost_of_retries"]) == ("47.00", "", "")
    assert [value for _, value in sheet(tmp_path / "cost.xlsx", 2)[0]] == [
        "line", "Cost (USD)", "Share"
    ]  # fmt: skip
    assert values.cost(found)["rows"][0]["tasks"] is None
    assert "cost of retries" not in page.cost(found)
    assert "cost of retries" in page.cost(made())


def test_a_sheet_that_is_too_long_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheets, "ROWS_MAX", 1)
    sheets.write(made(), tmp_path / "cost.xlsx")
    costs = sheet(tmp_path / "cost.xlsx", 2)
    assert [cells[0][1] for cells in costs[1:]] == [
        "growth", "(1 more: all are in costs.csv)", "(unallocated)", "Total"
    ]  # fmt: skip
    assert [Decimal(cells[1][1]) for cells in costs[1:]] == [24, 23, 24, 71]


def test_every_cent_is_somewhere() -> None:
    found = made()
    # 71 USD over 71 hours: 24, 23 and 24. The last day has arrivals only, so nobody's tasks ended.
    assert [(r.by, r.cents, r.tasks, r.retries) for r in found.rows] == [
        (("growth",), 24_00, 10, 2),
        (("money",), 23_00, 11, 0),
    ]
    assert found.unallocated_cents == 24_00
    assert found.why_unallocated() == [("nodes", "no tasks on this day", 24 * money.ONE)]
    assert found.totals == cost.Totals(71 * money.ONE + 3, 47 * money.ONE, 24 * money.ONE, 3)
    growth = found.rows[0]
    assert growth.per_million() == 2_400_000 * money.ONE
    assert growth.of_retries() == 24 * money.ONE * 2 // 13
    assert growth.per_retry() == 24 * money.ONE // 13


def test_by_several_dimensions() -> None:
    found = made("queue, task,tenant")
    assert [r.by for r in found.rows] == [("mail", "send", "(none)"), ("pay", "charge", "=acme")]
    with pytest.raises(ConfigError, match="--by 'planet': expected some of owner, queue, task"):
        cost.dimensions("owner,planet")
    with pytest.raises(ConfigError, match="twice"):
        cost.dimensions("task,name")


PRICES = """
version: 1
name: production
currency: USD
time_zone: Europe/Berlin
prices:
- {line: nodes, unit: node_hour, price: 1, quantity: 1, drivers: {tasks: 90, retries: 10}}
"""


@pytest.fixture
def asked(files: Path, tmp_path: Path) -> Asked:
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    return Asked(
        source=Source(usage=files), from_="2026-03-28", to="2026-03-31", prices=prices,
        out=tmp_path / "report",
    )  # fmt: skip


def test_the_files_of_a_report_reconcile(asked: Asked) -> None:
    # When
    found = commands.cost(asked, "tenant,owner")
    # Then the folder is whole
    out = asked.out
    assert {path.name for path in out.iterdir()} == {
        "index.html", "cost.xlsx", "costs.csv", "costs.parquet", "unallocated.parquet",
        "focus.csv", "report.json",
    }  # fmt: skip
    assert json.loads((out / "report.json").read_text())["time_zone"] == "Europe/Berlin"
    # and all of its files say the same
    exact = Decimal(71)
    borne = sum(pq.read_table(out / "costs.parquet")["cost"].to_pylist())
    left = sum(pq.read_table(out / "unallocated.parquet")["cost"].to_pylist())
    assert borne + left == exact
    assert money.decimal(found.totals.borne) == borne
    bill = list(csv.DictReader((out / "focus.csv").read_text().splitlines()))
    assert sum(Decimal(each["BilledCost"]) for each in bill) == exact
    assert {each["BillingPeriodStart"] for each in bill} == {"2026-02-28T23:00:00Z"}
    rows = list(csv.DictReader((out / "costs.csv").read_text().splitlines()))
    assert rows[-1]["tenant"] == "(total)"
    assert rows[-1]["cost_usd"] == "71.00"
    assert sum(Decimal(each["cost_usd"]) for each in rows[:-1]) == exact
    assert all(None not in each.values() for each in rows), "as many cells as the header"
    # and a stranger's name is no formula
    assert {"'=acme"} == {each["tenant"] for each in rows if "acme" in each["tenant"]}


def test_the_workbook_has_numbers_formats_and_totals(asked: Asked) -> None:
    commands.cost(asked, "tenant")
    path = asked.out / "cost.xlsx"
    with zipfile.ZipFile(path) as book:
        names = book.read("xl/workbook.xml").decode()
        styles = book.read("xl/styles.xml").decode()
    for name in ("Summary", "Costs", "Days", "Lines", "Unallocated", "Assumptions"):
        assert f'name="{name}"' in names
    assert "#,##0.00 &quot;USD&quot;" in styles
    summary, costs = sheet(path, 1), sheet(path, 2)
    assert summary[-1][1] == ("f", "71.0")
    assert costs[-1][0] == ("s", "Total")
    assert costs[-1][1] == ("f", "71.0")
    (acme,) = (cells for cells in costs if cells and cells[0] == ("s", "=acme"))
    assert acme[1][0] == "n"
    for number in (3, 4, 5):
        total = sheet(path, number)[-1]
        assert total[0] == ("s", "Total")
        assert total[-1][0] == "f"


def test_the_page_needs_nothing_else_and_escapes(asked: Asked) -> None:
    commands.cost(asked, "owner")
    text = (asked.out / "index.html").read_text()
    assert "71.00" in text
    # 21 tasks bear 44.60 USD: nine tenths of 24 and all of 23
    assert "2,123,809.52" in text
    assert "<svg" in text
    assert "@media print" in text
    for outside in ("http://", "https://", "<script", "<link", "src="):
        assert outside not in text
    assert page.table(("a",), [("<b>",)]).count("&lt;b&gt;") == 1


def test_a_report_is_not_overwritten_unless_told(asked: Asked) -> None:
    commands.cost(asked, "owner")
    before = (asked.out / "index.html").stat().st_ino
    with pytest.raises(ConfigError, match="has a report: --force replaces it"):
        commands.cost(asked, "queue")
    assert (asked.out / "index.html").stat().st_ino == before
    from dataclasses import replace

    commands.cost(replace(asked, force=True), "queue")
    assert (asked.out / "index.html").stat().st_ino != before
    assert json.loads((asked.out / "report.json").read_text())["by"] == ["queue"]
    assert [path.name for path in asked.out.parent.glob(".report*")] == []


def test_what_is_no_report_is_never_replaced(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "letters.txt").write_text("dear")
    for force in (False, True):
        with pytest.raises(ConfigError, match="is not a report"):
            folder.check(home, force=force)


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file is no folder"):
        folder.check(tmp_path / "file" / "deep" / "report", force=False)
    # Root may write anywhere, so a mode is no test.
    monkeypatch.setattr(folder.os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="cannot be written"):
        folder.check(tmp_path / "deep" / "report", force=False)
    assert not (tmp_path / "deep").exists()


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> None:
        with folder.writing(tmp_path / "report", {}, force=False):
            raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match="report: No space left on device"):
        fails()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="No such file") as raised:
        sheets.write(made(), tmp_path / "gone" / "cost.xlsx")
    assert raised.value.strerror == "No such file or directory"


def test_a_lake_is_not_a_folder_of_files(tmp_path: Path) -> None:
    # Given a lake that ends in the range
    journal = lake.Journal("default", 0, 1, DAYS.from_us, 9, DAYS.from_us + 60_000_000, "id")
    lake.commit(tmp_path, lake.Manifest("d", journals=(journal,)))
    # Then it says where, and is not read as files: a compaction has left some that do not count
    ends = "which ends at 2026-03-27T23:01:00Z"
    assert ends in Source(lake=tmp_path).said()
    assert ends not in Source(lake=tmp_path, url="sqlite:///x.db").said()
    (tmp_path / "usage" / "date=2026-03-27").mkdir(parents=True)
    for place in (tmp_path, tmp_path / "usage", tmp_path / "usage" / "date=2026-03-27"):
        with pytest.raises(ConfigError, match="is a lake: give it as --lake"):
            Source(usage=place).check(DAYS)


def test_nothing_is_left_of_a_report_that_fails(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report"

    def fails() -> None:
        with folder.writing(out, {}, force=False) as draft:
            (draft / "half.csv").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"from_": "2020-01", "to": "2020-02"}, "no usage between 2019-12-31T23:00:00Z and 2020"),
        ({"source": Source()}, "where is the usage"),
        ({"source": Source(usage="nowhere")}, "--usage nowhere: no such file"),
        ({"tz": "Mars/Base"}, "--tz: there is no time zone"),
        ({"metrics": [Path("none.csv")]}, "metrics none.csv: No such file"),
        ({"bills": [Path("none.csv")]}, "bill none.csv: No such file"),
    ],
)
def test_bad_input_leaves_no_folder(asked: Asked, change: dict[str, Any], said: str) -> None:
    from dataclasses import replace

    with pytest.raises(ConfigError, match=said):
        commands.cost(replace(asked, **change), "owner")
    assert not asked.out.exists()


def test_rules_are_said_in_words() -> None:
    rules = [
        {"line": "db", "match": {"ServiceName": "Cloud*", "Tags.team": "a"}, "share": 40,
         "drivers": {"writes": 100}},
        {"line": "db", "match": {"ServiceName": "*"}, "ignore": "development"},
    ]  # fmt: skip
    raw = {"version": 1, "name": "n", "currency": "USD", "bill": {"rules": rules}}
    asked = Asked(
        source=Source(url="sqlite:///x.db"), from_="2026-03", to="2026-04", prices=Path("p.yaml"),
        out=Path("o"), bills=[Path("b.csv")],
    )  # fmt: skip
    said = dict(list(commands.assumed(asked, pricebook.check(raw, "p.yaml")))[:-1])
    assert said["Usage"] == "the database"
    assert said["Bill rule: db"] == (
        "ServiceName is Cloud* and Tags.team is a: 40 percent of it, divided by writes 100 %"
    )
    last = list(commands.assumed(asked, pricebook.check(raw, "p.yaml")))[-1]
    assert last == ("Bill rule: db", "ServiceName is *: nobody bears it, development")


def test_every_sheet_and_table_shows_the_same_cents(tmp_path: Path) -> None:
    # Given two owners with 1.007 each and 0.006 that nobody bears: rounded together, both owners'
    # cents go up; rounded by themselves, what is borne would be 2.01
    line, mill = Line("nodes"), money.ONE // 1_000
    amounts = (1_007 * mill, 1_007 * mill, 6 * mill)
    billed = [
        Charge(line, start, end, amount, {"tasks": 100})
        for (_, start, end), amount in zip(DAYS.bounds, amounts, strict=True)
    ]
    outside = Charge(Line("tax"), DAYS.from_us - 5, DAYS.from_us, 13 * mill, {}, "nobody's")
    found = cost.report(
        [*billed, outside], USED, DAYS, title="t", currency="USD", by=("owner", "line")
    )
    assert (found.borne_cents, found.unallocated_cents, found.outside_cents) == (202, 0, 1)
    # When the workbook and the page are made
    sheets.write(found, tmp_path / "cost.xlsx")
    # Then every total is one of the summary's, and those add up to the bill
    summary, costs, days, paid, left = (sheet(tmp_path / "cost.xlsx", n) for n in range(1, 6))
    cells = [Decimal(line[1][1]) for line in summary[1:4]]
    assert sum(cells) == Decimal(summary[4][1][1]) == Decimal("2.03")
    assert Decimal(costs[-1][2][1]) == cells[0] + cells[1]
    assert [Decimal(value) for _, value in days[-1][1:]] == cells[:2]
    assert (Decimal(paid[-1][-1][1]), Decimal(left[-1][-1][1])) == tuple(cells[:2])
    for table in (costs, days, paid, left):
        at = 2 if table is not days else 1
        assert sum(Decimal(line[at][1]) for line in table[1:-1]) == Decimal(table[-1][at][1])
    assert "<td class=s></td><td class=n>0.00</td></tr></tbody></table></div><p>0.01 USD" in (
        page.cost(found)
    )
    total = money.shown(found.borne_cents, 2)
    assert f"<td class=s>Total borne</td><td class=s></td><td class=n>{total}</td>" in (
        page.cost(found)
    )
