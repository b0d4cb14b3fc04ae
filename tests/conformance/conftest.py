"""Fixtures of the conformance suite: what else a test needs of the database of `store`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from late.store import open_store
from late.store.base import Store
from tests.conformance.backends import Backend, Raw


@pytest.fixture
async def other_store(url: str) -> AsyncIterator[Store]:
    """Another process's store on the same database."""
    made = open_store(url)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def connect(backend: Backend, url: str) -> Iterator[Callable[[], Raw]]:
    """Opens connections of somebody else's; they are closed at the end of the test."""
    opened: list[Raw] = []

    def connect() -> Raw:
        opened.append(backend.raw(url))
        return opened[-1]

    yield connect
    for raw in opened:
        raw.close()


@pytest.fixture
def raw(connect: Callable[[], Raw]) -> Raw:
    return connect()
