"""The consumers and producers of the examples, as commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node import NODE, node_for_types

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GO = shutil.which("go")
needs_go = pytest.mark.skipif(GO is None, reason="no Go: install 1.19 or newer")


def go(*words: str) -> None:
    """Run a command of Go in the example's module. It has to build without any network."""
    assert GO is not None
    environment = {**os.environ, "GOPROXY": "off", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    done = subprocess.run(
        [GO, *words], cwd=EXAMPLES / "go", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"go {' '.join(words)}\n{done.stdout}{done.stderr}"


def command(language: str, kind: str, folder: Path) -> list[str]:
    """Return the command of a `consumer` or `producer`. It is built in `folder`."""
    match language:
        case "python":
            return [sys.executable, str(EXAMPLES / "python" / f"{kind}.py")]
        case "node":
            return [str(NODE), str(EXAMPLES / "node" / f"{kind}.mjs")]
        case "typescript":
            return [node_for_types(), str(EXAMPLES / "typescript" / f"{kind}.ts")]
        case "go":
            go("build", "-o", str(folder / kind), f"./cmd/{kind}")
            return [str(folder / kind)]
    raise ValueError(language)
