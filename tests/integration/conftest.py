"""Databases of the integration tests: one of each kind, migrated, the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.backends import BACKENDS, Backend

# Most of these tests speak to the database in SQL that Spanner does not have (updates of a key,
# RETURNING, placeholders): there the conformance suite, the worker's tests and the modules named
# `test_spanner_*` say the same in its own words.
SQL = [each for each in BACKENDS if each.name != "spanner"]


@pytest.fixture(params=SQL, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """The kind of database."""
    return request.param


@pytest.fixture
def url(backend: Backend, tmp_path: Path) -> Iterator[str]:
    """A migrated database of the test's own: lane `default` of 8 shards, group `default`."""
    made = backend.create(tmp_path)
    yield made
    backend.drop(made)


@pytest.fixture
def empty_url(backend: Backend, tmp_path: Path) -> Iterator[str]:
    """A database without any schema."""
    made = backend.create_empty(tmp_path)
    yield made
    backend.drop(made)
