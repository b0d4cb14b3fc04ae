"""Which commits to a SQLite file wait for the disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from late.store.base import WorkerInfo
from late.store.sqlite.membership import heartbeat
from late.store.sqlite.write_lock import transaction
from tests.support import sqlite

OTHER = "update late_meta set value = value where key = 'schema_version'"


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "shop.db"
    sqlite.database(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        made.execute("pragma synchronous = full")
        yield made


def commits(connection: sqlite3.Connection) -> list[str]:
    """A list that grows by how each commit waits."""
    level, found = "full", []

    def listen(statement: str) -> None:
        nonlocal level
        if statement.startswith("pragma synchronous = "):
            level = statement.rpartition(" ")[2]
        elif statement.lower() == "commit":
            found.append(level)

    connection.set_trace_callback(listen)
    return found


@pytest.mark.parametrize("ttl_s", [60.0, 0.0], ids=["beats", "leaves"])
def test_no_heartbeat_waits_for_the_disk(connection: sqlite3.Connection, ttl_s: float) -> None:
    found = commits(connection)
    heartbeat(connection, WorkerInfo("w1", "host:1", ("default",)), ttl_s)
    assert found == ["normal"]
    # What comes after it waits again, as a settlement must.
    with transaction(connection):
        connection.execute(OTHER)
    assert found == ["normal", "full"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_transaction_that_fails_leaves_commits_that_wait(
    connection: sqlite3.Connection, durable: bool
) -> None:
    with pytest.raises(ZeroDivisionError), transaction(connection, durable=durable):
        raise ZeroDivisionError
    assert not connection.in_transaction
    assert connection.execute("pragma synchronous").fetchone() == (2,)
