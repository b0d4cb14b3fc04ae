"""No command writes the password of a URL, wherever the URL stands and however it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_cli_basics import COMMANDS

URL = "postgresql://ann:hunter2@127.0.0.1:1/x"


def run(*words: str, **more: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "LATE_URL"}
    done = subprocess.run(
        [sys.executable, "-m", "late", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment | more,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("dead", "list", URL),
        ("worker", URL),
        ("serve", URL),
        ("check", URL),
        ("status", URL),
        ("token", "create", URL, "--scope", URL, "--url", URL),
        ("queue", "set", "q", URL, "--url", URL),
        ("worker", "late:App", "--set", f"concurrency={URL}"),
    ],
    ids=lambda words: " ".join(words[:2])[:20],
)
def test_a_wrong_word_is_shown_without_its_password(words: tuple[str, ...]) -> None:
    said = run(*words)
    assert said
    assert "hunter2" not in said


def test_no_command_shows_it_as_a_word_too_many(capfd: pytest.CaptureFixture[str]) -> None:
    from late.cli import main

    for command in COMMANDS:
        if command in (("demo",), ("bench",), ("roles", "sql")):
            continue
        with pytest.raises(SystemExit):
            main([*command, *[URL] * 6])
        shown = capfd.readouterr()
        assert "hunter2" not in shown.out + shown.err, command


def test_a_traceback_and_what_an_app_prints_are_scrubbed(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        f"import sys\nprint({URL!r})\nprint({URL!r}, file=sys.stderr)\n"
        f"import late\nclass Odd(BaseException): pass\nraise RuntimeError({URL!r})\n"
    )
    said = run("worker", "broken:app", PYTHONPATH=f"{tmp_path}:{os.getcwd()}")
    assert "ann:***@" in said
    assert "hunter2" not in said


def test_a_defect_shows_its_traceback_without_the_password(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "import sys\nfrom late.cli import main\n"
        f"def fail(*_, **__): raise ValueError({URL!r})\n"
        "sys.modules['late.cli.main'].program = fail\nmain([])\n"
    )
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ann:***@" in done.stderr
    assert "hunter2" not in done.stderr
