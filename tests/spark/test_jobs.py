"""The reports as files that `spark-submit` takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from late_spark import jobs, session

from late.cli.reports import report

FILES = sorted(Path(jobs.__file__).parent.glob("[!_]*.py"))


def test_every_report_is_a_job() -> None:
    commands = {each.name for each in report.app.registered_commands}
    assert {each.stem for each in FILES} == commands


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_job_is_its_command(file: Path) -> None:
    # A script's own folder is the first place that Python imports from: nothing there may have
    # the name of a module of the standard library.
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, str(file), "--from", "never"],
        capture_output=True, text=True, check=False, timeout=120,
        env={"PYTHONPATH": f"{root}:{root / 'spark'}", "PATH": "", "COLUMNS": "200"},
    )  # fmt: skip
    assert found.returncode == 2
    assert found.stderr.startswith((f"Usage: {file.name} report {file.stem}", "late: "))


def test_a_session_of_a_cluster_gets_what_the_reports_rely_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, str] = {}

    class Builder:
        def appName(self, _: str) -> Builder:
            return self

        def config(self, name: str, value: str) -> Builder:
            asked[name] = value
            return self

        def getOrCreate(self) -> str:
            return "the cluster's"

    class Sessions:
        builder = Builder()

    monkeypatch.setattr(session, "SparkSession", Sessions)
    assert session._cluster() == "the cluster's"
    assert asked["spark.sql.session.timeZone"] == "UTC"
    assert asked["spark.sql.python.filterPushdown.enabled"] == "true"
