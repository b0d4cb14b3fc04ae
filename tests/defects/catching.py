"""Runs the test of a defect with it and without it, and says what came of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.defects.defect import Defect

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 540
OPTIONS = ("-q", "-x", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist",
           "-p", "tests.defects.plugin")  # fmt: skip
"""Of pytest."""
_WORLD = re.compile(r"world (\d+): seed ")
_REASON = re.compile(r"^E   .*|^.*seed \d+ on .*", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """One process of pytest."""

    code: int
    output: str
    took_s: float


@dataclass(frozen=True)
class Verdict:
    """Of one defect."""

    defect: Defect
    caught: bool
    seconds: float
    worlds: int
    """How many worlds it took; 0 where no simulator was asked."""
    reason: str
    """Why its test failed, in a line; or why it does not count."""


def _pytest(tests: Sequence[str], environment: dict[str, str]) -> Run:
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", *OPTIONS, *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return Run(-1, f"not over after {LIMIT_S} s", time.monotonic() - began)
    return Run(done.returncode, done.stdout + done.stderr, time.monotonic() - began)


def judge(defect: Defect, run: Run) -> Verdict:
    """Caught is: a test has failed, and for the reason that was said beforehand."""
    lines = _REASON.findall(run.output)
    reason = next((line for line in lines if re.search(defect.because, line)), "")
    lived = _WORLD.search(run.output)
    if run.code != 1:  # 0 is all passed; 2 and above is no test at all
        reason = "not found" if run.code == 0 else f"pytest ended with {run.code}"
    caught = run.code == 1 and bool(reason)
    if run.code == 1 and not caught:
        reason = f"failed, and not for its reason: {lines[0] if lines else run.output[-200:]}"
    return Verdict(
        defect,
        caught,
        run.took_s,
        int(lived[1]) if lived else 0,
        reason.removeprefix("E   ").strip(),
    )


def catch(defect: Defect) -> Verdict:
    """Run the defect's test with the defect."""
    return judge(defect, _pytest([defect.test], defect.environment(broken=True)))


def catch_each(defects: Sequence[Defect]) -> list[Verdict]:
    """The same for several, in forks of one process: quick ones cost a fifth."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.defects.in_forks"]
    done = subprocess.run(
        [*command, *(defect.name for defect in defects)],
        cwd=ROOT,
        env=os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "false"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    runs = [Run(*json.loads(line)) for line in done.stdout.splitlines()]
    return [judge(defect, run) for defect, run in zip(defects, runs, strict=True)]


def passes_without(defect: Defect) -> Run:
    """Run it without."""
    return _pytest([defect.test], defect.environment(broken=False))
