"""`make bench-guard`: instructions that one plain task costs the worker's process, against a kept
count. Time says little on a shared machine; a count is the same within a thousandth.

    python -m bench.guard            # fails where a task takes 10 % more than was kept
    python -m bench.guard --keep     # keep the present count: with the change that explains it
    python -m bench.guard --metrics  # fails where counting for metrics takes 5 % of a task or more
    python -m bench.guard --shapes   # a table of tasks with options, beside the plain one; fails
                                     # where one is 10 % dearer beside it than was kept

`bench/path.py` runs twice, with few tasks and with many: the difference is what the tasks cost, and
the start of the interpreter is not in it. The kernel's `perf` counts where it may, else valgrind,
which takes minutes. Both count the same instructions, and neither is part of Python: without any of
them nothing is measured, and that is said and fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.path_tasks import SHAPES

KEPT = Path(__file__).resolve().parent / "guard.json"
FEW, MANY = 4_000, 20_000
FEW_SHAPED, MANY_SHAPED = 1_000, 4_000
MORE_MAX = 0.10
METRICS_MAX = 0.05
PERF = ("perf", "stat", "-x,", "-e", "instructions:u")
VALGRIND = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
_COUNTS = (re.compile(r"^(\d+),[^,]*,instructions", re.M), re.compile(r"I +refs: +([\d,]+)"))


class Unmeasured(Exception):
    """Nothing here can count instructions, or the path failed; the message says which."""


def parse(said: str) -> int | None:
    """The count in what perf or valgrind wrote; None where there is none."""
    for pattern in _COUNTS:
        if found := pattern.search(said):
            return int(found.group(1).replace(",", ""))
    return None


def counted(tool: Sequence[str], tasks: int, more: Sequence[str] = ()) -> int | None:
    """Instructions of a whole run with `tasks` tasks and the options `more`; None where the tool
    may not count here.

    Raises:
        Unmeasured: the path itself failed.
    """
    command = [*tool, sys.executable, "-m", "bench.path", "--tasks", str(tasks), *more]
    variables = os.environ | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode and f"{tasks} tasks" not in done.stdout:
        if parse(done.stderr) is None and "Traceback" not in done.stderr:
            return None
        raise Unmeasured(f"bench.path failed:\n{done.stderr[-2_000:]}")
    return parse(done.stderr)


def per_task(*more: str, few: int = FEW, many: int = MANY) -> tuple[float, str]:
    """Instructions per task with the options `more`, and what counted them.

    Raises:
        Unmeasured: see the class.
    """
    for tool in (PERF, VALGRIND):
        if shutil.which(tool[0]) is None:
            continue
        first = counted(tool, few, more)
        if first is None:
            continue
        second = counted(tool, many, more)
        assert second is not None, f"{tool[0]} counted once and then no more"
        return (second - first) / (many - few), tool[0]
    raise Unmeasured("neither perf nor valgrind counts instructions here")


def build() -> str:
    """Identify the interpreter: another one needs other instructions for the same path."""
    return f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])}"


def judge(found: float, kept: dict[str, object], here: str) -> tuple[bool, str]:
    """Judge `found`, and return the words for it."""
    if kept["build"] != here:
        return False, f"kept under {kept['build']}, this is {here}: compare like with like"
    before = float(str(kept["instructions_per_task"]))
    said = f"{found:,.0f} instructions per task, {before:,.0f} kept: {found / before - 1:+.1%}"
    if found > before * (1 + MORE_MAX):
        return False, f"{said}, more than {MORE_MAX:.0%} are not accepted"
    return True, said


def judge_metrics(without: float, having: float) -> tuple[bool, str]:
    """Judge the cost of metrics by the instructions of a task without and with them."""
    share = having / without - 1
    said = f"{without:,.0f} instructions per task, {having:,.0f} with metrics: {share:+.2%}"
    if share >= METRICS_MAX:
        return False, f"{said}, {METRICS_MAX:.0%} are not accepted"
    return True, said


def shaped() -> tuple[dict[str, float], str]:
    """Instructions per task of each shape, and what counted them.

    Raises:
        Unmeasured: see the class.
    """
    found, tool = {}, ""
    for name in SHAPES:
        found[name], tool = per_task("--shape", name, few=FEW_SHAPED, many=MANY_SHAPED)
    return found, tool


def judge_shapes(found: dict[str, float], kept: dict[str, object]) -> tuple[bool, str]:
    """Judge each shape beside the plain one of the same run, and return the table."""
    before = kept["shapes"]
    assert isinstance(before, dict)
    fine = True
    lines = ["| task | instructions | of a plain one | kept |", "|---|---|---|---|"]
    for name, count in found.items():
        ratio, was = count / found["plain"], before[name] / before["plain"]
        dearer = ratio > was * (1 + MORE_MAX)
        fine = fine and not dearer
        mark = " (too many)" if dearer else ""
        lines.append(f"| {SHAPES[name].says} | {count:,.0f} | {ratio:.2f}{mark} | {was:.2f} |")
    return fine, "\n".join(lines)


def keep(key: str, value: object) -> None:
    """Write a count down, with the interpreter that it is of."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    KEPT.write_text(json.dumps(kept | {key: value, "build": build()}, indent=1) + "\n")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="write the present count down")
    parser.add_argument("--metrics", action="store_true", help="what counting for metrics adds")
    parser.add_argument(
        "--shapes", action="store_true", help="tasks with options, beside the plain"
    )
    options = parser.parse_args(arguments)
    try:
        shapes, tool = shaped() if options.shapes else ({}, "")
        found, tool = (0.0, tool) if options.shapes else per_task()
        having = per_task("--metrics")[0] if options.metrics else found
    except Unmeasured as reason:
        print(f"bench-guard: {reason}", file=sys.stderr)
        return 2
    if options.keep and shapes:
        keep("shapes", {name: round(count) for name, count in shapes.items()})
    elif options.keep:
        keep("instructions_per_task", round(found))
        print(f"kept: {found:,.0f} instructions per task, by {tool}")
        return 0
    kept = json.loads(KEPT.read_text())
    if shapes:
        fine, said = judge_shapes(shapes, kept)
    elif options.metrics:
        fine, said = judge_metrics(found, having)
    else:
        fine, said = judge(found, kept, build())
    print(
        f"{said}\n(by {tool})" if shapes else f"{said} (by {tool})",
        file=sys.stdout if fine else sys.stderr,
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
