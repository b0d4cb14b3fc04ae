"""`docs/versions.md` names this version, its schema, tests that exist and metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from late.config import package_version
from late.observability.metrics import catalogue
from late.schema.version import SCHEMA_VERSION

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "versions.md").read_text()
TESTS = re.findall(r"`(tests/[\w/]+[.]py)::(\w+)`", PAGE)


def test_it_names_the_schema_of_this_version() -> None:
    rows = dict(re.findall(r"^\| (\d+[.]\d+[.]\d+)[^|]* \| (\d{4}) \|", PAGE, re.M))
    assert rows[package_version().partition(".dev")[0]] == SCHEMA_VERSION


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_it_names_tests_that_exist(path: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M)


def test_what_is_deprecated_is_still_there() -> None:
    table = PAGE.split("## Deprecations")[1]
    metrics = re.findall(r"^\| the metric `(\w+)` \| `(\w+)`", table, re.M)
    assert metrics
    assert {name for pair in metrics for name in pair} <= set(catalogue.METRICS)
