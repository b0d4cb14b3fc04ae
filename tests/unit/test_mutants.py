"""The tool that breaks lines at random: what it tries, what it restores, what it reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants import runner
from tests.mutants.__main__ import report
from tests.mutants.areas import AREAS, ROOT, modules
from tests.mutants.equivalents import EQUIVALENTS
from tests.mutants.runner import Mutant, Verdict, attempt

MUTANT = Mutant("prune", "late/some.py", 1, "AddNot", "if a:", "if not a:", "if not a:\n    b\n")


class CoverageMap:
    """One test sees every line."""

    def of(self, module: str, line: int) -> list[str]:
        return ["tests/test_it.py::test_it"]


@pytest.mark.parametrize("area", AREAS)
def test_each_area_has_modules(area: str) -> None:
    assert modules(area)


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
