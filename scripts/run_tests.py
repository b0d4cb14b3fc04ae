"""Run the suite in two phases: most tests four at a time, then those that need quiet two at a time.

Tests that kill processes or wait for leases of a second need processor time when they wake. Beside
three others on two cores they get it too late now and then, so they run after the others.
`tests/sizes.py` says which test is in which phase, and which are long.

A few tests that failed run once more, alone and in a fresh process. Alone, a test that only lacked
processor time passes; a defect mostly does not, for simulated worlds go by their seeds and
Hypothesis keeps its example. So that nothing hides there, more than `MOST` failures of a phase fail
at once, and a test that passes the second time is named as unsteady: it wants its cause mended.

    python scripts/run_tests.py [--long | --only-long] [--coverage] [--workers N]
                                [arguments of pytest]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAILED = Path(".pytest_cache", "v", "cache", "lastfailed")
MOST = 3
TESTS_FAILED = 1
"""pytest's exit code where the run itself was in order."""
NOTHING_TO_RUN = 5
"""pytest's exit code where it finds no test."""
QUIET_WORKERS = 2
PHASES = (("all but the quiet ones", "not quiet"), ("the quiet ones", "quiet"))


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Return the exit code of the first phase that fails; 5 where no phase has any test.

    Args:
        arguments: ours, then pytest's.
        root: the folder to run it in.
    """
    parser = argparse.ArgumentParser(prog="run_tests", allow_abbrev=False)
    parser.add_argument("--long", action="store_true", help="run the long tests as well, unbounded")
    parser.add_argument("--only-long", action="store_true", help="run the long tests alone")
    parser.add_argument("--coverage", action="store_true", help="print the branch coverage")
    parser.add_argument("--workers", type=int, default=4, help="processes; 0 is this one alone")
    asked, others = parser.parse_known_args(arguments)
    environment = {**os.environ, **({"LATE_TEST_LONG": "1"} if asked.long else {})}
    size = "" if asked.long else " and long" if asked.only_long else " and not long"
    codes = []
    for name, marks in PHASES:
        workers = min(asked.workers, QUIET_WORKERS) if marks == "quiet" else asked.workers
        options = ["-m", marks + size]
        if workers:
            options += ["-n", str(workers), "--dist", "worksteal"]
        if asked.coverage:
            options += ["--cov", "--cov-branch", "--cov-report=term"]
            options += ["--cov-append"] if codes else []
        began = time.monotonic()
        codes.append(run([*options, *others], root, environment))
        print(f"[test] {name}: {time.monotonic() - began:.0f} s", flush=True)
    if all(code == NOTHING_TO_RUN for code in codes):
        return NOTHING_TO_RUN
    return next((code for code in codes if code not in (0, NOTHING_TO_RUN)), 0)


def run(arguments: list[str], root: Path, environment: dict[str, str]) -> int:
    """Return the exit code of one phase: the first run's, or that of its second tries."""

    def pytest(*arguments: str) -> int:
        command = [sys.executable, "-m", "pytest", *arguments]
        return subprocess.run(command, cwd=root, env=environment).returncode

    kept = root / FAILED
    kept.unlink(missing_ok=True)
    code = pytest(*arguments)
    first = sorted(json.loads(kept.read_text())) if kept.exists() else []
    if code != TESTS_FAILED or not 0 < len(first) <= MOST:
        return code
    print(f"\n[test] {len(first)} failed; each runs once more, alone", flush=True)
    codes = [pytest("-p", "no:cacheprovider", test) for test in first]
    print("\n[test] of the phase above, these failed at first:")
    for test, second in zip(first, codes, strict=True):
        print(f"[test]   {'FAILED AGAIN' if second else 'unsteady, passed alone'}: {test}")
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
