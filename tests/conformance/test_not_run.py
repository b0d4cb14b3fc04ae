"""Stores that are not run here are said so: once, not by a skip of every test."""

from __future__ import annotations

import pytest

from tests import servers


def test_cockroachdb_is_among_the_stores() -> None:
    if not servers.cockroach_at_hand():
        pytest.skip(
            f"no CockroachDB: set {servers.COCKROACH_VARIABLE}, or have an engine for containers"
        )
    assert servers.cockroach_url()
