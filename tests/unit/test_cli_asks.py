"""`docs/cli.md` names every command that asks before it acts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from typer.main import get_command

from late.cli.main import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def asking(command: Any, name: str = "") -> set[str]:
    parts = getattr(command, "commands", {})
    if parts:
        return {each for part, of in parts.items() for each in asking(of, f"{name} {part}".strip())}
    return {name} if any("--yes" in option.opts for option in command.params) else set()


def test_the_page_names_all_that_ask_first() -> None:
    [told] = re.findall(r"What asks first \((.*?)\)", PAGE.read_text(), re.DOTALL)
    assert set(re.findall("`(.*?)`", told)) == asking(get_command(app))
