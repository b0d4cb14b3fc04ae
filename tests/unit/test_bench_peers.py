"""The bench beside other queues: what it reads, adds up and writes, without any of them."""

from __future__ import annotations

import json
import re
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench import alone_table
from bench.peers import __main__ as program
from bench.peers import cost, environments, marks, redis, roster, table
from scripts import performance_doc

ROSTER = roster.read()
PINNED = re.compile(r"(@?[\w./-]+(\[[\w,]+\])?)(==|@)\d+(\.\d+)+")


def test_every_peer_has_an_adapter_pinned_packages_and_the_page_it_follows() -> None:
    assert next(iter(ROSTER)) == "late"
    for peer in ROSTER.values():
        assert peer.program.is_file(), peer.name
        assert all(PINNED.fullmatch(package) for package in peer.packages), peer.packages
        assert bool(peer.packages) == (peer.kind != "self")
        assert peer.docs.startswith("https://") or (performance_doc.ROOT / peer.docs).is_file()


def test_every_adapter_is_in_the_roster() -> None:
    files = {path.name for path in roster.ADAPTERS.iterdir() if path.name.startswith("on_")}
    assert files == {peer.adapter for peer in ROSTER.values()}


def test_late_is_always_measured_and_an_unknown_name_is_refused() -> None:
    assert [peer.name for peer in roster.chosen(["dbos"], ROSTER)] == ["late", "dbos"]
    assert roster.chosen([], ROSTER) == list(ROSTER.values())
    with pytest.raises(KeyError, match="no such peer: sidekiq"):
        roster.chosen(["sidekiq", "dbos"], ROSTER)


def test_an_entry_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "peers.toml"
    file.write_text('[other]\ntitle = "Other"\nspeed = "great"\n')
    with pytest.raises(TypeError, match="speed"):
        roster.read(file)


def test_another_version_makes_another_environment() -> None:
    one = ROSTER["dbos"]
    other = roster.Peer(**{f: getattr(one, f) for f in one.__slots__} | {"packages": ("dbos==1",)})
    assert environments.fingerprint(one) != environments.fingerprint(other)
    assert environments.fingerprint(one) == environments.fingerprint(one)


def test_a_peer_whose_python_is_missing_is_not_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(environments.Unavailable, match=r"needs Python 9\.1"):
        environments._interpreter((9, 1))


def test_what_was_installed_is_read_from_the_lock() -> None:
    lock = {
        "packages": {
            "": {"name": "late-bench"},
            "node_modules/pg": {"version": "8.0.0"},
            "node_modules/pg/node_modules/@types/pg": {"version": "1.2.3"},
        }
    }
    assert environments.locked(lock) == ["@types/pg@1.2.3", "pg@8.0.0"]


def test_marks_of_several_processes_are_added_up() -> None:
    found = marks.parse(["first 20", "seen 200", "first 10", "7 50", "seen 200", "7 60", "8 55"])
    assert (found.first_ns, found.seen, found.again) == (10, 400, 1)
    assert found.started == {7: 50, 8: 55}


def test_a_line_that_is_half_written_is_left_for_the_next_look(tmp_path: Path) -> None:
    file = tmp_path / "marks"
    file.write_text("first 10\n7 5")
    assert marks.parse(marks.lines(file)).started == {}
    file.write_text("first 10\n7 50\n")
    assert marks.parse(marks.lines(file)).started == {7: 50}


def test_lags_are_never_negative_and_a_task_that_never_started_is_an_error() -> None:
    assert marks.lags_ms({1: 1_000_000, 2: 0}, {1: 500_000, 2: 3_000_000}) == [0.0, 3.0]
    with pytest.raises(KeyError):
        marks.lags_ms({1: 0, 2: 0}, {1: 1})


def test_ranks_are_values_that_were_measured() -> None:
    found = marks.summary([float(n) for n in range(100)], 2.0)
    assert found["reached_per_s"] == 50
    assert (found["p50_ms"], found["p99_ms"], found["max_ms"]) == (50, 99, 99)


