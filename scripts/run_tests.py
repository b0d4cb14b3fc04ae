"""Run the suite; look a second time, alone and in a fresh process, at the few tests that failed.

Hundreds of tests here kill processes, cut networks and wait for leases of one second, beside
three other such tests on two cores. What fails in there once is one of three: a defect, a test
that is wrong, or a machine that stood still for too long; a failure also leaves open sockets, for
which the next test in its process is blamed. Alone, the last kind passes and the others mostly do
not: simulated worlds go by their seeds, Hypothesis keeps its example. So that nothing hides in
the second look, it is bounded (more than `MOST` failures fail at once), and says by name which
tests it was that are unsteady: their first failure is printed above, and wants a reason.

The rejected alternative, to repeat a test at once in the same process, repeats it beside the same
neighbour, and in what its first try left behind.

    python scripts/run_tests.py [arguments of pytest]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAILED = Path(".pytest_cache", "v", "cache", "lastfailed")
MOST = 3
TESTS_FAILED = 1
"""pytest's exit code where the run itself was in order."""


def main(arguments: list[str], root: Path = ROOT) -> int:
    """The exit code: of the whole run, or of the second look at what failed in it.

    Args:
        arguments: pytest's.
        root: the folder to run it in.
    """

    def pytest(*arguments: str) -> int:
        return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=root).returncode

    kept = root / FAILED
    kept.unlink(missing_ok=True)
    code = pytest(*arguments)
    first = sorted(json.loads(kept.read_text())) if kept.exists() else []
    if code != TESTS_FAILED or not 0 < len(first) <= MOST:
        return code
    print(f"\n[test] {len(first)} failed; a second look at each, alone", flush=True)
    codes = [pytest("-p", "no:cacheprovider", test) for test in first]
    print("\n[test] of the whole run above, these failed at first:")
    for test, second in zip(first, codes, strict=True):
        print(f"[test]   {'FAILED AGAIN' if second else 'unsteady, passed alone'}: {test}")
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
