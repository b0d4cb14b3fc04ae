"""A migration beside transactions that hold what it wants: it gives way, and comes through."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from late.errors import StoreError, TransactionAborted
from late.schema import migrate
from late.schema.version import SCHEMA_VERSION
from tests.servers import drop_database, fresh_database, postgres_url

BEFORE = "0015"


@pytest.fixture
def url() -> Iterator[str]:
    """A database of the release before."""
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    made = fresh_database(admin)
    migrate.upgrade(made)
    migrate.downgrade(made, BEFORE)
    yield made
    drop_database(admin, made)


@pytest.fixture
def holder(url: str) -> Iterator[psycopg.Connection]:
    """A transaction that holds the row which each revision changes."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("update late_meta set value = value where key = 'schema_version'")
        yield connection


def test_others_go_on_while_it_waits_and_it_comes_through(
    url: str, holder: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "PAUSE_S", 0.01)
    tried = threading.Semaphore(0)
    waits: list[StoreError] = []
    applied: list[str] = []

    def note(error: StoreError) -> None:
        waits.append(error)
        tried.release()

    def run() -> None:
        applied.extend(migrate.upgrade(url, wait_s=600, lock_wait_s=0.05, on_wait=note))

    migration = threading.Thread(target=run)
    migration.start()
    try:
        for _ in range(2):
            assert tried.acquire(timeout=120)
        assert migrate.current(url) == BEFORE, "what is rolled back holds nobody up"
    finally:
        holder.commit()
        migration.join(120)
    assert applied == ["0016", "0017", "0018", "0019"]
    assert migrate.current(url) == SCHEMA_VERSION
    assert "lock timeout" in str(waits[0])


def test_after_its_time_it_gives_up_and_has_changed_nothing(
    url: str, holder: psycopg.Connection
) -> None:
    with pytest.raises(
        TransactionAborted, match=r"lock timeout: others held it for 0 s, and nothing"
    ):
        migrate.upgrade(url, wait_s=0, lock_wait_s=0.05)
    holder.rollback()
    assert migrate.current(url) == BEFORE
    assert migrate.upgrade(url) == ["0016", "0017", "0018", "0019"]
