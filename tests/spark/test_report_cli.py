"""`late report` as it is typed: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from late_spark.export import export

from late.cli.reports import report
from tests.spark import close_kit, kit, usage_kit
from tests.spark.usage_kit import row
from tests.unit.cli_kit import Cli, cli

__all__ = ["cli"]

ROOT = Path(__file__).resolve().parents[2]

PRICES = """
version: 1
name: production
currency: USD
prices:
- {line: nodes, unit: node_hour, price: 1, quantity: 1, drivers: {tasks: 100}}
"""
# Four weeks of a queue with 100 tasks a day; `new` is launched in the third, with a storm on the
# last Tuesday.
ROWS = [
    row(f"2026-03-{day:02}T12:00:00Z", "old", "work", "done", 100, owner="a", busy_hist={31: 100})
    for day in range(2, 30)
] + [
    row(f"2026-03-{day:02}T12:00:00Z", "new", "ride", outcome, count, owner="b", retries=retries)
    for day in range(16, 30)
    for outcome, count, retries in (
        ("done", 900 if day == 24 else 100, 0),
        ("retried", 900 if day == 24 else 1, 800 if day == 24 else 1),
    )
]


@pytest.fixture(scope="module")
def usage(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(usage_kit.write(ROWS, tmp_path_factory.mktemp("weeks") / "usage"))


RANGE = ("--from", "2026-03-02", "--to", "2026-03-30")


def test_cost(cli: Cli, usage: str) -> None:
    Path("prices.yaml").write_text(PRICES)
    options = ("--prices", "prices.yaml", "--usage", usage, "--out", "out")
    ended = cli("report", "cost", *RANGE, *options)
    assert ended.code == 0, ended.err
    # 28 days of 24 USD. Half of it is `b`'s on 13 of its 14 days, nine tenths on the stormy one.
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert "a 494.40 2,800" in lines
    assert "b 177.60 2,200" in lines
    assert "(total) 672.00" in lines
    assert json.loads(Path("out/report.json").read_text())["report"] == "cost"
    again = cli("report", "cost", *RANGE, *options, "--force", "--json", "--by", "owner,month")
    assert again.json["rows"][0] == {
        "owner": "a", "month": "2026-03", "cost": "494.40", "tasks": 2800, "attempts": 2800,
        "retries": 0, "per_million_tasks": "176571.428571428571", "per_retry": None,
        "cost_of_retries": "0",
    }  # fmt: skip
    assert (again.json["total"], again.json["exact"]["bill"]) == ("672.00", "672")
    again = cli("report", "cost", *RANGE, *options)
    assert again.code == 2
    assert again.err.endswith("late: --out out has a report: --force replaces it\n")


def _billed(first: date, days: int) -> None:
    """Write bill.csv, with a dollar for each day."""
    found = [first + timedelta(days=n) for n in range(days)]
    rows = [close_kit.billed(day, "Spanner", "1", of=day.month) for day in found]
    with Path("bill.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, close_kit.COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (date(2026, 2, 27), "2026-02-27 to 2026-03-01"),
        (date(2026, 3, 30), "2026-03-30 to 2026-04-01"),
    ],
)
@pytest.mark.parametrize("words", [("cost",), ("impact", "--at", "2026-03-16")])
def test_a_bill_of_another_month_is_refused(
    cli: Cli, usage: str, words: tuple[str, ...], first: date, said: str
) -> None:
    # Given a bill that ends with the day before the range, or begins with the day after it
    Path("prices.yaml").write_text(PRICES)
    _billed(first, 3)
    asked = ("report", *words, *RANGE, "--prices", "prices.yaml", "--usage", usage,
             "--bill", "bill.csv", "--out", "out")  # fmt: skip
    # Then the report is refused, and nothing is written
    ended = cli(*asked)
    wanted = (
        f"late: no bill has anything of 2026-03-02 to 2026-03-29 (bill.csv: {said}): "
        "give the bill of these days, or another --from and --to\n"
    )
    assert (ended.code, ended.err.endswith(wanted)) == (2, True), ended.err
    assert not Path("out").exists()


@pytest.mark.parametrize("first", [date(2026, 2, 28), date(2026, 3, 29)])
def test_a_bill_that_has_one_day_of_the_range_is_taken(cli: Cli, usage: str, first: date) -> None:
    Path("prices.yaml").write_text(PRICES)
    _billed(first, 3)
    ended = cli("report", "cost", *RANGE, "--prices", "prices.yaml", "--usage", usage,
                "--bill", "bill.csv", "--out", "out")  # fmt: skip
    assert ended.code == 0, ended.err
    assert "(total) 1.00" in [" ".join(line.split()) for line in ended.out.splitlines()]


def test_a_report_by_tenant_says_that_no_usage_has_one(cli: Cli, usage: str) -> None:
    Path("prices.yaml").write_text(PRICES)
    options = ("--prices", "prices.yaml", "--usage", usage, "--by", "tenant", "--out")
    said = (
        "warning: No usage has a tenant: queues tell tenants apart with "
        "`late queue set NAME fair_key=HEADER`, from then on."
    )
    ended = cli("report", "cost", *RANGE, *options, "cost")
    assert (ended.code, ended.err.splitlines().count(said)) == (0, 1), ended.err
    assert cli("close", "2026-03", *options, "close").err.splitlines().count(said) == 1
    # A report that does not ask for tenants needs none
    other = cli("report", "cost", *RANGE, "--prices", "prices.yaml", "--usage", usage, "--out", "o")
    assert (other.code, "tenant" in other.err) == (0, False), other.err


def test_close(cli: Cli, usage: str) -> None:
    Path("prices.yaml").write_text(PRICES + "budget_per_month: 700\n")
    asked = ("close", "2026-03", "--prices", "prices.yaml", "--usage", usage, "--out", "out")
    ended = cli(*asked)
    assert ended.code == 0, ended.err
    # 31 days of 24 USD; on three of them nobody worked, and in February nobody at all.
    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert "a 494.40 0.00 494.40" in lines
    assert "Total 744.00 672.00 72.00 700.00" in lines
    assert "warning: No usage from 2026-03-30 to 2026-03-31 (2 days): 48.00 USD" in ended.err
    assert "warning: The month is over its budget." in ended.err
    again = cli(*asked, "--json")
    assert (again.code, again.json["unchanged"]) == (0, True)
    assert f"sign-off: {again.json['signoff']}" in lines
    assert again.json["total"] == {
        "owner": "Total", "cost": "744.00", "last": "672.00", "change": "72.00",
        "budget": "700.00", "left": "-44.00", "per_million": "134400.00",
        "last_per_million": None, "expected": None,
    }  # fmt: skip
    other = cli(*asked, "--by", "queue")
    assert (other.code, "output comparison.csv changed" in other.err) == (2, True)


def test_impact_of_a_launch(cli: Cli, usage: str) -> None:
    Path("prices.yaml").write_text(PRICES)
    ended = cli("report", "impact", *RANGE, "--prices", "prices.yaml", "--usage", usage,
                "--out", "out", "--queue", "new", "--budget", "700")  # fmt: skip
    assert ended.code == 0, ended.err
    changes = {each["measure"]: each for each in csv.DictReader(_lines("out/changes.csv"))}
    assert changes["cost per day"]["verdict"] == "no clear change"
    assert float(changes["cost per day"]["before"]) == pytest.approx(24)
    assert changes["retries per 1,000 attempts"]["before"] == "0.0"
    assert changes["tasks per day"]["days_after"] == "14"
    assert "retry storm on Tuesday 2026-03-24: new/ride cost 9.60 USD more than usual (12.00)" in (
        ended.out
    )
    assert "within budget" not in ended.out  # 672 + 2 days of 24
    assert "over budget" in ended.out


def test_impact_of_a_release_on_a_queue(cli: Cli, usage: str) -> None:
    Path("prices.yaml").write_text(PRICES)
    Path("releases.yaml").write_text('"2.2": 2026-03-02\n"2.3": 2026-03-18T13:00:00+01:00\n')
    release = ("--releases", "releases.yaml", "--release")
    asked = ("report", "impact", *RANGE, "--prices", "prices.yaml", "--usage", usage,
             "--out", "out", "--queue", "old")  # fmt: skip
    ended = cli(*asked, *release, "2.3", "--json")
    assert ended.code == 0, ended.err
    found = ended.json
    assert (found["title"], found["at"]) == ("What release 2.3 did to old", "2026-03-18")
    by = {each["measure"]: each for each in found["changes"]}
    # Sixteen days before are two weeks; of the eleven days behind that of the release, one is.
    assert (by["tasks per day"]["days_before"], by["tasks per day"]["days_after"]) == (14, 7)
    assert by["running time, p99"] == {
        "measure": "running time, p99", "unit": "ms", "before": 0.031, "after": 0.031,
        "difference": {"estimate": 0.0, "low": 0.0, "high": 0.0},
        "days_before": 14, "days_after": 7, "verdict": "no clear change",
    }  # fmt: skip
    assert by["waiting time, p50"]["before"] is None, "no histogram of it was recorded"
    assert "on neither side" in Path("out/index.html").read_text()
    missing = cli(*asked, "--force", *release, "9")
    assert (missing.code, "'9' is not in releases.yaml; the last there: 2.2, 2.3" in missing.err) \
        == (2, True)  # fmt: skip
    first = cli(*asked, "--force", *release, "2.2")
    assert (first.code, "leaves no day before it" in first.err) == (2, True)


def test_capacity(cli: Cli, usage: str) -> None:
    ended = cli("report", "capacity", *RANGE, "--usage", usage, "--out", "out", "--growth", "3",
                "--set", "new.rate=1", "--set", "old.concurrency=5", "--shards", "4")  # fmt: skip
    assert ended.code == 0, ended.err
    queues = {each["queue"]: each for each in csv.DictReader(_lines("out/queues.csv"))}
    # 2,700 tasks in 300 s, at one start a second, of which a task needs 3,113 / 2,200.
    assert queues["new"]["tried"] == "rate 1"
    assert queues["new"]["backlog at most"] == "2488"
    assert queues["new"]["enough"] == "with waiting"
    assert queues["old"]["enough"] == "yes"
    again = cli("report", "capacity", *RANGE, "--usage", usage, "--out", "out", "--growth", "3",
                "--set", "new.rate=1", "--json", "--force")  # fmt: skip
    new = next(each for each in again.json["queues"] if each["queue"] == "new")
    assert new["tried"]["rate"] == 1.0
    assert (new["tried"]["backlog_max"], new["tried"]["enough"]) == (2488, "with waiting")
    assert again.json["verdicts"][0]["subject"] == "shards"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cost", "--by", "planet"), "--by 'planet': expected some of owner"),
        (("cost", "--url", "sqlite:///x.db"), "give --usage, or --url and --lake, not both"),
        (("cost", "--lake", "a", "--lake", "b"), "--lake was given twice"),
        (("cost", "--tz", "Mars"), "--tz: there is no time zone"),
        (("impact",), "when was the change?"),
        (("impact", "--at", "2026-03-09", "--release", "2", "--releases", "r"), "not both"),
        (("impact", "--release", "2"), "give --release and --releases together"),
        (("impact", "--release", "2", "--releases", "none.yaml"), "--releases none.yaml: No such"),
        (("impact", "--at", "2026-04-09"), "is not in the range"),
        (("impact", "--at", "2026-03-29T12:00:00Z"), "leaves no whole day after it"),
        (("impact", "--at", "2026-03-02"), "leaves no day before it"),
        (("impact", "--queue", "none"), "--queue none had no work in the range"),
        (("impact", "--at", "2026-03-09", "--confidence", "2"), "--confidence 2.0"),
        (("capacity", "--set", "x"), "--set 'x'"),
        (("capacity", "--growth", "0"), "--growth 0.0"),
        (("capacity", "--nodes", "3"), "--nodes: no file of --metrics"),
    ],
)
def test_what_is_refused(cli: Cli, usage: str, words: tuple[str, ...], said: str) -> None:
    Path("prices.yaml").write_text(PRICES)
    prices = () if words[0] == "capacity" else ("--prices", "prices.yaml")
    ended = cli("report", *words, *RANGE, *prices, "--usage", usage, "--out", "out")
    assert ended.code == 2
    assert said in ended.err
    assert not Path("out").exists()


def test_without_the_extra_it_says_how_to_get_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "late_spark.commands", None)
    said = cli.refused("report", "cost", *RANGE, "--prices", "p", "--out", "o", "--usage", "u")
    assert 'pip install "late-queue[reports]"' in said


def test_only_spark_needs_pyspark(usage: str, tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError(name='pyspark')")
    (tmp_path / "prices.yaml").write_text(PRICES)
    paths = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "spark")))

    def report(*words: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "late.cli", "report", "cost", *RANGE, *words)
        asked = ("--prices", "prices.yaml", "--usage", usage)
        return subprocess.run(
            (*command, *asked), cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    ended = report("--out", "done")
    assert (ended.returncode, "(total)" in ended.stdout) == (0, True), ended.stderr
    refused = report("--out", "none", "--engine", "spark")
    assert refused.returncode == 2
    assert 'pip install "late-queue[spark]" (it was asked for)' in refused.stderr


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def test_a_store_and_its_lake_cost_the_same(cli: Cli, tmp_path: Path) -> None:
    # Given a journal of which the first part is in a lake
    Path("prices.yaml").write_text(PRICES)
    kit.write(cli.url, [kit.settled(1, [kit.done(10)]), kit.settled(2, [kit.done(5, queue="r")])])
    export(cli.url, tmp_path / "lake")
    kit.write(cli.url, [kit.settled(3, [kit.done(25, queue="r")])])
    asked = ("report", "cost", "--from", "2026-09-21", "--to", "2026-09-22", "--by", "queue",
             "--prices", "prices.yaml")  # fmt: skip
    # When the report is made of the store, and of the lake with the tail of the store
    live = cli(*asked, "--url", cli.url, "--out", "live")
    both = cli(*asked, "--url", cli.url, "--lake", str(tmp_path / "lake"), "--out", "both")
    alone = cli(*asked, "--lake", str(tmp_path / "lake"), "--out", "alone")
    # Then they are the same, and the lake alone has what was exported
    assert (live.code, both.code, alone.code) == (0, 0, 0), (live.err, both.err, alone.err)
    rows = [line.split(",")[:3] for line in _lines("live/costs.csv")[1:3]]
    assert rows == [["r", "18.00", "30"], ["q", "6.00", "10"]]
    assert _lines("both/costs.csv") == _lines("live/costs.csv")
    assert [line.split(",")[2] for line in _lines("alone/costs.csv")[1:3]] == ["10", "5"]


def test_a_journal_that_was_pruned_within_the_range_is_refused(cli: Cli) -> None:
    Path("prices.yaml").write_text(PRICES)
    kit.write(cli.url, [kit.settled(n, [kit.done(10)]) for n in (1, 2, 3)])
    kit.prune(cli.url, 1)
    ended = cli("report", "cost", "--from", "2026-09-21", "--to", "2026-09-22",
                "--prices", "prices.yaml", "--url", cli.url, "--out", "out")  # fmt: skip
    assert ended.code == 1
    assert "default/0" in ended.err
    assert not Path("out").exists()


def test_what_a_reader_refuses_is_one_line(cli: Cli) -> None:
    Path("prices.yaml").write_text(PRICES)
    kit.write(cli.url, [kit.settled(1, "oops")])
    ended = cli("report", "cost", "--from", "2026-09-21", "--to", "2026-09-22",
                "--prices", "prices.yaml", "--url", cli.url, "--out", "out")  # fmt: skip
    assert ended.code == 1
    assert "late: settlement 1 of default/0 has an unreadable usage: " in ended.err
    assert "Traceback" not in ended.err
    assert not Path("out").exists()


def test_a_table_that_is_cut_says_so_and_adds_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    found: Any = SimpleNamespace(
        rows=[SimpleNamespace(by=(f"q{n}",), cents=100, tasks=1) for n in range(25)],
        by=("queue",), digits=2, counted=True, currency="USD",
        unallocated_cents=50, total_cents=2_550, warnings=list[str],
    )  # fmt: skip
    report._cost(found, tmp_path)
    shown = capsys.readouterr().out
    assert "q19" in shown
    assert "q20" not in shown
    (more,) = [line for line in shown.splitlines() if "5 more in costs.csv" in line]
    assert "5.00" in more
