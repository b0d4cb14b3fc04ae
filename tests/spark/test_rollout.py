"""`late report impact` on a recorded rollout: what is kept is what both engines find.

`scripts/record_rollout.py` has made the recording in `tests/spark/rollout`.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.unit.cli_kit import Cli, cli

__all__ = ["cli"]

HERE = Path(__file__).parent / "rollout"
FIGURES = ("before", "after", "difference", "low", "high")


def rows(path: Path) -> dict[str, dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return {row["measure"]: row for row in csv.DictReader(file)}


def numbers(found: dict[str, dict[str, str]]) -> dict[str, list[float]]:
    return {measure: [float(row[each]) for each in FIGURES] for measure, row in found.items()}


def reported(cli: Cli, queue: str, engine: str) -> Path:
    out = Path(f"{queue}-{engine}")
    ended = cli("report", "impact", "--usage", str(HERE / "usage.parquet"), "--from", "2026-03-02",
                "--to", "2026-03-30", "--release", "2", "--releases", str(HERE / "releases.yaml"),
                "--queue", queue, "--prices", str(HERE / "prices.yaml"), "--engine", engine,
                "--out", str(out))  # fmt: skip
    assert ended.code == 0, ended.err
    return out / "changes.csv"


@pytest.mark.parametrize("queue", ["checkout", "mail"])
def test_both_engines_find_what_is_kept(cli: Cli, spark: SparkSession, queue: str) -> None:
    by_duckdb, by_spark = (reported(cli, queue, engine) for engine in ("duckdb", "spark"))
    assert by_duckdb.read_bytes() == by_spark.read_bytes()
    found, kept = rows(by_spark), rows(HERE / f"{queue}.csv")
    assert {name: row["verdict"] for name, row in found.items()} == {
        name: row["verdict"] for name, row in kept.items()
    }
    # Versions of Python add floats up in different ways.
    assert numbers(found) == {
        name: pytest.approx(each, rel=1e-9, abs=1e-9) for name, each in numbers(kept).items()
    }


def test_what_is_kept_has_what_was_done_to_the_handler() -> None:
    checkout, mail = rows(HERE / "checkout.csv"), rows(HERE / "mail.csv")
    assert checkout["mean running time"]["verdict"] == "higher"
    # Release 2 sleeps 12 ms more, and one task in five has a second attempt.
    p50 = checkout["running time, p50"]
    assert float(p50["low"]) < 12 < float(p50["high"])
    assert 1_000 / 6 < float(checkout["retries per 1,000 attempts"]["after"]) < 1_000 / 5
    assert checkout["tasks per day"]["verdict"] == "no clear change"
    # The other handler ran as before, and has no retries.
    assert mail["running time, p50"]["verdict"] == "no clear change"
    assert mail["retries per 1,000 attempts"]["verdict"] == "no clear change"
