"""How large the storms are: a tenth with every change, in full by `make chaos`."""

from __future__ import annotations

import os
from typing import TypeVar

from tests.databases import PRESENT

T = TypeVar("T")

FULL = os.environ.get("LATE_TEST_CHAOS", "") == "full"


def sized(tenth: T, full: T) -> T:
    return full if FULL else tenth


STORES = [backend for backend in PRESENT if FULL or not backend.emulated]
"""For storms that an emulator, slow as it is, goes through in full only: what they are about is
part of its other storms."""
