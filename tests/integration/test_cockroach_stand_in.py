"""The CockroachDB store's statements on PostgreSQL, with a column that stands in for the commit
timestamp: the conformance suite, but for what needs another process. See `cockroach_kit`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from late.store.base import Store
from late.store.cockroach import CockroachStore
from tests import servers
from tests.conformance.backends import Backend, Raw
from tests.conformance.conftest import connect, raw  # noqa: F401 - fixtures
from tests.conformance.test_journal import *  # noqa: F403
from tests.conformance.test_ownership import *  # noqa: F403
from tests.conformance.test_prune import *  # noqa: F403
from tests.conformance.test_tail import *  # noqa: F403
from tests.conformance.test_timers import *  # noqa: F403
from tests.integration.cockroach_kit import plain_url, pretend, stand_in


def _admin() -> str:
    admin = servers.postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install a server")
    return admin


STAND_IN = Backend(
    name="stand-in",
    create=lambda _: stand_in(_admin()),
    create_empty=lambda _: servers.fresh_database(_admin()),
    drop=lambda url: servers.drop_database(_admin(), plain_url(url)),
    raw=lambda url: Raw(psycopg.connect(plain_url(url), autocommit=True), mark="%s"),
    make_old=lambda held: held.execute("update late_task set created_at_us = 1"),
    prunes_rows=True,
    version=lambda: "PostgreSQL, standing in",
)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    pretend(monkeypatch)
    return STAND_IN


@pytest.fixture
def url(backend: Backend, tmp_path: Path) -> Iterator[str]:
    made = backend.create(tmp_path)
    yield made
    backend.drop(made)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    made = CockroachStore(url)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def other_store(url: str) -> AsyncIterator[Store]:
    made = CockroachStore(url)
    await made.open()
    yield made
    await made.close()
