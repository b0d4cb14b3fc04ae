"""docs/payloads.md does what it says: its app seals, and its keys can be rotated."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import late
from late.control import Control, Filter
from late.testing import drain
from tests.support import sqlite

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "payloads.md").read_text()


def test_the_keys_are_rotated_as_the_document_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"^```python\n# sealed.py\n(.*?)^```", TEXT, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    url = sqlite.database(tmp_path / "sealed.db")
    for name in ("a", "b"):
        monkeypatch.setenv(f"PAYLOAD_KEY_{name}", (name.encode() * 32).hex())

    def loaded(keys: str, current: str, name: str) -> late.App:
        monkeypatch.setenv("KEYS", keys)
        monkeypatch.setenv("CURRENT", current)
        module: dict[str, Any] = {"__name__": name}
        exec(compile(code, "sealed.py", "exec"), module)
        app: late.App = module["app"]
        return app

    loaded("a", "a", "__main__")
    loaded("a b", "b", "__main__")
    with sqlite3.connect("sealed.db") as tx:
        stored = [bytes(row[0]) for row in tx.execute("select payload from late_task")]
    assert len(stored) == 2
    assert not any(b"4111" in payload for payload in stored)
    # Given a ring from which the old key was taken too early
    assert drain(loaded("b", "b", "sealed")) == {"done": 1, "dead": 1}
    with Control(url) as control:
        (letter,) = control.dead_letters.find(Filter(reason="bad_signature"))
        assert control.dead_letters.redrive(Filter(reason="bad_signature")).count == 1
    # When it is back, nothing is lost
    assert drain(loaded("a b", "b", "sealed"), wait_s=1.0) == {"done": 1}
    assert letter.errors
    capsys.readouterr()