def test_counters_become_costs_per_task() -> None:
    before = cost.Counters(1_000, 10, 0, 0, 5)
    after = cost.Counters(41_000, 110, 100, 100, 55)
    assert after.since(before).per_task(100) == {
        "wal_bytes": 400,
        "rows_written": 3,
        "dead_rows": 2,
        "transactions": 0.5,
    }


def test_a_process_may_have_brackets_in_its_name() -> None:
    values = " ".join(str(number) for number in range(3, 53))
    assert cost.parse_stat(f"42 (postgres: (x) y) S {values}") == (3, 13 + 14, 15 + 16)


class Answering(socketserver.StreamRequestHandler):
    """A server of Redis for the commands that are asked here."""

    KNOWN: ClassVar = {b"PING": b"+PONG", b"LLEN celery": b":3", b"HLEN unacked": b":2"}

    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(self.KNOWN.get(line.strip(), b"-ERR unknown command") + b"\r\n")


@pytest.fixture
def address() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"redis://127.0.0.1:{server.server_address[1]}/0"
        server.shutdown()
        thread.join()


def test_what_is_left_in_redis_is_added_up(address: str) -> None:
    assert redis.left(address, ["LLEN celery", "HLEN unacked"]) == 5
    with pytest.raises(OSError, match="ERR unknown"):
        redis.left(address, ["LLEN celery", "SCARD x"])


def entry(name: str, drain: float, **more: Any) -> dict[str, Any]:
    return {
        "peer": name,
        "title": name.title(),
        "settings": "as it comes",
        "durability": "fsync",
        "same_transaction": True,
        "versions": {name: "1.0"},
        "drain_per_s": drain,
        "enqueue_bulk_per_s": 1_000.4,
        "single": [{"clients": 1, "per_s": 10.0}, {"clients": 16, "per_s": 90.0}],
        "latency": [
            {"asked_per_s": 100, "open_transaction": False, "p50_ms": 1.26, "p99_ms": 9.0},
            {"asked_per_s": 100, "open_transaction": True, "p50_ms": 2.0, "p99_ms": 12.0},
        ],
        "wal_insert_bytes": 300.0,
        "per_task": {"wal_bytes": 400, "rows_written": 1, "dead_rows": 0, "transactions": 0.02},
        "worker_cpu_us": None,
        "database_cpu_us": 12.0,
        **more,
    }


REPORT: dict[str, Any] = {
    "at": "2026-01-02T03:04:05Z",
    "machine": {"cpu": "Some CPU", "cores": 2, "python": "3.11.7", "load_before": [0.5, 0, 0]},
    "server": "PostgreSQL 17",
    "limits": {"drain_per_s": 300_000, "write_per_s": 80_000, "commit_per_s": 2_000},
    "peers": [
        entry("late", 50_000.0),
        entry("other", 2_000.0, same_transaction=False),
        {k: v for k, v in entry("gone", 0).items() if k in ("peer", "title", "settings")}
        | {"durability": "fsync", "same_transaction": True, "failed": "no such\nthing"},
    ],
}


def test_tables_show_ratios_of_the_same_run() -> None:
    text = table.throughput(REPORT)
    assert "| Late | 50,000 | 1.0 | 1,000 | 10 | 90 |" in text
    assert "| Other | 2,000 | 25.0 | 1,000 | 10 | 90 |" in text
    assert "Gone" not in text


def test_what_was_not_measured_is_a_dash_and_has_its_reason() -> None:
    assert "| Late | 400 | 300 | 1.00 | 0.00 | 0.020 | – | 12 |" in table.costs(REPORT)
    assert "Other" not in table.costs(REPORT)  # its tasks are in no PostgreSQL
    assert "| Gone | – | **not measured**: no such thing | yes | fsync |" in table.who(REPORT)


def test_latencies_beside_an_open_transaction_stand_beside_those_without() -> None:
    text = table.latency(REPORT)
    assert "100/s | 100/s, beside an open transaction |" in text
    assert "| Late | 1.3 / 9.0 | 2.0 / 12.0 |" in text


