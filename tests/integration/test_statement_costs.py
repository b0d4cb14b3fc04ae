"""The statements of 1,000 tasks that are read and settled, on the stores that psycopg talks to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from late.model.task import ShardId
from late.store.base import Store
from late.store.common.statement_counts import statements
from tests.conformance.backends import Backend
from tests.conformance.kit import own, task
from tests.databases import PRESENT

TASKS, PAGE = 1_000, 100


@pytest.fixture(
    params=[b for b in PRESENT if b.name in ("postgres", "cockroach")], ids=lambda each: each.name
)
def backend(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Backend:
    record_property("store", request.param.name)
    return request.param


async def test_a_task_costs_a_share_of_a_page_and_of_a_settlement(
    store: Store, url: str, backend: Backend, record_property: Callable[[str, object], None]
) -> None:
    raw = backend.raw(url)
    raw.insert(*(task(0) for _ in range(TASKS)))
    raw.close()
    owner = await own(store)
    found, spent = 0, Counter[str]()
    async with asyncio.timeout(120):
        while found < TASKS:
            before = statements.copy()
            pages = await store.read({ShardId(0): owner.cursor}, PAGE)
            for page in pages:
                found += len(page.records)
                await owner.settle(cursor=page.cursor)
            if any(page.records for page in pages):  # else nothing was there yet
                spent += statements - before
    # A thousand statements would be one for each task.
    assert TASKS // PAGE <= spent.total() <= 10 * TASKS // PAGE
    record_property("statements", dict(sorted(spent.items())))
