"""The demo, end to end: real worker processes, a real SIGKILL, every task accounted for."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from sqlalchemy import func, select

from examples.fulfilment import database
from examples.fulfilment.main import run_demo
from tests import servers

TRIPS = 60


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/fulfilment.db"
        return
    admin = servers.postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    fresh = servers.fresh_database(admin)
    yield fresh
    servers.drop_database(admin, fresh)


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The survivor may take over after a second instead of five."""
    monkeypatch.setenv("LATE_LEASE_TTL_S", "1")


def test_every_task_is_done_although_a_worker_is_killed(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_demo(url, count=TRIPS, kill=True, json=True)
    shown = capsys.readouterr()
    assert code == 0, shown.out + shown.err
    verdict = json.loads(shown.out)
    assert verdict["ok"]
    checks = {line["what"]: line for line in verdict["checks"]}
    assert checks["charge done"]["expected"] == str(TRIPS - TRIPS // 10)
    assert checks["workers that stopped cleanly"]["found"] == "1"


def test_a_second_run_on_the_same_database_checks_its_own_trips(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        code = run_demo(url, count=10, kill=False, json=True)
        shown = capsys.readouterr()
        assert code == 0, shown.out + shown.err
        checks = {line["what"]: line["found"] for line in json.loads(shown.out)["checks"]}
        assert checks["trips in the database"] == "9"
        assert checks["runs repeated after the kill"] == "0"
    engine = database.connect(url, connections=1)
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(database.trips)) == 18
    engine.dispose()


def test_bad_input_is_a_message_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo(None, count=0, json=True) == 2
    assert "at least one trip" in capsys.readouterr().err
