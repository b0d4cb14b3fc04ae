"""The forms for issues can be read, and what they and the template for changes name exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from late.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github"
FORMS = sorted(path.name for path in (FOLDER / "ISSUE_TEMPLATE").glob("*.yml"))


def text_of(path: Path) -> str:
    return path.read_text()


@pytest.mark.parametrize("name", [name for name in FORMS if name != "config.yml"])
def test_a_form_asks_for_something_and_each_field_has_a_label(name: str) -> None:
    form: dict[str, Any] = yaml.safe_load(text_of(FOLDER / "ISSUE_TEMPLATE" / name))
    assert {"name", "description", "body"} <= form.keys()
    fields = [each for each in form["body"] if each["type"] != "markdown"]
    assert all(each["attributes"]["label"] for each in fields)
    assert len({each["id"] for each in fields}) == len(fields)
    assert any(each.get("validations", {}).get("required") for each in fields)


def test_the_commands_targets_and_documents_that_they_name_are_there() -> None:
    text = "".join(text_of(path) for path in FOLDER.rglob("*") if path.is_file())
    commands = getattr(typer.main.get_command(app), "commands")  # noqa: B009
    named = set(re.findall(r"`late ([a-z]+)", text))
    assert named >= {"doctor", "show"}
    assert named <= set(commands)
    targets = set(re.findall(r"`make ([a-z-]+)`", text))
    assert targets
    assert targets <= set(re.findall(r"^([a-z-]+):.*##", text_of(ROOT / "Makefile"), re.M))
    documents = set(re.findall(r"\b((?:docs/)?\w+\.md)\b", text))
    assert documents >= {"SECURITY.md", "docs/roadmap.md", "CHANGELOG.md"}
    assert all((ROOT / each).is_file() for each in documents)
