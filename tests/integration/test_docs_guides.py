"""The code of the pages on retries, tests and errors is run as it stands there."""

from __future__ import annotations

import importlib.util
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import late
from late import errors, outbox
from late.cli.main import app as command_line
from late.testing import drain
from tests.support import sqlite as store

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r'^```python title="([^"]+)"\n(.*?)^```', re.M | re.S)


def blocks(page: str) -> dict[str, str]:
    """Title -> code of a page."""
    return dict(BLOCK.findall((ROOT / "docs" / page).read_text()))


def module(path: Path, code: str) -> ModuleType:
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_each_way_to_end_of_the_page_on_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks("retries.md")
    code = found["retries.py"] + "\n\n" + found["retries.py, a handler in a process of its own"]
    page = module(tmp_path / "retries.py", code)
    store.database(tmp_path / "retries.db")
    page.app.tasks["charge"].retry.base_s = 0.001
    monkeypatch.setattr(page, "bank_is_open", lambda: False)
    cards = ["ok", "declined", "busy", "cancelled", "transfer"]
    with outbox.connect(page.app.url) as tx:
        for number, card in enumerate(cards):
            page.charge.enqueue(tx, number, card)
    assert drain(page.app, wait_s=5) == {"done": 2, "dead": 1, "discarded": 1}
    with sqlite3.connect(tmp_path / "retries.db") as connection:
        assert connection.execute("select reason from late_timer").fetchall() == [("snooze",)]
    connection.close()
    with late.testing.inline(page.app) as box, outbox.connect(page.app.url) as tx:
        page.charge.enqueue(tx, 1, "down")
        with pytest.raises(ConnectionError):
            box.run()
        box.pending.clear()
        page.convert.enqueue(tx, "a.png")
        assert box.run() == 1


def test_the_tests_of_the_page_on_tests_pass(tmp_path: Path) -> None:
    found = blocks("testing.md")
    assert list(found) == ["shop.py", "conftest.py", "test_shop.py"]
    for name, code in found.items():
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.parametrize("page", ["tenants.md", "limits.md"])
def test_the_knobs_that_a_page_turns_can_be_turned(page: str, late_db: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    lines = re.findall(r"late (queue set [a-z]+ [\w.= -]+=[\w.-]+)", text)
    assert lines
    for line in lines:
        ran = CliRunner().invoke(command_line, [*line.split(), "--url", late_db])
        assert ran.exit_code == 0, ran.output
    call = (
        late.App(late_db)
        .task(name="sync")(lambda shop: None)
        .options(headers={"tenant": "acme"}, limit_key="acme")
    )
    with outbox.connect(late_db) as tx:
        call.enqueue(tx, 7)


def test_the_page_of_errors_has_each_error() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    there = {
        name
        for place in (late, errors)
        for name, each in vars(place).items()
        if isinstance(each, type) and issubclass(each, BaseException)
    }
    # The roots of others, and what a handler ends with.
    there -= {"TaskError", "Signal", "Kept"}
    assert {name for name in there if not re.search(rf"`[\w.]*\b{name}[\w.]*`", text)} == set()
