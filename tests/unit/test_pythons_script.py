"""`make pythons`: which Pythons are tried, and what the end says of each."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import dist, pythons


@pytest.fixture
def pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Install a version by pyenv, and return the path of its Python."""
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))

    def install(version: str, code: int = 0) -> str:
        path = tmp_path / "versions" / version / "bin" / "python9.9"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\nexit {code}\n")
        path.chmod(0o755)
        return str(path)

    return install


def prove_well(python: str) -> str:
    return f"proved {Path(python).name}"


def test_one_that_is_not_found_is_named_and_no_failure() -> None:
    lines, is_well = pythons.prove_each(["python9.9", sys.executable], prove_well, are_given=False)
    assert lines[0] == "python9.9: not here"
    assert lines[1].endswith("all well")
    assert is_well


def test_one_that_was_asked_for_must_be_here() -> None:
    _, is_well = pythons.prove_each(["python9.9", sys.executable], prove_well, are_given=True)
    assert not is_well


def test_pyenvs_newest_release_that_runs_is_taken(pyenv: Callable[..., str]) -> None:
    assert dist.find("python9.9") is None
    pyenv("9.9.9")
    newest = pyenv("9.9.10")
    pyenv("9.9.11", code=1)
    pyenv("9.9.12t")
    pyenv("9.9.13rc1")
    assert dist.find("python9.9") == newest
    lines, is_well = pythons.prove_each(["python9.9"], prove_well, are_given=True)
    assert (lines, is_well) == ([f"{newest}: proved python9.9: all well"], True)


def test_what_is_on_path_or_has_a_path_is_not_looked_for(pyenv: Callable[..., str]) -> None:
    installed = pyenv("9.9.9")
    assert dist.find(sys.executable) == sys.executable
    assert dist.find("./python9.9") is None
    assert dist.find(installed) == installed


def test_none_at_all_is_a_failure(pyenv: Callable[..., str]) -> None:
    assert pythons.prove_each(["python9.9"], prove_well, are_given=False) == (
        ["python9.9: not here"],
        False,
    )


def test_a_failure_is_told_and_the_others_are_tried() -> None:
    tried: list[str] = []

    def prove(python: str) -> str:
        tried.append(python)
        if len(tried) == 1:
            raise SystemExit("the tests ended with 1")
        return "Python"

    lines, is_well = pythons.prove_each([sys.executable] * 2, prove, are_given=True)
    assert lines[0].endswith("failed: the tests ended with 1")
    assert lines[1].endswith("all well")
    assert not is_well


def test_the_tests_run_with_the_python_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\nexit 3\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(pythons.dist, "fetch", lambda command: None)
    with pytest.raises(SystemExit, match="ended with 3"):
        pythons.test(tmp_path, ["tests/unit/test_clock.py"])
    assert (tmp_path / "said").read_text().endswith("tests/unit/test_clock.py\n")


def test_the_page_on_installation_has_every_extra_and_the_pythons_that_are_named() -> None:
    with (dist.ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    page = (dist.ROOT / "docs" / "install.md").read_text()
    extras = re.findall(r"^\| `([a-z-]+)` \|", page, re.M)
    assert sorted(extras) == sorted(project["optional-dependencies"])
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert named == re.findall(r"^\| (3\.\d+) \|", page, re.M)
    assert set(pythons.PYTHONS) < {f"python{version}" for version in named}
