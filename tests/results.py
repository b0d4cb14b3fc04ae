"""Keeps what the conformance suite found, for `docs/stores.md`:
`python -m pytest tests/conformance --keep-results`.

One file per store, `docs/results/NAME.json`: what it ran against, when, and how many tests passed,
failed and were skipped, with the reasons, and the statements of 1,000 tasks if they were counted
beside it. A store that was not run leaves its file alone.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "results"
SUITE = "tests/conformance/"


class Keeper:
    """Counts the suite's tests by store, in the process that hears of all of them."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, str], str] = {}
        """(store, test) -> `passed`, `failed`, or why it was skipped."""
        self._statements: dict[str, dict[str, int]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = dict(report.user_properties)
        store = told.get("store")
        if isinstance(counted := told.get("statements"), dict):
            self._statements[str(store)] = counted
        if store is None or not report.nodeid.startswith(SUITE):
            return
        key = (str(store), report.nodeid)
        if report.failed:
            self._outcomes[key] = "failed"
        elif report.skipped and isinstance(report.longrepr, tuple):
            self._outcomes[key] = report.longrepr[2].removeprefix("Skipped: ")
        else:
            self._outcomes.setdefault(key, "passed")

    def pytest_sessionfinish(self) -> None:
        from tests.conformance.backends import BACKENDS

        for backend in BACKENDS:
            counts = Counter(o for (store, _), o in self._outcomes.items() if store == backend.name)
            if counts["passed"]:
                counted = self._statements.get(backend.name)
                write(backend.name, backend.version(), counts, counted)


def write(
    store: str, version: str, counts: Counter[str], statements: dict[str, int] | None = None
) -> None:
    """Write the file of one store, of today."""
    FOLDER.mkdir(exist_ok=True)
    skipped = {reason: n for reason, n in counts.items() if reason not in ("passed", "failed")}
    kept: dict[str, Any] = {
        "ran_on": version,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "passed": counts["passed"],
        "failed": counts["failed"],
        "skipped": dict(sorted(skipped.items())),
    }
    if statements:
        kept["statements"] = statements
    (FOLDER / f"{store}.json").write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--keep-results",
        action="store_true",
        help="write what the conformance suite found to docs/results",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("keep_results") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Keeper(), "late-results")