def test_larger_backlogs_and_more_workers_are_parts_of_the_plain_drain() -> None:
    assert table.scale(REPORT) == ""
    late = entry("late", 50_000.0, backlog=[{"tasks": 1_000_000, "drain_per_s": 45_000.0}])
    other = entry("other", 2_000.0, workers=[{"workers": 2, "drain_per_s": 3_000.0}])
    text = table.scale({**REPORT, "peers": [late, other]})
    assert "| 1,000,000 waiting | 2 workers |" in text
    assert "| Late | 0.90 | – |" in text
    assert "| Other | – | 1.50 |" in text


def test_rounds_show_what_a_held_snapshot_leaves_of_the_rate() -> None:
    assert table.enduring(REPORT) == ""
    free = {"held": False, "per_s": [1_000.0, 2_000.0], "p99_ms": 5.0}
    held = {"held": True, "per_s": [900.0, 500.0], "p99_ms": 50.25}
    late = entry("late", 50_000.0) | {"enduring": [held, free]}
    text = table.enduring({**REPORT, "peers": [late, entry("other", 1.0)]})
    assert "| Late | 1,000 | 2,000 | 5.0 | 900 | 500 | 50.2 | 0.25 |" in text
    assert "Other" not in text


def test_the_load_before_each_peer_is_said() -> None:
    late = entry("late", 50_000.0) | {"load_before": 0.25}
    assert "the run: 0.5; before each" in table.loads({**REPORT, "peers": [late]})
    assert table.loads({**REPORT, "peers": [late]}).endswith("Late 0.25.")


def test_what_late_does_alone_is_shown_in_parts_of_the_first() -> None:
    text = alone_table.text(
        {key: REPORT[key] for key in ("at", "machine", "server")}
        | {
            "load_after": 1.5,
            "backlog": [{"waiting": 10_000, "per_s": 5e4}, {"waiting": 1_000_000, "per_s": 4.5e4}],
            "workers": [
                {"task": task, "tasks": 7, "workers": n, "per_s": rate, "processors": used}
                for task, n, rate, used in (
                    ("nothing", 1, 10.0, 1.25), ("nothing", 2, 14.0, 1.96),
                    ("compute", 1, 5.0, 1.0), ("compute", 2, 9.0, 1.9),
                )
            ],
            "remote": [{"way": "push", "tasks": 9, "per_s": 3.0}],
            "parked": {"parked": 1_000_000, "due": 10, "early": 0, "p50_ms": 1.0, "p99_ms": 2.0,
                       "max_ms": 3.0, "memory_before_mib": 90.0, "memory_after_mib": 100.5},
        }
    )  # fmt: skip
    assert "Load before: 0.5, after: 1.5." in text
    assert "| in parts of the first | 1.00 | 0.90 |" in text
    assert "| 7 no-ops at once | 10 | 14 | 1.40 | 1.25 | 1.96 |" in text
    assert "| 7 tasks that compute at once | 5 | 9 | 1.80 | 1.00 | 1.90 |" in text
    assert "| late by, p50 / p99 / most, ms | 1.0 / 2.0 / 3.0 |" in text
    assert "| more than before, MiB | 10.5 |" in text
    assert "| pushed to one service, /s | 3 |" in text


def test_a_run_goes_on_where_it_ended_and_repeats_what_failed(tmp_path: Path) -> None:
    record = tmp_path / "peers.json"
    record.write_text(json.dumps(REPORT))
    options = program.parse(["--postgres", "url", "--record", str(record), "--go-on"])
    report = program.begun(SERVER, options)
    assert [one["peer"] for one in report["peers"]] == ["late", "other"]
    assert report["at"] == REPORT["at"]
    anew = program.begun(SERVER, program.parse(["--postgres", "url", "--record", str(record)]))
    assert anew["peers"] == []


class Server:
    def versions(self) -> str:
        return "PostgreSQL 17"


SERVER: Any = Server()


def test_the_page_is_what_its_sources_say() -> None:
    assert performance_doc.PAGE.read_text() == performance_doc.page(), (
        "run: python -m scripts.performance_doc"
    )


def test_without_a_recorded_run_the_page_has_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = tmp_path / "peers.json"
    monkeypatch.setattr(performance_doc, "FIGURES", figures)
    assert performance_doc.NONE in performance_doc.page()
    figures.write_text(json.dumps(REPORT))
    assert table.text(REPORT) in performance_doc.page()
    assert performance_doc.NONE not in performance_doc.page()
