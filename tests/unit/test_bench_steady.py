"""The bench of steady work: what it adds up and writes, without a database."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import counted
from bench.steady import loop, table
from bench.steady.places import Look, OnSpanner
from bench.steady.runs import Shape, Worked, derived
from scripts import performance_doc

ALONE = Look(10.0, wal_bytes=400_000, log_bytes=300_000, server_cpu_s=1.0)
WHOLE = Look(
    20.0, wal_bytes=600_000, server_cpu_s=3.0, journal_rows=1_000, journal_bytes=250_000
)  # fmt: skip
CONSUMED = Look(25.0, dead_rows=500, database_bytes=400_000, business_bytes=100_000, log_rows=7)


def worked(**changes: Any) -> Worked:
    given = {
        "tasks": 1_000,
        "whole": WHOLE,
        "consumed": CONSUMED,
        "worker_cpu_s": 2.0,
        "produced_s": 10.0,
    }
    given |= {"lags_ms": [1.0, 2.0, 9.0], "operations": {"Commit": 40}}
    return Worked(**given | changes)


def test_figures_are_differences_per_task_and_per_second() -> None:
    found = derived(worked(), ALONE)
    assert found["wal_producer_per_task"] == 400
    assert found["wal_worker_per_task"] == 200
    assert found["log_bytes_per_task"] == 300
    assert found["journal_rows_per_task"] == 1
    assert found["journal_bytes_per_row"] == 250
    assert found["growth_per_task"] == 300
    assert found["dead_rows_per_task"] == 0.5
    assert (found["worker_cpu_us"], found["worker_cpu_percent"]) == (2_000, 10)
    assert (found["server_cpu_us"], found["server_cpu_percent"]) == (2_000, 15)
    assert found["Commit_per_s"] == 2
    assert (found["p50_ms"], found["p99_ms"]) == (9.0, 9.0)


def test_what_is_left_of_the_log_is_no_growth() -> None:
    consumed = replace(CONSUMED, log_bytes=250_000)
    assert derived(worked(consumed=consumed), ALONE)["growth_per_task"] == 50


def test_a_rate_is_that_of_the_commits_and_not_the_one_asked_for() -> None:
    assert derived(worked(produced_s=0.1), ALONE)["reached_per_s"] == 30
    one = {"title": "late", "store": "SQLite"}
    slow = {"task": "stamp", "rate": 1_000, "reached_per_s": 700.0}
    assert table._name(one, slow) == "late, SQLite, 700/s reached"
    assert table._name(one, slow | {"reached_per_s": 990.0}) == "late, SQLite"


def test_what_a_store_cannot_tell_is_none_and_not_zero() -> None:
    found = derived(worked(whole=Look(20.0), consumed=Look(20.0), worker_cpu_s=None), Look(10.0))
    for name in ("wal_worker_per_task", "growth_per_task", "server_cpu_us", "worker_cpu_us"):
        assert found[name] is None, name


def test_without_counters_what_left_the_log_was_deleted_row_by_row() -> None:
    assert derived(worked(consumed=Look(25.0, log_rows=100)), ALONE)["dead_rows_per_task"] == 0.9


def test_few_tasks_say_nothing_about_bytes() -> None:
    found = derived(worked(tasks=20), ALONE)
    assert found["growth_per_task"] is None
    assert found["log_bytes_per_task"] is None


def test_the_loop_is_timed_before_and_after() -> None:
    with loop.Beside() as beside:
        pass
    assert beside.figures()["loop_ms"] > 0


def test_values_of_a_commit_are_counted() -> None:
    row = SimpleNamespace(columns=["a", "b"], values=[["1", "2"], ["3", "4"]])
    inserted = SimpleNamespace(WhichOneof=lambda _: "insert", insert=row)
    deleted = SimpleNamespace(WhichOneof=lambda _: "delete", delete=SimpleNamespace(table="t"))
    assert counted.values_in(inserted) == 4
    assert counted.values_in(deleted) == 1


def test_operations_of_all_workers_are_added_up(tmp_path: Path) -> None:
    for pid, calls in ((7, {"Commit": 3, "mutation": 20}), (8, {"Commit": 4})):
        (tmp_path / f"spanner-counts.json.{pid}").write_text(json.dumps(calls))
    assert OnSpanner(tmp_path).operations() == {"Commit": 7, "mutation": 20}


def report() -> dict[str, Any]:
    run = {"rate": 100.0, "task": "stamp", "loop_ms": 3.5, "delayed": 0.0, "retried": 0.0}
    run |= derived(worked(), ALONE) | {"reached_per_s": 100.0}
    place = {
        "store": "PostgreSQL",
        "name": "late",
        "title": "late",
        "versions": "PostgreSQL 15",
        "failed": ["clients: it ended"],
        "steady": [run, run | {"task": "update"}],
        "shapes": [run | {"delayed": 1.0}],
        "sparse": [{"gap_s": 20, "tasks": 3, "lags_ms": [1.0, 2.0, 30.0], "loop_ms": 3.5}],
        "idle": [
            {
                "workers": 4,
                "workers_cpu_percent": 4.4,
                "server_cpu_percent": 3.0,
                "server_alone_cpu_percent": None,
                "wal_per_s": 1_106.0,
                "connections": 25,
                "loop_ms": 3.5,
            }
        ],
    }
    box = {"cpu": "AMD", "cores": 2, "python": "3.11", "load_before": [0.5]}
    return {"at": "2026-11-25T00:00:00Z", "machine": box, "seconds": 20.0, "places": [place]}


def test_tables_show_what_was_measured_and_a_dash_for_what_was_not() -> None:
    text = table.text(report())
    assert "| late, PostgreSQL | 9.0 / 9.0 | 1.000 | 200 | 400 | 300 | 0.50 | 2,000 |" in text
    assert "| late, PostgreSQL, a plain `def` with an UPDATE | 9.0" in text
    assert "| late, PostgreSQL | 3 | 2.0 | 1.0 | 30.0 | 3.50 |" in text
    assert "| late, PostgreSQL | 4.4 | 3.0 | – | 1,106 | 25 | 3.50 |" in text
    assert "- not measured: late, PostgreSQL: clients: it ended" in text


def test_the_page_has_the_section_before_the_drain_if_there_are_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "steady.json"
    monkeypatch.setattr(performance_doc, "STEADY", file)
    assert "## Steady work" not in performance_doc.page()
    file.write_text(json.dumps(report()))
    page = performance_doc.page()
    assert page.index("## Steady work") < page.index("## Numbers")
    assert "| 100/s, one task a transaction |" in page


def test_a_shape_tells_its_processes() -> None:
    told = Shape(100, 20, note=1_000, delayed=0.5).variables
    assert told == {"BENCH_NOTE": "1000", "BENCH_DELAYED": "0.5", "BENCH_RETRIED": "0.0"}
