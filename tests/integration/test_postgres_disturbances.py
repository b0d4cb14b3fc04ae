"""What else happens in a database, and must neither stop nor delay the reading of the log."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from late.schema import migrate
from tests import servers
from tests.integration.postgres_kit import Reader, enqueue, enqueue_many, open_store, producer

LOGICAL = {"wal_level": "logical", "fsync": "off"}


@pytest.fixture
def url() -> Iterator[str]:
    with servers.own_server(LOGICAL) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("create database late")
        migrate.upgrade(server.url_of("late"))
        yield server.url_of("late")


async def test_a_replication_slot_that_nobody_reads_holds_nothing_up(url: str) -> None:
    """It keeps `xmin` of the catalogue where it was, and all WAL from then on."""
    with producer(url) as writer:
        writer.execute("select pg_create_logical_replication_slot('forgotten', 'pgoutput')")
        store = await open_store(url)
        reader = Reader(store)
        for _ in range(5):
            await reader.until(*enqueue_many(writer, 50))
        await store.prune(journal_keep_s=3600)
        rows = writer.execute("select catalog_xmin from pg_replication_slots").fetchall()
        assert rows[0][0] is not None, "or this test shows nothing"
        await store.close()


async def test_an_index_that_is_built_concurrently_holds_nothing_up(url: str) -> None:
    """It waits for every open transaction, for hours, and tasks are read meanwhile."""
    with producer(url) as owner, producer(url) as other, producer(url) as writer:
        owner.execute("create table orders (id int)")
        other.execute("begin")
        other.execute("insert into orders values (1)")
        building = threading.Thread(
            target=lambda: owner.execute("create index concurrently on orders (id)")
        )
        building.start()
        store = await open_store(url)
        reader = Reader(store)
        while not writer.execute(
            "select 1 from pg_stat_activity where query like 'create index%' and wait_event = "
            "'virtualxid'"
        ).fetchall():
            assert building.is_alive()
        for _ in range(5):
            await reader.until(enqueue(writer))
        assert building.is_alive()
        other.execute("commit")
        building.join()
        await reader.until(enqueue(writer))
        await store.close()
