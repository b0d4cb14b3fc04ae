"""What ARCHITECTURE.md and CONTRIBUTING.md say about the code is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
STEPS = re.findall(r"^\| \d+ \| .*`(late/\S+\.py)` `(\S+)` \|$", ARCHITECTURE, re.MULTILINE)
ROOMS = re.search(r"## The rooms\n(.*?)\n## ", ARCHITECTURE, re.DOTALL)
PURE = re.findall(
    r"`(late/[\w/.]+)`", "".join(re.findall(r"\| ([^|]*) \|$", str(ROOMS and ROOMS[1]), re.M))
)
_WORDS = """
asyncio concurrent http multiprocessing os queue random secrets select shutil signal socket
sqlite3 ssl subprocess tempfile threading time urllib uuid aiohttp grpc psycopg sqlalchemy
"""
IMPURE = frozenset(_WORDS.split())
"""Modules by which a file could learn the time, draw a number or do I/O."""


@pytest.mark.parametrize("text", [ARCHITECTURE, CONTRIBUTING], ids=["architecture", "contributing"])
def test_every_path_that_is_named_exists(text: str) -> None:
    named = set(re.findall(r"`((?:late|tests|scripts|docs|bench|proto|examples)/[\w/.]*)`", text))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    assert len(named) > 15


def test_the_life_of_a_task_is_ten_functions_that_exist() -> None:
    assert len(STEPS) == 10
    for path, name in STEPS:
        found = definitions((ROOT / path).read_text())
        assert name in found, f"{path} defines no {name}"


def definitions(text: str) -> set[str]:
    """Functions, classes and methods of a module, as `name` and `Class.name`."""
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            within = (ast.FunctionDef, ast.AsyncFunctionDef)
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, within)}
    return found


@pytest.mark.parametrize("path", PURE)
def test_what_is_named_pure_is_pure(path: str) -> None:
    files = [ROOT / path] if path.endswith(".py") else sorted((ROOT / path).rglob("*.py"))
    assert files
    assert [(file.name, reason) for file in files for reason in impurities(file.read_text())] == []


def impurities(text: str) -> list[str]:
    """Imports of what has a clock, chance or I/O, and whatever awaits."""
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                found += [each.name for each in names if each.name.split(".")[0] in IMPURE]
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in IMPURE:
                found.append(module)
            case ast.AsyncFunctionDef(name=name):
                found.append(f"async {name}")
    return found


def test_the_check_of_purity_sees_what_it_is_there_for() -> None:
    text = "import time\nfrom random import random\nasync def f(): ...\nimport msgspec\n"
    assert impurities(text) == ["time", "random", "async f"]
    assert len(PURE) > 8
