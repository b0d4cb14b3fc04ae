"""Run the suite in three groups side by side: most tests, those that share, those that need quiet.

The tests of `tests/spark` and `tests/web` share one Java machine and one browser, and those of
schemathesis take seconds to collect. So they run in one process beside all others. Tests that kill
processes or wait for leases of a second need processor time when they wake, and wait for half of
their time. So they run two at a time, and all others with a lower priority beside them; but behind
the others where only long tests run.
`tests/sizes.py` says which test is where, and which are long.

A few tests that failed run once more, alone and in a fresh process, when all groups have ended.
Alone, a test that only lacked processor time passes; a defect mostly does not, for simulated worlds
go by their seeds and Hypothesis keeps its example. So that nothing hides there, more than `MOST`
failures of a group fail at once, and a test that passes the second time is named as unsteady: it
wants its cause mended.

    python scripts/run_tests.py [--long | --only-long] [--coverage] [--workers N]
                                [arguments of pytest]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 6
"""Fewer than one test in a thousand."""
TESTS_FAILED = 1
"""pytest's exit code where the run itself was in order."""
NOTHING_TO_RUN = 5
"""pytest's exit code where it finds no test."""


@dataclass(frozen=True)
class Group:
    """Tests that one pytest runs.

    Attributes:
        name: as the output calls it.
        kind: as `tests/sizes.py` calls it, which leaves out the files of the other kinds.
        marks: the expression of pytest's `-m`.
        most_workers: processes at most; 0 is pytest's own process alone.
        nice: by how much its processes, and all that they start, stand behind others.
    """

    name: str
    kind: str
    marks: str
    most_workers: int
    nice: int


