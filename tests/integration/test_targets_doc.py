"""docs/targets.md does what it says: its files are written and its commands run."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.node import NODE, needs_node
from tests.support import sqlite

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "targets.md").read_text()
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the document, with ports that are free here."""
    blocks = re.findall(r"^```\w+\n# ([\w.]+)\n(.*?)^```", TEXT, re.M | re.S)
    assert [name for name, _ in blocks] == ["billing.py", "shop.py", "targets.toml"]
    billing, node = str(free_port()), str(free_port())
    for name, code in blocks:
        (tmp_path / name).write_text(code.replace("7000", billing).replace("7100", node))
    (tmp_path / "node.port").write_text(node)
    sqlite.database(tmp_path / "shop.db")
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Iterator[Any]:
    """Start a command of the document in `folder`; all are ended with the test."""
    with ExitStack() as stack:

        def start(*command: str, **variables: str) -> subprocess.Popen[str]:
            environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    cwd=folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process

        yield start


@needs_node
def test_the_document_works_as_it_stands(folder: Path, run: Any) -> None:
    late = (sys.executable, "-m", "late.cli")
    assert "late target list shop:app --check" in TEXT
    assert run(sys.executable, "shop.py").wait(120) == 0
    configured = {"LATE_TARGETS": "targets.toml", "NODE_SECRET": SECRET}
    listed = (*late, "target", "list", "shop:app", "--check", "--json")

    # Given nobody there yet
    check = run(*listed, **configured)
    said, _ = check.communicate(timeout=120)
    assert check.returncode == 1
    errors = {each["name"]: each["error"] for each in json.loads(said)["targets"]}
    assert errors.keys() == {"billing", "node"}
    assert all(errors.values())

    # When the services are started
    billing = run(sys.executable, "billing.py")
    port = (folder / "node.port").read_text()
    handler = str(ROOT / "examples" / "node" / "handler.mjs")
    node = run(str(NODE), handler, LATE_SECRET=SECRET, PORT=port)
    assert json.loads(node.stdout.readline()) == {"port": int(port)}
    for _ in range(20):
        check = run(*listed, **configured)
        said, _ = check.communicate(timeout=120)
        if check.returncode == 0:
            break
    found = {each["name"]: each for each in json.loads(said)["targets"]}
    assert check.returncode == 0, said
    assert (found["billing"]["tasks"], found["billing"]["protection"]) == (["charge"], "plain")
    assert (found["node"]["kind"], found["node"]["protection"]) == ("http", "plain, signed")
    assert SECRET not in said

    # Then a worker gets the tasks done
    worker = run(*late, "worker", "shop:app", **configured)
    assert billing.stdout.readline() == "trip 7: 3.50 (attempt 1)\n"
    assert json.loads(node.stdout.readline())["greeted"] == "Ada"
    worker.terminate()
    assert worker.wait(120) == 0, worker.stdout.read()


def test_a_worker_without_the_target_says_what_is_missing(folder: Path, run: Any) -> None:
    worker = run(sys.executable, "-m", "late.cli", "worker", "shop:app")
    said, _ = worker.communicate(timeout=120)
    assert worker.returncode == 2
    assert "target 'node'" in said
    assert "Traceback" not in said
