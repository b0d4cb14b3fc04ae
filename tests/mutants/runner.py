"""Try mutants: each in a copy of the project, with the tests that see the changed line."""

from __future__ import annotations

import itertools
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.areas import ROOT, SIMULATED
from tests.mutants.coverage_map import CoverageMap
from tests.mutants.equivalents import EQUIVALENTS
from tests.mutants.near_tests import near_tests

TEST_S = 40
"""A test that takes so long has found that something hangs: they take a second."""
LIMIT_S = 900.0
"""And so has a run of tests: the tests of a line that many run take some minutes beside other
work."""
NO_TESTS = 5
"""The exit code of pytest where all were left out."""
WORLDS = 60
_times = itertools.count(1_000_000_000)
"""When mutants are said to be written, seconds: each at another time, so that what was compiled of
one is never taken for another one of the same size, nor for the module."""


@dataclass(frozen=True)
class Mutant:
    """A change of one line."""

    area: str
    module: str
    line: int
    operator: str
    before: str
    after: str
    code: str
    """The whole module as changed."""

    def __str__(self) -> str:
        return f"{self.module}:{self.line}\n    {self.before}\n    {self.after}"

    @property
    def equivalent(self) -> str | None:
        """The reason why nobody can see it."""
        return EQUIVALENTS.get((self.module, self.before, self.after))


@dataclass(frozen=True)
class Verdict:
    """What came of one mutant."""

    mutant: Mutant
    found_by: str
    """What noticed it, or empty."""
    seconds: float


def copy(into: Path) -> None:
    """Copy the project's files, with their times."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)


def run(place: Path, command: Sequence[str]) -> tuple[int, str]:
    """Run a command on the copy; return its exit code and output. -1: it was not over in time."""
    environment = os.environ | {"PYTHONPATH": f"{place}{os.pathsep}{place / 'spark'}"}
    # What is compiled is kept: to compile late and the tests each time took longer than most tests.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return -1, f"not over after {LIMIT_S:g} s"
    return process.returncode, output


def attempt(place: Path, mutant: Mutant, seen_by: CoverageMap) -> Verdict:
    """Run what sees a mutant in a copy of the project, until something finds it: the units that are
    about its module, then the tests that run its line, then worlds."""
    began, path = time.monotonic(), place / mutant.module
    near = near_tests(mutant.module)
    others = [
        test
        for test in seen_by.of(mutant.module, mutant.line)
        if not test.startswith(tuple(f"{file}::" for file in near))
    ]
    sound, times = path.read_bytes(), path.stat()
    try:
        path.write_text(mutant.code)
        os.utime(path, (0, next(_times)))
        found_by = _pytest(place, near) or _pytest(place, others)
        if not found_by and mutant.area in SIMULATED:
            worlds = ["tests.simulator", "--seeds", str(WORLDS), "--until-broken"]
            found_by = "the simulator" if run(place, worlds)[0] else ""
    finally:
        path.write_bytes(sound)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return Verdict(mutant, found_by, time.monotonic() - began)


def _pytest(place: Path, tests: Sequence[str]) -> str:
    """Return which of the tests fails, or an empty text."""
    if not tests:
        return ""
    names = place / "mutants.txt"
    names.write_text("\n".join(tests))
    options = ["-q", "-x", "--tb=no", f"--timeout={TEST_S}", "-m", "not quiet"]
    plugins = [f"-pno:{name}" for name in ("cacheprovider", "xdist", "schemathesis")]
    code, output = run(place, ["pytest", *options, *plugins, f"@{names}"])
    if code in (0, NO_TESTS):
        return ""
    if code == -1:
        return output
    lines = [each for each in output.splitlines() if each.startswith(("FAILED ", "ERROR "))]
    if not lines:
        raise RuntimeError(f"pytest ended with {code}:\n{output[-2000:]}")
    return lines[0].split(" ")[1]


def try_all(
    mutants: Sequence[Mutant],
    places: Sequence[Path],
    seen_by: CoverageMap,
    told: Callable[[Verdict], None],
) -> list[Verdict]:
    """Try mutants, one at a time in each of the places; `told` is called as each is over."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)
    verdicts: list[Verdict] = []
    failures: list[BaseException] = []

    def work(place: Path) -> None:
        try:
            while not failures:
                verdict = attempt(place, waiting.get_nowait(), seen_by)
                verdicts.append(verdict)
                told(verdict)
        except queue.Empty:
            return
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return verdicts
