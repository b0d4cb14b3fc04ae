"""A service's code as its type checker sees it, in mypy's and in pyright's strict mode.

A line that must be refused ends with `# error: MYPY, PYRIGHT`: the code of each checker's error.
Every other line of these files must pass.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted(path for path in HERE.glob("*.py") if not path.name.startswith(("test_", "__")))
CACHE = ROOT / ".mypy_cache" / "users"
MARK = re.compile(r"# error: ([a-z-]+), (report\w+)$")
Found = dict[str, set[str]]
"""File and line -> the codes of the errors there."""


def place(path: str | Path, line: int) -> str:
    return f"{Path(path).name}:{line}"


def marked(checker: int) -> dict[str, str]:
    """Read the marks of all files: file and line -> the code for mypy (0) or pyright (1)."""
    expected = {}
    for path in FILES:
        for number, text in enumerate(path.read_text().splitlines(), 1):
            if "# error" in text:
                mark = MARK.search(text)
                assert mark, f"{place(path, number)}: write `# error: MYPY, PYRIGHT`"
                expected[place(path, number)] = mark.groups()[checker]
    return expected


def compare(found: Found, expected: dict[str, str]) -> Iterator[str]:
    """Tell each difference. A mistake may cause further errors in its own line."""
    for where in sorted(found.keys() | expected.keys()):
        codes, code = found.get(where, set()), expected.get(where)
        if code is None:
            yield f"{where} is refused: {', '.join(sorted(codes))}"
        elif code not in codes:
            yield f"{where} has no error {code}, but {', '.join(sorted(codes)) or 'none'}"


def mypy() -> Found:
    # Without the project's settings: a user has others.
    options = ["--config-file=", "--strict", "--follow-imports=silent", "--output=json"]
    out, err, _ = api.run([*options, f"--cache-dir={CACHE}", *map(str, FILES)])
    assert not err, err
    found: Found = {}
    for each in map(json.loads, out.splitlines()):
        if each["severity"] == "error":
            found.setdefault(place(each["file"], each["line"]), set()).add(each["code"])
    return found


def pyright(folder: Path) -> Found:
    # In this mode basedpyright has pyright's rules alone, and it needs no download when it runs.
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "include": [str(path) for path in FILES],
        "extraPaths": [str(ROOT)],
    }
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(config)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(FILES), done.stdout + done.stderr
    found: Found = {}
    for each in report["generalDiagnostics"]:
        line = each["range"]["start"]["line"] + 1
        found.setdefault(place(each["file"], line), set()).add(each["rule"])
    return found


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_right_code_passes_and_each_mistake_is_found(checker: str, tmp_path: Path) -> None:
    is_mypy = checker == "mypy"
    found = mypy() if is_mypy else pyright(tmp_path)
    expected = marked(0 if is_mypy else 1)
    assert len(expected) > 35
    assert list(compare(found, expected)) == []


def test_the_comparison_sees_what_is_missing_and_what_is_new() -> None:
    found = {"a:1": {"misc"}, "a:2": {"misc", "arg-type"}}
    assert list(compare(found, {"a:2": "arg-type"})) == ["a:1 is refused: misc"]
    assert list(compare(found, {"a:1": "misc", "a:2": "attr", "a:3": "attr"})) == [
        "a:2 has no error attr, but arg-type, misc",
        "a:3 has no error attr, but none",
    ]
