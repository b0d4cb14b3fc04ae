"""Runs the command line in this process: what it prints, and how it ends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from late.cli import main
from tests.support import sqlite


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """A terminal with one database named in its environment."""

    def __init__(self, capsys: pytest.CaptureFixture[str], url: str) -> None:
        self._capsys = capsys
        self.url = url

    def __call__(self, *arguments: str) -> Ended:
        self._capsys.readouterr()
        try:
            main(arguments)
            code: object = 0
        except SystemExit as end:
            code = end.code
        assert isinstance(code, int | None)
        captured = self._capsys.readouterr()
        return Ended(code or 0, captured.out, captured.err)

    def fine(self, *arguments: str) -> Ended:
        """It must work, and say nothing on stderr that looks like a fault."""
        ended = self(*arguments)
        assert ended.code == 0, ended
        return ended

    def refused(self, *arguments: str, code: int = 2) -> str:
        """It must fail with this code and one line on stderr, which is returned."""
        ended = self(*arguments)
        assert ended.code == code, ended
        assert ended.out == ""
        assert "Traceback" not in ended.err
        assert ended.err.startswith("late: ")
        assert ended.err.count("\n") == 1
        return ended.err


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """A migrated SQLite database, and a folder with a service's module to work in."""
    url = sqlite.database(tmp_path / "shop.db")
    monkeypatch.setenv("LATE_URL", url)
    monkeypatch.chdir(tmp_path)
    return Cli(capsys, url)
