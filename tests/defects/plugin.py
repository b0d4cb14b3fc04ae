"""The switch: `-p tests.defects.plugin` with `LATE_DEFECT=D7` breaks `late` in this process."""

from __future__ import annotations

import os

import pytest

from tests.defects.defect import SWITCH
from tests.defects.registry import DEFECTS

PATIENCE_S = 8.0
"""How long a test waits for what will not come: the tests' own patience is for slow machines."""


def pytest_configure(config: pytest.Config) -> None:
    name = os.environ.get(SWITCH)
    if name:
        # Here and not above: this module is read before the conftest that these belong to.
        from tests.conformance import kit
        from tests.integration import postgres_kit

        kit.PATIENCE_S = postgres_kit.PATIENCE_S = PATIENCE_S
        DEFECTS[name].break_it()


def pytest_report_header(config: pytest.Config) -> str:
    name = os.environ.get(SWITCH)
    return f"defect: {name}, {DEFECTS[name].what}" if name else "defect: none"
