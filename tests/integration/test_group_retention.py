"""What of the log is kept for groups and for replays, and that the rest goes, on every store.

On PostgreSQL a transaction of any database of the server holds up what is removed, and the storms
beside these tests prepare theirs for minutes: so they have a server of their own there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from late.control import Control
from late.errors import ConfigError
from late.model.task import ShardId
from late.schema import migrate
from late.store.base import Store
from late.testing.servers.postgres import find_binaries
from tests import servers
from tests.conformance.backends import Backend
from tests.conformance.kit import ids, read_all, task, until
from tests.integration.control_kit import insert
from tests.integration.groups_kit import (
    SHARD,
    empty,
    everything,
    lease_of,
    maintain,
    to_read,
    works,
)


@pytest.fixture
def url(backend: Backend, tmp_path: Path) -> Iterator[str]:
    if backend.two_phases and find_binaries() is not None:
        with servers.own_server(servers.FAST) as server:
            migrate.upgrade(server.url)
            yield server.url
    else:
        made = backend.create(tmp_path)
        yield made
        backend.drop(made)


@pytest.fixture
def control(url: str) -> Any:
    with Control(url) as made:
        yield made


async def test_the_log_is_kept_for_a_group_and_let_go_with_it(
    url: str, store: Store, control: Control
) -> None:
    tasks = [task(SHARD) for _ in range(5)]
    insert(url, *tasks)
    control.groups.create("audit", start="beginning")
    await works(store, tasks)
    await maintain(store, url)
    assert len(await to_read(store, await lease_of(store, "audit"), 5)) == 5
    control.groups.delete("audit")
    await empty(store, url)


async def test_the_log_is_kept_for_replays(
    backend: Backend, url: str, store: Store, control: Control
) -> None:
    """By the journal as it was: what was settled since then stays, what was settled before goes."""
    tasks = [task(SHARD) for _ in range(3)]
    insert(url, *tasks)
    owner = await works(store, tasks)
    if store.features.experimental:
        with pytest.raises(ConfigError, match="this store removes"):
            control.groups.set_retention(3_600)
        return
    control.groups.set_retention(3_600)
    await maintain(store, url)
    assert len(await everything(store, ShardId(SHARD))) == 3
    control.groups.create("audit", start="beginning")
    assert set(await to_read(store, await lease_of(store, "audit"), 3)) == set(ids(tasks))
    control.groups.delete("audit")

    # A retention that begins in the middle of a pause. An emulator may need its time to get on.
    pause_us = 6_000_000 if backend.emulated else 500_000
    middle_us = await store.now() + pause_us // 2
    await until(store, middle_us + pause_us // 2)
    newer = [task(SHARD) for _ in range(2)]
    insert(url, *newer)
    _, cursor = await read_all(store, [*tasks, *newer])
    await owner.settle(cursor=cursor)
    control.groups.set_retention((await store.now() - middle_us) / 1_000_000)
    await maintain(store, url)
    assert set(ids(newer)) <= set(ids(await everything(store, ShardId(SHARD))))
    control.groups.set_retention(0.01)
    await empty(store, url)
    assert control.groups.retention() == 0.01
    control.groups.set_retention(0)
    assert control.groups.retention() == 0
