"""`late target list`: what is configured here beside what workers report, and a real probe."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import late
from late.cli import output
from late.cli.app_loader import without_consumers
from late.control import Control
from late.errors import ConfigError
from late.model.targets import HttpTarget
from late.model.worker_report import TargetReport, WorkerReport
from tests.drills.kit import Bank
from tests.integration.control_kit import execute
from tests.unit.cli_kit import Cli
from tests.unit.test_cli_basics import Terminal

BANK = TargetReport(
    "bank", kind="http", where="https://bank.internal/", calls=20, failed=20,
    error="HTTP 500", error_at_us=1, open_since_us=1_800_000_000_000_000, waiting=3,
    tasks=("charge",),
)  # fmt: skip


@contextmanager
def bank(failing: float) -> Iterator[Bank]:
    server = Bank()
    server.failing = failing
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def report(url: str, *targets: TargetReport, live: bool = True) -> None:
    execute(
        url,
        "insert or replace into late_worker (worker_id, expires_at_us, started_at_us, address,"
        " consumer_groups, capacity, version) values ('w1', :until, 0, 'host:1', '[]', 1, '0')",
        until=2**60 if live else 0,
    )
    with Control(url) as control:
        told = WorkerReport("w1", "host:1", ("default",), 15.0, targets=targets)
        control.reports.write(told)
        control.reports.write(told)  # the second one takes the place of the first
        assert len(control.reports.all()) == 1


def listed(cli: Cli, *words: str, code: int = 0) -> list[dict[str, Any]]:
    ended = cli("target", "list", *words, "--json")
    assert ended.code == code, ended
    found: list[dict[str, Any]] = json.loads(ended.out)["targets"]
    return found


def test_targets_that_workers_call_are_listed_though_nobody_configures_them_here(cli: Cli) -> None:
    report(cli.url, BANK)
    [row] = listed(cli)
    assert (row["name"], row["where"], row["workers"]) == ("bank", "https://bank.internal/", 1)
    assert (row["calls"], row["failed"], row["last_error"]) == (20, 20, "HTTP 500")
    assert (row["tasks"], row["failing"]) == (["charge"], True)
    [row] = listed(cli, "--check", code=1)
    assert row["error"] == "not configured here"
    shown = cli("target", "list").out
    for part in ("open since 2027-01-15 08:00:00Z", "20 of 20", "HTTP 500", "charge"):
        assert part in shown


def test_a_worker_that_died_calls_no_target(cli: Cli) -> None:
    report(cli.url, BANK, live=False)
    assert listed(cli) == []


def test_a_row_of_a_pipe_is_not_wider_than_a_wide_terminal(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = f"HTTP 500: {'no lock of the account was to be had; ' * 4}"
    tasks = ("charge", "charge_again", "close_account", "refund", "statement_of_account")
    where = "https://bank.internal/late/tasks/of/the/shop"
    report(cli.url, msgspec.structs.replace(BANK, error=error, tasks=tasks, where=where))
    path = tmp_path / "targets.toml"
    ports = ", ".join(f'"127.0.0.1:{port}"' for port in range(1, 12))
    path.write_text(f'[billing-service]\nkind = "grpc"\nendpoints = [{ports}]\nconnect_s = 0.1\n')
    monkeypatch.setenv("LATE_TARGETS", str(path))
    for words in ((), ("--check",)):
        shown = cli("target", "list", *words).out
        assert max(map(len, shown.splitlines())) <= 200, shown
        assert "charge, charge_agai…" in shown
        assert "HTTP 500: no lock of the accoun…" in shown
    assert "not configured here" in shown
    assert "no endpoint is up" in shown
    assert listed(cli)[0]["last_error"] == error, "nothing is cut for programs"


def test_a_terminal_shows_whole_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for stream, shown in ((Terminal(), "x" * 50), (io.StringIO(), f" {'x' * 9}… ")):
        monkeypatch.setattr("sys.stdout", stream)
        output.table("Targets", ("where", "kind"), [("x" * 50, "http")], cut={"where": 10})
        assert shown in stream.getvalue()


def test_no_address_of_the_database_is_called(cli: Cli) -> None:
    with bank(0.0) as server:
        calls = threading.Event()
        server.process_request = lambda *_: calls.set()  # type: ignore[method-assign]
        report(cli.url, TargetReport("bank", kind="http", where=server.url))
        [row] = listed(cli, "--check")
        assert row["error"] == "not configured here"
        assert not calls.is_set()


def test_a_probe_is_asked_and_a_connection_alone_says_little(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bank(1.0) as server:
        path = tmp_path / "targets.toml"
        monkeypatch.setenv("LATE_TARGETS", str(path))
        path.write_text(f'[bank]\nkind = "http"\nurl = "{server.url}"\n')
        assert [row["error"] for row in listed(cli, "--check")] == [None]
        path.write_text(f'[bank]\nkind = "http"\nurl = "{server.url}"\nprobe = "/healthz"\n')
        [row] = listed(cli, "--check", code=1)
        assert row["error"] == "GET /healthz answers 503"
        server.failing = 0.0
        assert [row["error"] for row in listed(cli, "--check")] == [None]
        # It answers its probe, and the calls of workers fail: that is a finding too.
        report(cli.url, BANK)
        [row] = listed(cli, "--check", code=1)
        assert (row["error"], row["failing"], row["where"]) == (None, True, server.url)


@pytest.mark.parametrize("probe", ["healthz", "//other.example/", "/two words", "https://a/", 7])
def test_a_probe_is_a_path(probe: Any) -> None:
    with pytest.raises(ConfigError, match="probe is a path"):
        HttpTarget("bank", "https://bank.internal/", probe=probe)


def test_without_a_database_the_settings_of_this_process_are_the_answer(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATE_URL", "")
    assert listed(cli) == []
    monkeypatch.setenv("LATE_URL", "sqlite:///never.db")
    ended = cli("target", "list", "--json")
    assert ended.code == 0
    assert "what workers report is not known: no database file" in ended.err


def test_a_worker_warns_of_queues_that_consumers_pull(tmp_path: Path) -> None:
    app = late.App(f"sqlite:///{tmp_path}/x.db")
    app.route("mail", target="billing")
    assert without_consumers(app, "shop:app") is None
    app.route("payments", target="pull")
    told = without_consumers(app, "shop:app")
    assert told is not None
    assert told.startswith("consumers pull payments, and this process has no port for them")
    assert "late serve shop:app" in told
