"""`late size`: a table for people, JSON for programs, one line for what no load can be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from late.cli import size
from late.model.size.estimate import DAY_S, Estimate
from late.model.size.figures import FIGURES
from tests.unit.cli_kit import Cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sizing.md"


@pytest.mark.parametrize("store", size.STORES)
def test_every_store_has_a_table_without_empty_rows(cli: Cli, store: str) -> None:
    text = cli.fine("size", "--rate", "50", "--store", store).out
    assert f"50 tasks a second of 120 bytes on {store}" in text
    assert "rows of the journal" in text
    assert not re.search(r" - +- *$", text, re.M)
    assert ("Spanner: commits" in text) == (store == "spanner")


def test_json_has_the_load_and_every_quantity(cli: Cli) -> None:
    asked = ["--rate", "50", "--payload", "500", "--delayed", "0.1", "--retries", "0.05"]
    asked += ["--groups", "2", "--retention", "7d", "--journal", "30d", "--workers", "3"]
    found = cli.fine("size", *asked, "--shards", "16", "--json").json
    assert found["store"] == "postgresql"
    assert found["load"] == {
        "rate": 50, "payload": 500, "delayed": 0.1, "retries": 0.05, "groups": 2,
        "retention_s": 7 * DAY_S, "journal_s": 30 * DAY_S, "workers": 3, "shards": 16,
    }  # fmt: skip
    assert found["measured"] == FIGURES["postgresql"].measured
    assert set(found["estimate"]) == set(Estimate.__struct_fields__)
    assert found["estimate"]["journal_rows_per_day"] > 0


@pytest.mark.parametrize(
    "wrong",
    [
        ["--rate", "0"],
        ["--rate", "-5"],
        ["--rate", "nan"],
        ["--rate", "many"],
        [],
        ["--rate", "1e12"],
        ["--rate", "5", "--delayed", "7"],
        ["--rate", "5", "--payload", "-1"],
        ["--rate", "5", "--shards", "0"],
        ["--rate", "5", "--retention", "soon"],
        ["--rate", "5", "--journal", "99999d"],
        ["--rate", "5", "--store", "oracle"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_exit_code_2(cli: Cli, wrong: list[str]) -> None:
    cli.refused("size", *wrong, code=2)


def test_bytes_are_shown_with_three_digits_in_powers_of_a_thousand() -> None:
    shown = [size.amount(value) for value in (0.0, 999.0, 999.9, 4_440_000_000.0, 1e19, None)]
    assert shown == ["0 B", "999 B", "1 KB", "4.44 GB", "1e+04 PB", None]


def test_the_page_names_every_option_and_every_quantity(cli: Cli) -> None:
    page = PAGE.read_text()
    options = set(re.findall(r"--[a-z]+", cli.fine("size", "--help").out)) - {"--help", "--json"}
    assert options <= set(re.findall(r"--[a-z]+", page))
    nothing = Estimate(**dict.fromkeys(Estimate.__struct_fields__, 1.0))  # type: ignore[arg-type]
    for what, _, _ in size.rows(nothing):
        assert f"| {what} |" in page, what
