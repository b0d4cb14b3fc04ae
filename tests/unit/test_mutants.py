"""The tool that breaks lines at random: what it tries, what it restores, what it reports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants import coverage_map, runner
from tests.mutants.__main__ import report
from tests.mutants.areas import AREAS, ROOT, modules
from tests.mutants.coverage_map import awaits_before
from tests.mutants.equivalents import EQUIVALENTS
from tests.mutants.near_tests import near_tests
from tests.mutants.runner import Mutant, Verdict, attempt

MUTANT = Mutant("prune", "late/some.py", 1, "AddNot", "if a:", "if not a:", "if not a:\n    b\n")


class CoverageMap:
    """One test sees every line."""

    def of(self, module: str, line: int) -> list[str]:
        return ["tests/test_it.py::test_it"]


@pytest.mark.parametrize("area", AREAS)
def test_each_area_has_modules(area: str) -> None:
    assert modules(area)


@pytest.mark.parametrize("room", ["scheduler", "store", "tailer"])
def test_every_module_of_a_room_is_in_one_area(room: str) -> None:
    found = [path.relative_to(ROOT) for path in sorted((ROOT / "late" / room).rglob("*.py"))]
    tried = [path.as_posix() for path in found if "cockroach" not in path.parts]
    in_areas = [path for area in AREAS for path in modules(area)]
    assert sorted(path for path in in_areas if path.startswith(f"late/{room}/")) == tried


def test_what_is_listed_as_equivalent_is_still_there() -> None:
    for (module, before, after), reason in EQUIVALENTS.items():
        lines = [line.strip() for line in (ROOT / module).read_text().splitlines()]
        assert before in lines, f"{module} has no line {before!r} any more"
        assert before != after
        assert reason


@pytest.mark.parametrize(
    ("code", "output", "found_by"),
    [
        (1, "FAILED tests/test_it.py::test_it - AssertionError", "tests/test_it.py::test_it"),
        (2, "ERROR tests/test_it.py", "tests/test_it.py"),
        (0, "1 passed", ""),
        (-1, "not over after 1 s", "not over after 1 s"),
    ],
)
def test_a_mutant_is_tried_on_the_copy_and_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, output: str, found_by: str
) -> None:
    module = tmp_path / MUTANT.module
    module.parent.mkdir()
    module.write_text("if a:\n    b\n")
    before, tried = module.stat().st_mtime_ns, []

    def run(place: Path, command: Sequence[str]) -> tuple[int, str]:
        tried.append((place / MUTANT.module).read_text())
        return code, output

    monkeypatch.setattr(runner, "run", run)
    assert attempt(tmp_path, MUTANT, CoverageMap()).found_by == found_by  # type: ignore[arg-type]
    assert tried == [MUTANT.code]
    assert module.read_text() == "if a:\n    b\n"
    assert module.stat().st_mtime_ns == before


TIMED_OUT = """\
import asyncio


async def rest():
    try:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    except TimeoutError:
        pass


async def run():
    for number in range(2):
        try:
            raise ValueError(number)
        except ValueError:
            await rest()
            continue
    number = 0
    if number:
        await rest()
    else:
        return number
"""


@pytest.mark.parametrize(
    ("line", "before"),
    [(5, set()), (7, {6}), (9, {6, 7}), (14, set()), (18, {17}), (19, {17}), (23, {17})],
)
def test_the_await_before_a_line(line: int, before: set[int]) -> None:
    assert awaits_before(ast.parse(TIMED_OUT).body, line) == before


def test_a_line_that_runs_after_a_time_out_has_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tracer of CPython 3.11 does not see it, and the map names its test all the same."""
    module, data = tmp_path / "late" / "some.py", tmp_path / "coverage"
    module.parent.mkdir()
    module.write_text(TIMED_OUT)
    monkeypatch.setattr(coverage_map, "ROOT", tmp_path)
    program = (
        "import asyncio, coverage, runpy\n"
        f"seen = coverage.Coverage(data_file={str(data)!r}, config_file=False)\n"
        "seen.start()\n"
        "seen.switch_context('tests/test_it.py::test_it|run')\n"
        f"some = runpy.run_path({str(module)!r})\n"
        "assert asyncio.run(some['run']()) == 0\n"
        "seen.stop(); seen.save()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

    seen_by = coverage_map.CoverageMap(data)
    assert seen_by.of("late/some.py", 18) == ["tests/test_it.py::test_it"]
    assert seen_by.of("late/some.py", 5) == ["tests/test_it.py::test_it"]


def test_a_run_of_tests_that_says_nothing_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late").mkdir()
    (tmp_path / MUTANT.module).write_text("if a:\n    b\n")
    monkeypatch.setattr(runner, "run", lambda place, command: (4, "no such test"))
    with pytest.raises(RuntimeError, match="no such test"):
        attempt(tmp_path, MUTANT, CoverageMap())  # type: ignore[arg-type]


def test_the_score_decides(capsys: pytest.CaptureFixture[str]) -> None:
    found = [Verdict(MUTANT, "a test", 1.0)] * 19
    assert report("1", [*found, Verdict(MUTANT, "", 1.0)], save=False) == 0
    assert "95.0%" in capsys.readouterr().out
    assert report("1", [*found[:18], *[Verdict(MUTANT, "", 1.0)] * 2], save=False) == 1


def test_the_units_about_a_module_come_first() -> None:
    found = near_tests("late/scheduler/core/window.py")
    assert found[0] == "tests/unit/test_window.py"  # by its import
    assert "tests/unit/test_core.py" in found  # by a module of the folder, and a helper
    assert "tests/unit/test_tailer.py" not in found
    assert near_tests("late/store/spanner/rebase.py") == ()


def test_each_mutant_is_written_at_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled of a module is taken for good by its size and the second of its time."""
    module = tmp_path / MUTANT.module
    module.parent.mkdir()
    module.write_text("if a:\n    b\n")
    seconds = [int(module.stat().st_mtime)]

    def run(place: Path, command: Sequence[str]) -> tuple[int, str]:
        seconds.append(int((place / MUTANT.module).stat().st_mtime))
        return 0, ""

    monkeypatch.setattr(runner, "run", run)
    for _ in range(3):
        attempt(tmp_path, MUTANT, CoverageMap())  # type: ignore[arg-type]
    assert len(set(seconds)) == 4
