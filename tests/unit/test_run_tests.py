"""The second look at tests that failed: `scripts/run_tests.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import run_tests

SUITE = """
import pathlib, pytest

@pytest.mark.parametrize("n", range(4))
def test_some(n):
    kind = KINDS[n]
    seen = pathlib.Path(__file__).with_suffix(f".{n}")
    again = seen.exists()
    seen.touch()
    assert kind == "good" or (kind == "unsteady" and again)
"""


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs inside need no plugins: to load them takes longer than to run the tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.mark.parametrize(
    ("kinds", "code", "said"),
    [
        (["good"] * 4, 0, []),
        (["unsteady", "good", "good", "unsteady"], 0, ["unsteady, passed alone"] * 2),
        (["bad", "unsteady", "good", "good"], 1, ["FAILED AGAIN", "unsteady, passed alone"]),
        # What fails that often is no accident.
        (["unsteady"] * 4, 1, []),
    ],
)
def test_a_few_failures_are_looked_at_again(
    kinds: list[str], code: int, said: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_suite.py").write_text(f"KINDS = {kinds}\n{SUITE}")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert run_tests.main(["-q"], tmp_path) == code
    lines = [line for line in capfd.readouterr().out.splitlines() if "[test]   " in line]
    assert [line.partition("]   ")[2].rpartition(": ")[0] for line in lines] == said


def test_a_run_that_went_wrong_itself_is_not_repeated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_suite.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert run_tests.main(["-q"], tmp_path) == 2
    assert "second look" not in capfd.readouterr().out
