"""The journal's index after compaction: built anew when mostly empty, and never in the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from late.store.postgres.repack import ENTRY_BYTES, LOOK_AFTER, ROWS_MAX, JournalIndex, is_worth_it
from late.store.postgres.store import PostgresStore
from tests.integration.postgres_kit import database, open_store

ROWS = 60_000
INSERT = f"""
insert into late_settlement
  (consumer_group, shard_id, seq, settlement_id, epoch, owner, cursor, open, settled_at_us)
select 'default', n % 8, n / 8, 's' || n, 1, 'w', '', '', n from generate_series(1, {ROWS}) n
"""
COMPACT = "delete from late_settlement where seq % 100 <> 0"


@pytest.fixture
def url() -> Iterator[str]:
    with database() as found:
        yield found


@pytest.fixture
def raw(url: str) -> Iterator[psycopg.Connection]:
    """A journal of which compaction has left a hundredth."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(INSERT)
        connection.execute(COMPACT)
        connection.execute("vacuum analyze late_settlement")
        yield connection


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    opened = await open_store(url)
    yield opened
    await opened.close()


def size(raw: psycopg.Connection) -> int:
    [(found,)] = raw.execute("select pg_relation_size('late_settlement_pkey')").fetchall()
    return int(found)


async def test_an_index_that_is_mostly_empty_is_built_anew(
    raw: psycopg.Connection, store: PostgresStore
) -> None:
    links, index = store._pools.working, JournalIndex()
    before, rows = size(raw), raw.execute("select * from late_settlement order by seq").fetchall()
    assert not await index.repack(links, LOOK_AFTER - 1), "not worth a look yet"
    assert await index.repack(links, 1)
    assert size(raw) < before / 10
    assert raw.execute("select * from late_settlement order by seq").fetchall() == rows
    with pytest.raises(psycopg.errors.UniqueViolation):
        raw.execute(INSERT)
    assert not await index.repack(links, LOOK_AFTER), "there is nothing to win"


async def test_it_waits_for_nobody(url: str, raw: psycopg.Connection, store: PostgresStore) -> None:
    links, index, before = store._pools.working, JournalIndex(), size(raw)
    with psycopg.connect(url) as other:
        other.execute("select max(seq) from late_settlement")  # its transaction stays open
        assert not await index.repack(links, LOOK_AFTER)
    assert size(raw) == before
    assert await index.repack(links, LOOK_AFTER)


async def test_who_does_not_own_the_journal_leaves_it(
    url: str, raw: psycopg.Connection, store: PostgresStore
) -> None:
    role = "reader_of_" + url.rpartition("/")[2].partition("?")[0]
    raw.execute(f"create role {role}")
    raw.execute(f"grant usage on schema public to {role}")
    raw.execute(f"grant all on all tables in schema public to {role}")
    links, before = store._pools.working, size(raw)
    try:
        async with links.use() as connection:
            await connection.execute(f"set role {role}")
        assert not await JournalIndex().repack(links, LOOK_AFTER)
    finally:
        raw.execute(f"drop owned by {role}")
        raw.execute(f"drop role {role}")
    assert size(raw) == before


@pytest.mark.parametrize(
    ("size_bytes", "rows", "expected"),
    [
        (0, 0, False),
        (10 * ENTRY_BYTES, 1, False),  # small
        (2_000_000, 1_000, True),
        (2_000_000, 30_000, False),  # a third of it would be needed
        (1 << 30, ROWS_MAX, True),
        (1 << 30, ROWS_MAX + 1, False),  # it would take too long
    ],
)
def test_what_is_worth_it(size_bytes: int, rows: int, expected: bool) -> None:
    assert is_worth_it(size_bytes, rows) is expected