BEHIND = 5
"""A process of nice 0 gets three times the processor time of one with this, and gets it at once."""
GROUPS = (
    Group("most tests", "others", "not quiet and not shared", 16, BEHIND),
    Group("Spark, browser, schemathesis", "shared", "shared", 0, BEHIND),
    Group("the quiet ones", "quiet", "quiet", 2, 0),
)
"""They run side by side. The first one's output is seen at once."""


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Return the exit code of the first group that fails; 5 where no group has any test.

    Args:
        arguments: ours, then pytest's.
        root: the folder to run it in.
    """
    parser = argparse.ArgumentParser(prog="run_tests", allow_abbrev=False)
    parser.add_argument("--long", action="store_true", help="run the long tests as well, unbounded")
    parser.add_argument("--only-long", action="store_true", help="run the long tests alone")
    parser.add_argument("--coverage", action="store_true", help="branch coverage, with its bound")
    parser.add_argument("--workers", type=int, default=3, help="processes; 0 is this one alone")
    asked, others = parser.parse_known_args(arguments)
    length = "1" if asked.long else "only" if asked.only_long else ""
    environment = {**os.environ, **({"LATE_TEST_LONG": length} if length else {})}
    # Each of the hundreds of processes that tests start would compile every module for itself.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    size = "" if asked.long else " and long" if asked.only_long else " and not long"
    traced = root / ".late" / "coverage"
    if asked.coverage:
        shutil.rmtree(traced, ignore_errors=True)
        traced.mkdir(parents=True)

    def first_run(group: Group, output: int | None = None) -> First:
        options = ["-m", group.marks + size]
        if workers := min(asked.workers, group.most_workers):
            options += ["-n", str(workers), "--dist", "worksteal"]
        ours = {**environment, "LATE_TEST_GROUP": group.kind}
        if asked.coverage:  # One group alone is below the bound.
            options += ["--cov", "--cov-branch", "--cov-report=", "--cov-fail-under=0"]
            ours["COVERAGE_FILE"] = str(traced / group.kind)
        return Run(group, root, ours, output).first([*options, *others])

    if asked.workers and asked.only_long:
        # Storms leave no processor in time, and an emulator does not answer: the quiet ones wait.
        *busy, quiet = GROUPS
        firsts = [*run_beside(first_run, busy), first_run(quiet)]
    elif asked.workers:
        firsts = run_beside(first_run, GROUPS)
    else:
        firsts = [first_run(group) for group in GROUPS]
    codes = [
        look_again(group, first, root, environment)
        for group, first in zip(GROUPS, firsts, strict=True)
    ]
    if all(code == NOTHING_TO_RUN for code in codes):
        return NOTHING_TO_RUN
    if asked.coverage:
        codes.append(report(root, traced))
    return next((code for code in codes if code not in (0, NOTHING_TO_RUN)), 0)


def report(root: Path, folder: Path) -> int:
    """Print the coverage of all groups together, and return 2 if it is below the bound.

    Args:
        root: the folder whose settings say what is counted, and the bound.
        folder: has a file of each group, and of processes that outlived the group that began them.
    """
    ours = {**os.environ, "COVERAGE_FILE": str(folder / "all")}
    found = [str(each) for each in folder.iterdir()]
    command = [sys.executable, "-m", "coverage"]
    subprocess.run([*command, "combine", "--quiet", *found], cwd=root, env=ours, check=True)
    return subprocess.run([*command, "report"], cwd=root, env=ours).returncode


@dataclass(frozen=True)
class First:
    """The first run of a group.

    Attributes:
        code: pytest's exit code.
        failed: the tests that failed.
    """

    code: int
    failed: list[str]


def run_beside(first_run: Callable[..., First], groups: Sequence[Group]) -> list[First]:
    """Run groups side by side. The first one's output is seen at once, the others' at the end."""
    first, *others = groups
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in others]
        pool = stack.enter_context(ThreadPoolExecutor(len(groups)))
        beside = [
            pool.submit(first_run, group, output.fileno())
            for group, output in zip(others, outputs, strict=True)
        ]
        found = [first_run(first), *(each.result() for each in beside)]
        for output in outputs:
            output.seek(0)
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    return found


def look_again(group: Group, first: First, root: Path, environment: dict[str, str]) -> int:
    """Return the exit code of a group: its first run's, or that of its second tries."""
    failed = first.failed
    if first.code != TESTS_FAILED or not 0 < len(failed) <= MOST:
        return first.code
    run = Run(group, root, {**environment, "LATE_TEST_GROUP": group.kind}, None)
    run.say(f"\n[test] {len(failed)} of {group.name} failed; each runs once more, alone")
    codes = [run.pytest("-p", "no:cacheprovider", test) for test in failed]
    run.say(f"\n[test] of {group.name}, these failed at first:")
    for test, second in zip(failed, codes, strict=True):
        run.say(f"[test]   {'FAILED AGAIN' if second else 'unsteady, passed alone'}: {test}")
    return max(codes)


@dataclass(frozen=True)
class Run:
    """Runs of pytest for one group.

    Attributes:
        group: its cache of failures is in a folder of its name.
        root: the folder to run it in.
        environment: of the processes.
        output: the descriptor to write to; None is our own standard output.
    """

    group: Group
    root: Path
    environment: dict[str, str]
    output: int | None

    def first(self, arguments: list[str]) -> First:
        began = time.monotonic()
        cache = Path(".pytest_cache", self.group.name.replace(" ", "-"))
        kept = self.root / cache / "v" / "cache" / "lastfailed"
        kept.unlink(missing_ok=True)
        code = self.pytest("-o", f"cache_dir={cache}", *arguments)
        failed = sorted(json.loads(kept.read_text())) if kept.exists() else []
        self.say(f"[test] {self.group.name}: {time.monotonic() - began:.0f} s")
        return First(code, failed)

    def pytest(self, *arguments: str) -> int:
        behind = ["nice", "-n", str(self.group.nice)]
        command = [*behind, sys.executable, "-m", "pytest", *arguments]
        ran = subprocess.run(command, cwd=self.root, env=self.environment, stdout=self.output)
        return ran.returncode

    def say(self, line: str) -> None:
        os.write(1 if self.output is None else self.output, f"{line}\n".encode())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
