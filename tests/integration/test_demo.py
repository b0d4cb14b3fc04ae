"""The demo, end to end: real worker processes, a real SIGKILL, every task accounted for."""

from __future__ import annotations

import json
import os

import pytest

from examples.fulfilment.database import connect
from examples.fulfilment.main import run_demo
from late.cli import main as cli
from late.testing.servers.postgres import find_binaries
from late.testing.servers.spanner import HOST_VARIABLE, find_emulator
from tests.conformance.backends import Backend

TRIPS = 60


@pytest.fixture
def database_url(backend: Backend, empty_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database. The survivor may take over after a second instead of five, except on an
    emulator: there a heartbeat may have to wait its turn for that long."""
    if not backend.emulated:
        monkeypatch.setenv("LATE_LEASE_TTL_S", "1")
    return empty_url


def test_every_task_is_done_although_a_worker_is_killed(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_demo(database_url, count=TRIPS, kill=True, json=True)
    shown = capsys.readouterr()
    assert code == 0, shown.out + shown.err
    verdict = json.loads(shown.out)
    assert verdict["ok"]
    checks = {line["what"]: line for line in verdict["checks"]}
    assert checks["charge done"]["expected"] == str(TRIPS - TRIPS // 10)
    assert checks["workers that stopped cleanly"]["found"] == "1"


def test_a_second_run_on_the_same_database_checks_its_own_trips(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        code = run_demo(database_url, count=10, kill=False, json=True)
        shown = capsys.readouterr()
        assert code == 0, shown.out + shown.err
        checks = {line["what"]: line["found"] for line in json.loads(shown.out)["checks"]}
        assert checks["trips in the database"] == "9"
        assert checks["runs repeated after the kill"] == "0"
    database = connect(database_url, connections=1)
    assert len(database.booked(0)) == 18
    database.close()


@pytest.mark.parametrize("store", ["sqlite", "postgres", "spanner"])
def test_the_command_brings_up_what_it_needs_and_takes_it_down(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if store == "postgres" and find_binaries() is None:
        pytest.skip("no PostgreSQL: install one")
    if store == "spanner" and find_emulator() is None:
        pytest.skip("no Spanner emulator: gcloud components install cloud-spanner-emulator")
    monkeypatch.delenv(HOST_VARIABLE, raising=False)
    before = dict(os.environ)
    code = main(["demo", "--store", store, "--count", "10", "--no-kill", "--json"])
    shown = capsys.readouterr()
    assert code == 0, shown.out + shown.err
    verdict = json.loads(shown.out)
    assert verdict["ok"]
    assert verdict["store"].startswith(store)
    assert dict(os.environ) == before


def test_a_store_and_a_url_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--store", "spanner", "--url", "sqlite:///x.db"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_without_an_emulator_the_command_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(HOST_VARIABLE, raising=False)
    monkeypatch.setattr("late.testing.servers.spanner.find_emulator", lambda: None)
    assert main(["demo", "--store", "spanner"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "gcloud components install cloud-spanner-emulator" in err
    assert HOST_VARIABLE in err


def test_a_dead_emulator_is_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOST_VARIABLE, "127.0.0.1:1")
    assert main(["demo", "--store", "spanner"]) == 1
    assert capsys.readouterr().err == (
        f"late: no emulator answers at {HOST_VARIABLE}=127.0.0.1:1\n"
    )


def test_bad_input_is_a_message_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(None, count=0, json=True) == 2
    assert "at least one trip" in capsys.readouterr().err


def main(arguments: list[str]) -> int:
    """The command line in this process; its exit code."""
    with pytest.raises(SystemExit) as end:
        cli(arguments)
    assert isinstance(end.value.code, int)
    return end.value.code
