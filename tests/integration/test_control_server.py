"""What a database server says of itself, and the file that the cost report reads it from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from late_spark import importers

from late.autoscaler.metrics.factory import create_source
from late.autoscaler.metrics.source import Metrics
from late.cli.metrics_recorder import COUNTERS, LEVELS, Recorder, of_monitoring, of_server
from late.control import Control
from late.control.status.server import Server
from late.errors import ConfigError
from late.schema import migrate
from late.worker.metrics import of_server as metrics_of_server
from tests.integration.kill_kit import enqueue

Look = tuple[tuple[str, ...], list[tuple[str | int | float, ...]]]


def test_each_database_says_what_it_can(url: str) -> None:
    before_s = time.time()
    with Control(url) as control:
        seen = control.status.server()
        # PostgreSQL's counters are told to everybody a moment after a transaction has ended.
        if seen.rows_inserted is not None:
            enqueue(url, range(50))
            until(
                lambda: (
                    (control.status.server().rows_inserted or 0) >= (seen.rows_inserted or 0) + 50
                )
            )
            seen = control.status.server()
            assert (seen.commits or 0) > 0
            assert 1 <= (seen.connections or 0) <= (seen.connections_max or 0)
            assert (seen.wal_bytes or 0) > 0
            assert seen.dead_rows is not None
            assert seen.replica_lag_s is None, "there is no replica"
        assert abs(seen.at_us / 1e6 - before_s) < 120
        said = {name for name, _, _ in metrics_of_server(seen)}
        if seen.size_bytes is not None:
            assert seen.size_bytes > 4_096
            assert "late_database_size_bytes" in said
        else:
            assert said == set()
            with pytest.raises(ConfigError, match="--instance"):
                of_server(seen)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def looks(*found: Look) -> Callable[[], Look]:
    return iter(found).__next__


def test_a_recording_is_what_the_report_reads(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    first = Server(
        at_us=1_700_000_000_000_000, name="shop", size_bytes=9_000, commits=10, rows_read=100,
        rows_inserted=20, rows_updated=3, rows_deleted=4,
    )  # fmt: skip
    second = Server(
        at_us=1_700_000_060_000_000, name="shop", size_bytes=9_500, commits=17, rows_read=150,
        rows_inserted=21, rows_updated=4, rows_deleted=5,
    )  # fmt: skip
    for seen in (first, second):  # as after a restart
        assert Recorder(path, lambda seen=seen: of_server(seen)).once() == 1
    assert path.read_text().splitlines()[0] == ",".join(COUNTERS)
    found = importers.load([path])
    values = {key.metric: list(series.values) for key, series in found.series.items()}
    assert values["queries"] == [Decimal(7)]
    assert values["reads"] == [Decimal(50)]
    assert values["writes"] == [Decimal(3)]
    assert values["storage_bytes"] == [Decimal(9_000), Decimal(9_500)]


def test_what_monitoring_says_is_kept_once_for_each_minute(tmp_path: Path) -> None:
    path = tmp_path / "spanner.csv"
    one = Metrics(at_us=1_700_000_000_000_000, cpu=41.5, measured_size=3, storage_bytes=7)
    later = Metrics(at_us=1_700_000_060_000_000, cpu=40.0, measured_size=None)
    recorder = Recorder(path, looks(*map(of_monitoring, (one, one, Metrics(), later))))
    assert [recorder.once() for _ in range(4)] == [3, 0, 0, 1]
    header, *rows = path.read_text().splitlines()
    assert header == ",".join(LEVELS)
    assert [row.split(",")[1:] for row in rows] == [
        ["nodes", "3"], ["cpu", "0.415"], ["storage_bytes", "7"], ["cpu", "0.4"],
    ]  # fmt: skip


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("what,when\n")
    with pytest.raises(ConfigError, match="other columns"):
        Recorder(path, lambda: of_server(Server(1, size_bytes=1))).once()
    assert path.read_text() == "what,when\n"
    with pytest.raises(ConfigError, match=r"No such file|Is a directory"):
        Recorder(tmp_path, lambda: of_server(Server(1, size_bytes=1))).once()


def test_the_command_records_until_it_is_told_to_stop(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/queue.db", tmp_path / "load.csv"
    migrate.upgrade(url)
    process = subprocess.Popen(
        [sys.executable, "-m", "late.cli", "metrics", url, "--record", str(path), "--every", "1"],
        stderr=subprocess.PIPE, text=True, env={**os.environ},
    )  # fmt: skip
    try:
        until(lambda: path.exists() and len(path.read_text().splitlines()) >= 3)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert "recording to" in said
    finally:
        process.kill()
        process.communicate()


def test_monitoring_that_cannot_be_asked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="projects/P/instances/I, got 'shop'"):
        create_source("monitoring", "shop", "nodes")
    monkeypatch.setitem(
        sys.modules, "late.autoscaler.metrics.google_metrics", None
    )  # as without the extra
    with pytest.raises(ConfigError, match=r"late-queue\[spanner\]"):
        create_source("monitoring", "projects/p/instances/i", "nodes")
