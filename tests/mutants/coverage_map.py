"""Which tests run which lines: the coverage of the suites, test by test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from coverage import CoverageData

from tests.mutants.areas import ROOT

SUITES = (
    *("tests/unit", "--ignore=tests/unit/test_soft_limit.py", "tests/conformance"),
    *(
        path.relative_to(ROOT).as_posix()
        for store in ("postgres", "sqlite", "spanner")
        for path in sorted((ROOT / "tests" / "integration").glob(f"test_{store}_*.py"))
    ),
    "tests/integration/test_group_retention.py",
    "tests/integration/test_groups.py",
    "tests/integration/test_lease_keepers.py",
)
"""All but tests that raise errors in other threads: there the tracer of the coverage hangs."""


class CoverageMap:
    """The tests that see each line.

    Args:
        path: the file with the coverage.
    """

    def __init__(self, path: Path) -> None:
        self._data = CoverageData(str(path))
        self._data.read()

    def of(self, module: str, line: int) -> list[str]:
        """Return the names of the tests that run a line, those of units first; for a line that runs
        as its module is imported, of all that use its folder."""
        lines = self._contexts(ROOT / module)
        found = _tests(lines.get(line, ()))
        if not found:
            found = {
                test
                for path in sorted((ROOT / module).parent.glob("*.py"))
                for contexts in self._contexts(path).values()
                for test in _tests(contexts)
            }
        return sorted(found, key=lambda test: (not test.startswith("tests/unit"), test))

    def _contexts(self, path: Path) -> dict[int, list[str]]:
        return self._data.contexts_by_lineno(str(path))


def _tests(contexts: Collection[str]) -> set[str]:
    return {context.rpartition("|")[0] for context in contexts} - {""}


def record(path: Path) -> None:
    """Run the tests once, as they are, and keep what they ran. They must pass."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rules = path.with_name("coveragerc")
    rules.write_text("[run]\nbranch = false\n")
    areas = ("late/scheduler", "late/store", "late/tailer")
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not quiet", *SUITES),
        *(f"--cov={ROOT / area}" for area in areas),
        *("--cov-context=test", "--cov-report=", f"--cov-config={rules}"),
    ]
    environment = {"COVERAGE_FILE": str(path)}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment)
    if done.returncode != 0:
        raise SystemExit("mutants: the tests fail as they are")
