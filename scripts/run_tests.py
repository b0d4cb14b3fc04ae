"""Run the suite in two phases: most tests four at a time, then those that need quiet two at a time.

Tests that kill processes or wait for leases of a second need processor time when they wake. Beside
three others on two cores they get it too late now and then, so they run after the others. A test
that fails fails the run: there is no second try. `tests/sizes.py` says which test is in which
phase, and which are long.

    python scripts/run_tests.py [--long] [--workers N] [arguments of pytest]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTHING_TO_RUN = 5
"""pytest's exit code where it finds no test."""
QUIET_WORKERS = 2
PHASES = (("all but the quiet ones", "not quiet"), ("the quiet ones", "quiet"))


def main(arguments: list[str], root: Path = ROOT) -> int:
    """The exit code of the first phase that fails; 5 where no phase has any test.

    Args:
        arguments: ours, then pytest's.
        root: the folder to run it in.
    """
    parser = argparse.ArgumentParser(prog="run_tests", allow_abbrev=False)
    parser.add_argument("--long", action="store_true", help="run the long tests as well")
    parser.add_argument("--workers", type=int, default=4, help="processes; 0 is this one alone")
    asked, others = parser.parse_known_args(arguments)
    environment = {**os.environ, **({"LATE_TEST_LONG": "1"} if asked.long else {})}
    codes = []
    for name, marks in PHASES:
        workers = min(asked.workers, QUIET_WORKERS) if marks == "quiet" else asked.workers
        command = [sys.executable, "-m", "pytest", "-m"]
        command.append(marks if asked.long else f"{marks} and not long")
        if workers:
            command += ["-n", str(workers), "--dist", "worksteal"]
        if codes and any(other.startswith("--cov=") for other in others):
            command.append("--cov-append")
        began = time.monotonic()
        codes.append(subprocess.run([*command, *others], cwd=root, env=environment).returncode)
        print(f"[test] {name}: {time.monotonic() - began:.0f} s", flush=True)
    if all(code == NOTHING_TO_RUN for code in codes):
        return NOTHING_TO_RUN
    return next((code for code in codes if code not in (0, NOTHING_TO_RUN)), 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
