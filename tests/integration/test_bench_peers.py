"""The bench beside other queues runs, with late alone: the others are not installed for tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.peers import __main__ as program
from bench.peers import roster
from bench.peers.enduring import endure
from bench.peers.environments import bring_up
from bench.peers.programs import Failed, Program
from bench.peers.workloads import Bench, Sizes
from bench.targets import Postgres
from tests.servers import postgres_url

SMALL = ["--tasks", "300", "--singles", "10", "--clients", "2", "--rates", "20", "--seconds", "0.5"]


@pytest.fixture
def server() -> str:
    url = postgres_url()
    if url is None:
        pytest.skip("no PostgreSQL")
    return url


def test_a_small_run_measures_everything(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(program, "SINGLE", 20)
    record = tmp_path / "peers.json"
    asked = ["--postgres", server, "--only", "late", "--record", str(record), *SMALL]
    assert program.main(asked) == 0

    (path,) = (tmp_path / "results").iterdir()
    report = json.loads(path.read_text())
    assert json.loads(record.read_text()) == report
    (late,) = report["peers"]
    assert "failed" not in late
    assert late["drain_per_s"] > 0
    assert late["per_task"]["wal_bytes"] >= late["wal_insert_bytes"] > 0
    assert late["single"][0]["clients"] == 2
    assert [one["open_transaction"] for one in late["latency"]] == [False, True]
    for one in late["latency"]:
        assert one["reached_per_s"] == 20
        assert one["twice"] == 0
        assert 0 <= one["p50_ms"] <= one["p99_ms"] <= one["max_ms"]
    assert "| late |" in capsys.readouterr().out


def test_rounds_are_measured_beside_a_held_snapshot(server: str, tmp_path: Path) -> None:
    peer, target = roster.read()["late"], Postgres(server)
    bench = Bench(peer, bring_up(peer), target, "", tmp_path)
    try:
        found = endure(bench, Sizes(tasks=1_000, rounds=1, seconds=0.3), hold=True)
    finally:
        target.clear()
    assert found["held"] is True
    assert [rate > 0 for rate in found["per_s"]] == [True]
    assert found["reached_per_s"] == pytest.approx(100)
    assert 0 <= found["p50_ms"] <= found["max_ms"]


def test_a_peer_that_cannot_be_measured_is_written_down_and_stops_nobody() -> None:
    said: list[str] = []
    entry = program.one(UNAVAILABLE, None, Sizes(), said.append)  # type: ignore[arg-type]
    assert entry["failed"] == "needs Python 99.0 or newer, and the machine has none"
    assert said == [f"not measured: {entry['failed']}"]


UNAVAILABLE = roster.Peer(
    name="unavailable",
    title="Unavailable",
    kind="python",
    adapter="on_unavailable.py",
    left="",
    docs="",
    same_transaction=True,
    settings="",
    durability="",
    packages=("unavailable==1",),
    python=(99, 0),
)


def test_an_adapter_that_fails_says_why(tmp_path: Path) -> None:
    late = roster.read()["late"]
    environment = program.bring_up(late)
    there = Program(environment, "postgresql://127.0.0.1:1/none", "", tmp_path)
    with pytest.raises(Failed, match=r"prepare ended with 1:(.|\n)*127\.0\.0\.1"):
        there.run("prepare")
    with there.worker() as running:
        running.process.wait(120)
        with pytest.raises(Failed, match="the worker ended with"):
            running.check()
