"""An export on the command line, what a lake then has, and a wait for what comes by itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from late_spark import lake
from typer.testing import CliRunner

from late.cli.main import app as command


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline


def exports(url: str, folder: Path) -> tuple[int, str]:
    """Export once; (new settlements, what it said)."""
    ran = CliRunner().invoke(command, ["lake", "export", str(folder), "--url", url, "--json"])
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)["settlements"], ran.stderr


def in_lake(folder: Path) -> list[int]:
    """The settlements in a lake, each as often as it is there."""
    manifest = lake.load(folder)
    assert manifest is not None
    tables = [pq.ParquetFile(folder / each.path).read() for each in manifest.files]
    return sorted(seq for table in tables for seq in table["seq"].to_pylist())
