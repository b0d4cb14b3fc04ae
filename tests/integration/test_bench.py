"""The measurements run, and measure what they say; how fast anything is gates nothing."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from bench import main, measure
from bench.binary_copy import encoded
from bench.targets import Sqlite
from tests.servers import postgres_url


def test_a_small_run_measures_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(main, "SINGLE", 20)
    monkeypatch.setattr(main, "EFFECTS", 50)
    monkeypatch.setattr(main, "COUNTED", (200, 700))
    small = ["--count", "500", "--turns", "1", "--seconds", "0.2"]
    assert main.main(["--only", "sqlite", *small]) == 0
    (path,) = (tmp_path / "results").iterdir()
    report = json.loads(path.read_text())
    assert report["machine"]["cores"] >= 1
    (store,) = report["stores"]
    assert store["tasks"] == 500
    for name in ("drain", "enqueue_bulk", "enqueue_single", "limit_drain", "limit_write"):
        assert store[f"{name}_per_s"] > 0
    assert store["by_hand_per_s"] > 0
    assert store["effect_per_s"] > 0
    assert store["statements"]["begin"] > 0
    # Five hundred tasks more are few statements more: what a short run counts is start and stop.
    assert store["statements_per_busy"] < store["statements_per_task"]
    assert [one["asked_per_s"] for one in store["latency"]] == [100, 1_000]
    for one in store["latency"]:
        assert 0 <= one["p50_ms"] <= one["p95_ms"] <= one["p99_ms"] <= one["max_ms"]
    assert "drain, no-op" in capsys.readouterr().out


def test_rates_are_medians_of_the_turns_each_by_itself() -> None:
    turns = [{"a": 1.0, "b": 30.0}, {"a": 9.0, "b": 10.0}, {"a": 2.0, "b": 20.0}]
    assert main.medians(turns) == {"a": 2.0, "b": 20.0}


def test_percentiles_are_values_that_were_measured() -> None:
    lags = [float(n) for n in range(1, 101)]
    assert measure.percentile(lags, 0.50) == 51.0
    assert measure.percentile(lags, 0.99) == 100.0
    assert measure.percentile([7.0], 0.99) == 7.0


def test_a_worker_that_dies_is_a_message_and_not_a_hang(tmp_path: Path) -> None:
    # Given a database without the schema
    target = Sqlite(tmp_path)
    url = target.fresh()
    with measure.worker(f"sqlite:///{tmp_path}/none.db", tmp_path) as running:
        running.process.wait(120)
        # Then waiting for it says so at once
        with pytest.raises(measure.GaveUp, match="the worker ended with"):
            measure.wait_settled(target, url, 1, running)


def test_encoded_rows_are_the_rows() -> None:
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    rows = [
        (7, measure.new_id(7), "q", "n\u00e4me", b"\x00{}"),
        (0, measure.new_id(0), "", "n", b""),
    ]
    with psycopg.connect(admin) as tx, tx.cursor() as cursor:
        cursor.execute("create temporary table bare (s smallint, i uuid, q text, n text, p bytea)")
        with cursor.copy("copy bare from stdin (format binary)") as copy:
            copy.write(encoded(rows))
        cursor.execute("select s, i::text, q, n, p from bare order by s desc")
        assert cursor.fetchall() == rows
