"""The bench of steady work runs, and measures what it says; how fast anything is gates nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.steady import __main__ as program
from bench.steady import check, runs
from tests.servers import postgres_url

SMALL = ["--rates", "20", "--seconds", "0.5", "--gap", "0.2", "--sparse", "1", "--idle", "0.2"]
SMALL += ["--singles", "20", "--turns", "1", "--no-shapes", "--peers"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(program, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(program, "FLEET", 1)
    monkeypatch.setattr(program, "CLIENTS", 2)
    monkeypatch.setattr(runs, "CONSUMED_S", 0.0)
    monkeypatch.setattr(runs, "CALM_S", 0.1)
    return tmp_path


def test_a_small_run_measures_each_kind(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = here / "steady.json"
    assert program.main(["--only", "sqlite", *SMALL, "--record", str(record)]) == 0
    (path,) = (here / "results").iterdir()
    report = json.loads(record.read_text())
    assert json.loads(path.read_text()) == report
    (place,) = report["places"]
    assert place["failed"] == []
    assert [run["task"] for run in place["steady"]] == ["stamp", "update"]
    for run in place["steady"]:
        assert run["tasks"] == 10
        assert 0 < run["journal_rows_per_task"] <= 2
        assert 0 <= run["p50_ms"] <= run["p99_ms"]
        assert run["loop_ms"] > 0
        assert run["worker_cpu_us"] > 0
    assert len(place["sparse"][0]["lags_ms"]) == 1
    assert place["idle"][0]["workers"] == 1
    assert place["clients"][0]["with_worker_per_s"] > 0
    assert place["clients"][0]["with_polling_worker_per_s"] > 0
    assert "| late, SQLite, a plain `def` with an UPDATE |" in capsys.readouterr().out


def test_wal_is_the_difference_to_the_same_producers_without_a_worker(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres_url()
    if server is None:
        pytest.skip("no PostgreSQL")
    monkeypatch.setattr(runs, "PAGES", 4)  # bytes of pages, as there are few rows
    few = ["--idle", "0", "--sparse", "0", "--singles", "0", "--rates", "20", "--seconds", "0.5"]
    asked = ["--only", "postgresql", "--postgres", server, "--no-shapes", "--peers", *few]
    record = here / "steady.json"
    assert program.main([*asked, "--record", str(record)]) == 0
    (place,) = json.loads(record.read_text())["places"]
    plain, _ = place["steady"]
    assert plain["wal_producer_per_task"] > 100
    assert plain["wal_worker_per_task"] is not None
    assert plain["dead_rows_per_task"] >= 0
    for name in ("log_bytes_per_task", "journal_bytes_per_row", "growth_per_task"):
        assert plain[name] is not None, name


def test_the_check_of_late_size_compares_what_was_measured(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "shapes", lambda seconds: [runs.Shape(20, seconds)])
    # Ten tasks on a busy machine are far from any constant: the answer is not what is tested.
    assert program.main(["--only", "sqlite", "--check-size", "--seconds", "0.5"]) in (0, 1)
    assert "| SQLite, 20/s: journal, rows |" in capsys.readouterr().out
