"""How large the storms are: a tenth with every change, in full by `make chaos`."""

from __future__ import annotations

import os

FULL = os.environ.get("LATE_TEST_CHAOS", "") == "full"


def sized(tenth: int, full: int) -> int:
    return full if FULL else tenth
