"""The close of a month: figures recomputed with fractions apart from the code, and its sign-off."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from late_spark.calendar import Calendar
from late_spark.close import command, signoff
from late_spark.commands import Asked
from late_spark.place import Source

from late.errors import ConfigError, StoreError
from tests.spark.close_kit import OWNERS, asked, expected, made, read

__all__ = ["asked"]


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
    Path("close/owners/money.html").write_text("nothing")
    said = r"index.html was altered by hand; lines.csv is gone; owners/money.html was altered"
    with pytest.raises(ConfigError, match=said):
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


def test_a_close_by_tenant_says_once_that_no_usage_has_one(asked: Asked) -> None:
    done = command.run(asked, "2026-10", "owner,tenant")
    assert done.close.last is not None
    (said,) = [each for each in done.close.warnings() if "has a tenant" in each]
    assert said.startswith("No usage has a tenant: ")
    assert "usage without a tenant" in [row["what"] for row in read("gaps.csv")]


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
        ("2026-10", lambda: Path("budgets.yaml").write_text("a: ["), "budgets.yaml is not YAML: "),
        ("2026-10", lambda: Path("prices.yaml").write_bytes(b"\xff"),
         "price book prices.yaml: it is no text"),
        ("2026-10", lambda: Path("10.csv").write_text(""),
         "bill 10.csv is empty: fetch it again, or take it away"),
        ("2031-01", lambda: None, "no bill has anything of 2031-01: give its bill"),
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


@pytest.mark.parametrize("content", [b"", b"a: [", b"\xff\xfe\x00", b"\x89PNG\r\n", b"- 1"])
def test_a_bad_file_of_owners_is_found_before_spark(asked: Asked, content: bytes) -> None:
    Path("owners.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^owners owners.yaml: .+") as found:
        made(replace(asked, owners=Path("owners.yaml")))
    assert "\n" not in str(found.value)
