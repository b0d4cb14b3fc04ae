"""The groups of the suite: `scripts/run_tests.py`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts import run_tests

SUITE = """
import os, pathlib, pytest

def ran(name):
    with pathlib.Path(__file__).with_suffix(".ran").open("a") as out:
        out.write(name + " ")
    pathlib.Path(__file__).with_suffix("." + name).write_text(str(os.nice(0)))

@pytest.mark.quiet
def test_quiet():
    ran("quiet")
    assert "quiet" not in BAD

@pytest.mark.shared
def test_shared():
    ran("shared")
    assert "shared" not in BAD

@pytest.mark.long
def test_long():
    ran("long")

def test_plain():
    ran("plain")
    assert "plain" not in BAD
"""
GROUPS = ("plain", "shared", "quiet")


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs inside need no plugins: to load them takes longer than to run the tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def root(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose runs are in this process: to start one takes longer than to run the tests."""

    def run(command: list[str], cwd: Path, **_: object) -> subprocess.CompletedProcess[str]:
        assert cwd == pytester.path
        code = pytester.runpytest_inprocess(*command[command.index("pytest") + 1 :]).ret
        return subprocess.CompletedProcess(command, int(code))

    monkeypatch.setattr("scripts.run_tests.subprocess.run", run)
    return pytester.path


@pytest.mark.parametrize(
    ("bad", "options", "code", "ran"),
    [
        ("", [], 0, "plain shared quiet"),
        ("", ["--long"], 0, "long plain shared quiet"),
        ("", ["--only-long"], 0, "long"),
        ("plain", [], 1, "plain shared quiet plain"),
        ("shared", [], 1, "plain shared quiet shared"),
        ("quiet", [], 1, "plain shared quiet quiet"),
        ("", ["-k", "plain"], 0, "plain"),
        ("", ["-k", "nothing"], 5, ""),
    ],
)
def test_every_group_runs_and_a_lasting_failure_fails_the_run(
    bad: str, options: list[str], code: int, ran: str, root: Path
) -> None:
    (root / "test_suite.py").write_text(f"BAD = {bad!r}\n{SUITE}")
    (root / "pytest.ini").write_text("[pytest]\nmarkers =\n    quiet\n    long\n    shared\n")
    assert run_tests.main(["--workers", "0", "-q", *options], root) == code
    record = root / "test_suite.ran"
    assert (record.read_text().split() if record.exists() else []) == ran.split()


@pytest.mark.parametrize(("options", "beside"), [([], 3), (["--only-long"], 2)])
def test_quiet_tests_wait_where_only_long_ones_run(
    options: list[str], beside: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[list[str]] = []

    def run_beside(first_run: object, groups: Sequence[run_tests.Group]) -> list[run_tests.First]:
        together.append([group.kind for group in groups])
        return [run_tests.First(0, []) for _ in groups]

    def first(run: run_tests.Run, arguments: list[str]) -> run_tests.First:
        together.append([run.group.kind])
        return run_tests.First(0, [])

    monkeypatch.setattr(run_tests, "run_beside", run_beside)
    monkeypatch.setattr(run_tests.Run, "first", first)
    assert run_tests.main(["--workers", "2", *options], tmp_path) == 0
    kinds = ["others", "shared", "quiet"]
    assert together == ([kinds] if beside == 3 else [kinds[:2], kinds[2:]])


def test_groups_run_side_by_side_and_each_failure_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The group whose output waits for the other's end fails as well as the first. A group with a
    lower priority leaves the processors to the quiet tests when they wake."""
    (tmp_path / "test_suite.py").write_text(f"BAD = 'shared'\n{SUITE}")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    quiet\n    long\n    shared\naddopts = -p xdist.plugin\n"
    )
    assert run_tests.main(["--workers", "1", "-q"], tmp_path) == 1
    assert "FAILED AGAIN: test_suite.py::test_shared" in capfd.readouterr().out
    behind = {each: int((tmp_path / f"test_suite.{each}").read_text()) for each in GROUPS}
    assert behind["quiet"] == os.nice(0)
    assert behind["plain"] == behind["shared"] == min(19, os.nice(0) + run_tests.BEHIND)


COUNTED = """
import pytest
from code_of_two import first, second

def test_plain():
    assert first(1) == 2

@pytest.mark.quiet
def test_quiet():
    assert CALLED(1) == 2
"""


@pytest.mark.parametrize(("quiet", "code"), [("second", 0), ("first", 2)])
def test_the_coverage_of_all_groups_together_has_a_bound(
    quiet: str, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    functions = (f"def {name}(n):\n    n += 1\n    return n\n" for name in ("first", "second"))
    (tmp_path / "code_of_two.py").write_text("\n".join(functions))
    (tmp_path / "test_suite.py").write_text(COUNTED.replace("CALLED", quiet))
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    quiet\n    long\n    shared\naddopts = -p pytest_cov\n"
    )
    (tmp_path / ".coveragerc").write_text(
        "[run]\nparallel = true\nsource = code_of_two\n[report]\nfail_under = 100\n"
    )
    assert run_tests.main(["--workers", "0", "-q", "--coverage"], tmp_path) == code
    assert f"TOTAL                6      {code}" in capfd.readouterr().out


def test_a_run_that_went_wrong_itself_fails(root: Path) -> None:
    (root / "test_suite.py").write_text("import nothing_of_this_name\n")
    assert run_tests.main(["--workers", "0", "-q"], root) == 2


SOME = """
import pathlib, pytest

@pytest.mark.parametrize("n", range(7))
def test_some(n):
    kind = KINDS[n]
    seen = pathlib.Path(__file__).with_suffix(f".{n}")
    again = seen.exists()
    seen.touch()
    assert kind == "good" or (kind == "unsteady" and again)
"""


@pytest.mark.parametrize(
    ("kinds", "code", "said"),
    [
        (["good"] * 7, 0, []),
        (["unsteady", *["good"] * 5, "unsteady"], 0, ["unsteady, passed alone"] * 2),
        (["bad", "unsteady", *["good"] * 5], 1, ["FAILED AGAIN", "unsteady, passed alone"]),
        # What fails that often is no accident.
        (["unsteady"] * 7, 1, []),
    ],
)
def test_a_few_failures_are_looked_at_again(
    kinds: list[str], code: int, said: list[str], root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (root / "test_suite.py").write_text(f"KINDS = {kinds}\n{SOME}")
    (root / "pytest.ini").write_text("[pytest]\nmarkers =\n    quiet\n    long\n    shared\n")
    assert run_tests.main(["--workers", "0", "-q"], root) == code
    lines = [line for line in capfd.readouterr().out.splitlines() if "[test]   " in line]
    assert [line.partition("]   ")[2].rpartition(": ")[0] for line in lines] == said
