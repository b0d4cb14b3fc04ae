"""The CockroachDB store's statements on PostgreSQL, with a column that stands in for the commit
timestamp: the conformance suite, but for what needs another process. See `cockroach_kit`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from late.store.base import Store
from late.store.cockroach.store import CockroachStore
from tests.conformance.conftest import connect, raw  # noqa: F401 - fixtures
from tests.conformance.test_journal import *  # noqa: F403
from tests.conformance.test_ownership import *  # noqa: F403
from tests.conformance.test_prune import *  # noqa: F403
from tests.conformance.test_tail import *  # noqa: F403
from tests.conformance.test_timers import *  # noqa: F403
from tests.integration.cockroach_kit import backend, url  # noqa: F401 - fixtures


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:  # noqa: F811
    made = CockroachStore(url)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def other_store(url: str) -> AsyncIterator[Store]:  # noqa: F811
    made = CockroachStore(url)
    await made.open()
    yield made
    await made.close()
