"""Try mutants: each in forks of a warm process, with the tests that see the changed line."""

from __future__ import annotations

import json
import os
import queue
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
from tests.mutants.hook import sitecustomize

TEST_S = 40
"""A test that takes so long has found that something hangs: they take a second."""
LIMIT_S = 900.0
"""And so has a run of tests: the tests of a line that many run take some minutes beside other
work."""
WORLDS = 60


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
        above = self.code.splitlines()[: self.line - 1][-1:]
        lines = (self.before, "\n".join((*map(str.strip, above), self.before)))
        found = (EQUIVALENTS.get((self.module, before, self.after)) for before in lines)
        return next(filter(None, found), None)


@dataclass(frozen=True)
class Verdict:
    """What came of one mutant."""

    mutant: Mutant
    found_by: str
    """What noticed it, or empty."""
    seconds: float


class ForkServer:
    """A process whose forks run pytest on mutants; see `fork_server.py`.

    Args:
        place: a folder of its own, for what it is given and what pytest says.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        hooks, spark = Path(sitecustomize.__file__).parent, ROOT / "spark"
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (hooks, ROOT, spark))),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(place / "hypothesis"),
            sitecustomize.VARIABLE: str(place / "mutant.json"),
        }
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process: subprocess.Popen[str] | None = None

    def put(self, mutant: Mutant) -> None:
        """Make the next runs those of this mutant."""
        changed = {"module": mutant.module, "code": mutant.code}
        (self.place / "mutant.json").write_text(json.dumps(changed))

    def pytest(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Return pytest's exit code and output. -1: it was not over in time."""
        output = self.place / "output.txt"
        asked = {
            "mutant": str(self.place / "mutant.json"), "arguments": arguments,
            "output": str(output), "limit_s": LIMIT_S,
        }  # fmt: skip
        if self._process is None:
            environment = {**self.environment}
            del environment[sitecustomize.VARIABLE]  # the server itself runs no mutant
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.mutants.fork_server"],
                cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(asked), file=process.stdin, flush=True)
        code = int(process.stdout.readline())
        return code, output.read_text() if code != -1 else f"not over after {LIMIT_S:g} s"

    def simulator(self) -> bool:
        """Tell whether a world breaks."""
        command = [sys.executable, "-m", "tests.simulator", "--seeds", str(WORLDS)]
        with subprocess.Popen(
            [*command, "--until-broken"], cwd=ROOT, env=self.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                return process.wait(timeout=LIMIT_S) != 0
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                return True

    def close(self) -> None:
        """End the process. Calling it twice is fine."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate()


def attempt(server: ForkServer, mutant: Mutant, seen_by: CoverageMap) -> Verdict:
    """Run what sees a mutant, the quick ones first, until something finds it."""
    began = time.monotonic()
    tests = seen_by.of(mutant.module, mutant.line)
    server.put(mutant)
    found_by = _pytest(server, tests) if tests else ""
    if not found_by and mutant.area in SIMULATED and server.simulator():
        found_by = "the simulator"
    return Verdict(mutant, found_by, time.monotonic() - began)


def _pytest(server: ForkServer, tests: Sequence[str]) -> str:
    """Return which of the tests fails, twice, or an empty text: what fails once had an eye on the
    load of the machine."""
    while tests:
        found_by = _first_failure(server, tests)
        if not found_by or found_by not in tests:
            return found_by
        if _first_failure(server, [found_by]):
            return found_by
        tests = tests[tests.index(found_by) + 1 :]
    return ""


def _first_failure(server: ForkServer, tests: Sequence[str]) -> str:
    names = server.place / "tests.txt"
    names.write_text("\n".join(tests))
    options = ["-q", "-x", "--tb=no", f"--timeout={TEST_S}", f"@{names}"]
    options += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    left_out = [f"-pno:{name}" for name in ("cacheprovider", "xdist", "schemathesis")]
    code, output = server.pytest([*options, *left_out])
    if code == 0:
        return ""
    if code == -1:
        return output
    lines = [each for each in output.splitlines() if each.startswith(("FAILED ", "ERROR "))]
    if not lines:
        raise RuntimeError(f"pytest ended with {code}:\n{output[-2000:]}")
    # The name may have spaces; what comes after it begins with " - ".
    return lines[0].partition(" ")[2].partition(" - ")[0]


def try_all(
    mutants: Sequence[Mutant],
    servers: Sequence[ForkServer],
    seen_by: CoverageMap,
    told: Callable[[Verdict], None],
) -> list[Verdict]:
    """Try mutants, one at a time with each of the servers; `told` is called as each is over."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)
    verdicts: list[Verdict] = []
    failures: list[BaseException] = []

    def work(server: ForkServer) -> None:
        try:
            while not failures:
                verdict = attempt(server, waiting.get_nowait(), seen_by)
                verdicts.append(verdict)
                told(verdict)
        except queue.Empty:
            return
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return verdicts
