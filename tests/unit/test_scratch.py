"""Where the files of tests are: `tests/scratch.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import scratch

ROOT = Path(scratch.__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that is the first; `monkeypatch` gives back what it was."""
    monkeypatch.setenv(scratch.VARIABLE, "")
    monkeypatch.setattr(tempfile, "tempdir", tempfile.tempdir)


def test_a_folder_is_taken_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "has_room", lambda folder: True)
    monkeypatch.setattr(scratch.atexit, "register", lambda remove: None)
    scratch.use_memory(tmp_path)
    (made,) = tmp_path.iterdir()
    assert os.environ[scratch.VARIABLE] == tempfile.gettempdir() == str(made)


def test_a_full_or_missing_one_and_a_place_that_is_asked_for_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "ROOM", 2**60)
    scratch.use_memory(tmp_path)
    monkeypatch.setattr(scratch, "ROOM", 0)
    scratch.use_memory(tmp_path / "nowhere")
    assert os.environ[scratch.VARIABLE] == ""
    monkeypatch.setenv(scratch.VARIABLE, "/elsewhere")
    scratch.use_memory(tmp_path)
    assert os.environ[scratch.VARIABLE] == "/elsewhere"
    assert list(tmp_path.iterdir()) == []


def test_the_process_that_made_it_removes_it_and_its_forks_do_not(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from tests import scratch\n"
        "scratch.has_room = lambda folder: True\n"
        f"scratch.use_memory(Path({str(tmp_path)!r}))\n"
        "made = Path(os.environ['TMPDIR'])\n"
        "if (child := os.fork()) == 0: sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "assert made.is_dir()\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert list(tmp_path.iterdir()) == []
