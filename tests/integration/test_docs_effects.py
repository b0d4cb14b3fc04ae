"""The examples of docs/effects.md and docs/sql.md are run as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import late
from late.testing import drain
from late.testing.servers import postgres
from tests.servers import drop_database, fresh_database, postgres_url

ROOT = Path(__file__).resolve().parents[2]
HERE = os.environ | {"PYTHONPATH": str(ROOT)}


def block(page: str, language: str) -> str:
    """The first one of its kind."""
    found = re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S
    )
    return str(found[0])


def test_the_example_of_effects(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(block("effects.md", "python"))
    migrate, enqueue, work = (line.split() for line in block("effects.md", "sh").splitlines())
    for command in ([sys.executable, "-m", "late.cli", *migrate[1:]], [sys.executable, enqueue[1]]):
        subprocess.run(
            command, cwd=tmp_path, env=HERE, check=True, stdout=subprocess.DEVNULL, timeout=120
        )
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "late.cli", *work[1:]],
        cwd=tmp_path,
        env=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "receipt: 100 to account 1\n"
        finally:
            worker.terminate()
    with closing(sqlite3.connect(tmp_path / "bank.db")) as connection:
        assert connection.execute("select balance from account").fetchone() == (100,)
        assert connection.execute("select count(*) from late_inbox").fetchone() == (0,)


def test_the_example_of_sql_with_psql(tmp_path: Path) -> None:
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    url = fresh_database(admin)
    late_script = tmp_path / "late"
    late_script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m late.cli "$@"\n')
    late_script.chmod(0o755)
    folders = [str(tmp_path), *_programs(), os.environ["PATH"]]
    plain = url.replace("+psycopg", "")
    environment = HERE | {"PATH": os.pathsep.join(folders), "DATABASE_URL": plain}
    script = "set -e\n" + block("sql.md", "sh")
    done = subprocess.run(
        ["sh", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    app, sent = late.App(url), []

    @app.task(queue="mail")
    def send_receipt(order_id: int) -> None:
        sent.append(order_id)

    with psycopg.connect(plain) as connection:
        [(options,)] = connection.execute("select options from late_task")
        assert '"delay_us": 10000000' in options
    assert drain(app, wait_s=15.0) == {"done": 1}
    assert sent == [7]
    drop_database(admin, url)


def _programs() -> list[str]:
    """Where psql is, if not on the path."""
    if shutil.which("psql"):
        return []
    found = postgres.find_binaries()
    return [str(found)] if found else []
