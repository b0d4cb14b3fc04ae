"""`late bench` measures in tables of its own and leaves nothing; how fast it is gates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import inspect

from late.cli.bench import measure as bench_run
from late.outbox import connect
from late.schema import migrate
from late.schema.engine import make_engine
from tests.servers import drop_database, fresh_database, postgres_url
from tests.unit.cli_kit import Cli

SMALL = ("--tasks", "200", "--seconds", "0.2", "--json")
WRITE = (
    "insert into late_task (shard_id, task_id, queue, name, payload)"
    " values (0, '01999999-0000-7000-8000-000000000000', 'q', 'n', '{}')"
)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/service.db"
        return
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL")
    made = fresh_database(admin)
    yield made
    drop_database(admin, made)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setattr(bench_run, "SINGLES", 10)
    return Cli(capsys, url)


def left_behind(url: str, folder: Path) -> list[str]:
    """Schemas and files that a measurement made."""
    if url.startswith("sqlite"):
        return [path.name for path in folder.iterdir() if "bench" in path.name]
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        rows = connection.execute("select nspname from pg_namespace where nspname ~ 'bench'")
        return [name for (name,) in rows]


def test_it_measures_in_tables_of_its_own_and_drops_them(
    cli: Cli, url: str, tmp_path: Path
) -> None:
    found = cli.fine("bench", url, *SMALL).json
    assert found["tasks"] == 200
    for name in ("enqueue_bulk", "enqueue_single", "drain"):
        assert found[f"{name}_per_s"] > 0
    assert 0 <= found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert left_behind(url, tmp_path) == []
    if not url.startswith("sqlite"):
        engine = make_engine(url)
        assert inspect(engine).get_table_names() == []
        engine.dispose()


def test_a_database_with_a_queues_data_is_refused_unless_told(
    cli: Cli, url: str, tmp_path: Path
) -> None:
    # Given a task
    migrate.upgrade(url)
    with connect(url) as tx:
        tx.execute(WRITE)
    # Then it is refused before anything is made
    said = cli.refused("bench", url, *SMALL)
    assert "holds a queue's data (late_task)" in said
    assert left_behind(url, tmp_path) == []
    # And asked for, it runs beside it and touches nothing
    cli.fine("bench", url, "--beside", *SMALL)
    assert left_behind(url, tmp_path) == []
    with connect(url) as tx:
        assert tx.execute("select count(*) from late_task").fetchone()[0] == 1


def test_other_databases_are_refused(cli: Cli) -> None:
    said = cli.refused("bench", "spanner+spanner:///projects/p/instances/i/databases/d")
    assert "PostgreSQL and SQLite" in said
    assert "needs a file" in cli.refused("bench", "sqlite:///:memory:")
