"""The bench of late alone runs, and measures what it says; how fast anything is gates nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import alone, alone_table
from tests.servers import postgres_url


def test_a_small_run_measures_what_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres_url()
    if server is None:
        pytest.skip("no PostgreSQL")
    monkeypatch.setattr(alone, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(alone, "MEET_S", 1.0)
    record = tmp_path / "alone.json"
    small = ["--backlogs", "300", "--parked", "0", "--tasks", "0", "--remote", "30"]
    assert alone.main(["--postgres", server, *small, "--record", str(record)]) == 0
    report = json.loads(record.read_text())
    assert [one["waiting"] for one in report["backlog"]] == [300]
    assert report["workers"] == []
    assert [one["way"] for one in report["remote"]] == ["pull", "push"]
    for kind in ("backlog", "remote"):
        assert all(one["per_s"] > 0 for one in report[kind])
    assert "| pushed to one service, /s |" in alone_table.text(report)
