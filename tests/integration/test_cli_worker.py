"""`late worker` as a process: it runs what was enqueued, logs, and stops when it is asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SERVICE = """
import os
import late

app = late.App(os.environ["SHOP_URL"])

@app.task(queue="mail")
def greet(name: str) -> None:
    path = os.environ["SHOP_OUT"]
    with open(path + ".part", "w") as out:
        out.write(f"hello {name}")
    os.rename(path + ".part", path)
"""


@pytest.fixture
def environment(url: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "shop.py").write_text(SERVICE)
    return os.environ | {"SHOP_URL": url, "SHOP_OUT": str(tmp_path / "out"), "LATE_URL": url}


def late(folder: Path, environment: dict[str, str], *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "late.cli", *arguments],
        cwd=folder, env=environment, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


def test_a_worker_runs_a_task_and_stops_on_sigterm(
    environment: dict[str, str], tmp_path: Path
) -> None:
    late(tmp_path, environment, "enqueue", "greet", "--app", "shop", "--args", '{"name": "Ada"}')
    process = subprocess.Popen(
        [sys.executable, "-m", "late.cli", "worker", "shop:app", "--log-json"],
        cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        out = tmp_path / "out"
        deadline = time.monotonic() + 120
        while not out.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert out.read_text() == "hello Ada"
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, logged
    lines = [json.loads(line) for line in logged.splitlines()]
    assert any("start" in line["message"] for line in lines)
    assert "Ada" not in logged
    status = json.loads(late(tmp_path, environment, "status", "--json"))
    assert status["workers"] == []
    assert sum(queue["depth"]["n"] + queue["in_flight"]["n"] for queue in status["queues"]) == 0


def test_a_worker_without_a_schema_says_so(
    empty_url: str, environment: dict[str, str], tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "late.cli", "worker", "shop"],
        cwd=tmp_path, env=environment | {"SHOP_URL": empty_url},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    *_, last = ended.stderr.splitlines()
    assert last.startswith("late: ")
    assert "run `late migrate" in last
    assert "Traceback" not in ended.stderr
