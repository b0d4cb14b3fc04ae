"""The tool that breaks lines at random: what it tries, what finds it, what it reports."""

from __future__ import annotations

import ast
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants import coverage_map, runner
from tests.mutants.__main__ import report
from tests.mutants.areas import AREAS, ROOT, modules
from tests.mutants.coverage_map import awaits_before, lines_of_statement
from tests.mutants.equivalents import EQUIVALENTS
from tests.mutants.runner import ForkServer, Mutant, Verdict, attempt

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
        places = ["\n".join(two) for two in itertools.pairwise(lines)]
        assert before in (places if "\n" in before else lines), f"{module} has not {before!r}"
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
def test_what_pytest_says_is_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, output: str, found_by: str
) -> None:
    monkeypatch.setattr(ForkServer, "pytest", lambda server, arguments: (code, output))
    server = ForkServer(tmp_path)
    assert attempt(server, MUTANT, CoverageMap()).found_by == found_by  # type: ignore[arg-type]
    assert json.loads((tmp_path / "mutant.json").read_text())["code"] == MUTANT.code


def test_a_test_that_fails_once_has_found_nothing_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests, failures = ["a::first", "a::second[x y]", "a::third"], ["a::first", "", "a::second[x y]"]
    tried = []

    def pytest(server: ForkServer, arguments: Sequence[str]) -> tuple[int, str]:
        tried.append((server.place / "tests.txt").read_text().split("\n"))
        failed = failures.pop(0) if failures else tried[-1][0]
        return (1, f"FAILED {failed} - AssertionError") if failed else (0, "1 passed")

    monkeypatch.setattr(ForkServer, "pytest", pytest)
    assert runner._pytest(ForkServer(tmp_path), tests) == "a::second[x y]"
    assert tried == [tests, tests[:1], tests[1:], tests[1:2]]


LINES = """\
def limit():
    from late.scheduler.retry_delay import retry_delay_us
    return retry_delay_us


def test_it():
    assert limit() == 17
"""


@pytest.mark.parametrize(("code", "found"), [("retry_delay_us = 17\n", 0), ("x = 1 / 0\n", 1)])
def test_a_fork_runs_the_changed_module_and_the_tree_stays_as_it_is(
    tmp_path: Path, code: str, found: int
) -> None:
    test, module = tmp_path / "test_it.py", "late/scheduler/retry_delay.py"
    test.write_text(LINES)
    before = (ROOT / module).read_bytes()
    server = ForkServer(tmp_path / "place")
    try:
        server.put(Mutant("loop", module, 1, "AddNot", "", "", code))
        arguments = ["-q", "-pno:cacheprovider", f"--rootdir={tmp_path}", str(test)]
        assert server.pytest(arguments)[0] == found
    finally:
        server.close()
    assert (ROOT / module).read_bytes() == before


TEXT = """\
QUERY = (
    "select"
    " all"
)


def read(rows):
    for row in rows:
        take(
            row,
        )
    return (
        1
    )
"""


@pytest.mark.parametrize(
    ("line", "lines"),
    [(3, {1, 2, 3, 4}), (8, {8}), (10, {9, 10, 11}), (13, {12, 13, 14}), (5, {5})],
)
def test_the_lines_of_a_statement(line: int, lines: set[int]) -> None:
    assert set(lines_of_statement(ast.parse(TEXT).body, line)) == lines


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


def test_a_module_of_constants_has_the_units_that_import_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imported = {line: [""] for line in range(1, 100)}
    monkeypatch.setattr(coverage_map.CoverageMap, "_contexts", lambda *_: imported)
    found = coverage_map.CoverageMap().of("late/store/common/followed.py", 20)
    assert found == ["tests/unit/test_followed.py"]


def test_a_run_of_tests_that_says_nothing_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ForkServer, "pytest", lambda server, arguments: (4, "no such test"))
    with pytest.raises(RuntimeError, match="no such test"):
        attempt(ForkServer(tmp_path), MUTANT, CoverageMap())  # type: ignore[arg-type]


def test_the_score_decides(capsys: pytest.CaptureFixture[str]) -> None:
    found = [Verdict(MUTANT, "a test", 1.0)] * 19
    assert report("1", [*found, Verdict(MUTANT, "", 1.0)], save=False) == 0
    assert "95.0%" in capsys.readouterr().out
    assert report("1", [*found[:18], *[Verdict(MUTANT, "", 1.0)] * 2], save=False) == 1
