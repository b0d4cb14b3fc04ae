"""Databases of tests: one of each kind, the test's own. Registered in `tests/conftest.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from late.store import open_store
from late.store.base import Store
from tests import servers
from tests.conformance.backends import BACKENDS, Backend
from tests.support import sqlite

PRESENT = [b for b in BACKENDS if b.name != "cockroach" or servers.cockroach_at_hand()]
"""Where there is no node, `test_not_run` says so once instead of every test."""


@pytest.fixture(scope="session", autouse=True)
def _templates() -> Iterator[None]:
    yield
    sqlite.forget_template()


@pytest.fixture(params=PRESENT, ids=lambda backend: backend.name)
def backend(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Backend:
    """The kind of database; a test asks `store.features` and never the name."""
    record_property("store", request.param.name)
    return request.param


@pytest.fixture
def url(backend: Backend, tmp_path: Path) -> Iterator[str]:
    """A database of the test's own with the current schema: lane `default`, group `default`."""
    made = backend.create(tmp_path)
    yield made
    backend.drop(made)


@pytest.fixture
def empty_url(backend: Backend, tmp_path: Path) -> Iterator[str]:
    """A database without any schema."""
    made = backend.create_empty(tmp_path)
    yield made
    backend.drop(made)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    made = open_store(url)
    await made.open()
    yield made
    await made.close()
