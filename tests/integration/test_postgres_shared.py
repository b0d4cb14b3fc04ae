"""A transaction of handlers that carries settlements, at the database: what commits, and what never
does."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import psycopg
import psycopg.rows
import psycopg.sql
import psycopg.types.string
import pytest

from late.errors import ConfigError
from late.model.task import ShardId
from late.outbox.adapters import psycopg_shared
from late.outbox.adapters.psycopg_shared import (
    PREPARE_AFTER,
    PsycopgShared,
    PsycopgSharedTransactions,
)
from late.outbox.shared import open_shared
from late.store.base import Fate, Lease, Settlement
from late.store.postgres import shared_transaction
from tests.integration.postgres_kit import database, open_store
from tests.integration.test_postgres_fence import TAKE_OVER


@pytest.fixture
def url() -> Iterator[str]:
    with database() as made:
        with psycopg.connect(made) as tx:
            tx.execute("create table effect (number int)")
        yield made


@pytest.fixture
async def lease(url: str) -> AsyncIterator[Lease]:
    store = await open_store(url)
    [found] = await store.acquire("w1", [("default", ShardId(0))])
    yield found
    await store.close()


@pytest.fixture
def transactions(url: str) -> Iterator[PsycopgSharedTransactions]:
    made = open_shared(url, task="charge")
    assert isinstance(made, PsycopgSharedTransactions)
    yield made
    made.close()


def settlement(lease: Lease, name: str = "shared") -> Settlement:
    return Settlement(
        name, lease.group, lease.shard_id, lease.seq + 1, lease.epoch, lease.owner, lease.cursor, ()
    )


def begun(transactions: PsycopgSharedTransactions) -> PsycopgShared:
    tx = transactions.begin()
    tx.connection.execute("insert into effect values (1)")
    tx.last()
    return tx


def found(url: str) -> tuple[int, list[str]]:
    """Return the number of effects, and the settlements after the takeover."""
    with psycopg.connect(url) as tx:
        [(effects,)] = tx.execute("select count(*) from effect").fetchall()
        rows = tx.execute("select settlement_id from late_settlement where seq > 1").fetchall()
    return effects, [name for (name,) in rows]


def test_effects_and_settlement_commit_together(
    url: str, lease: Lease, transactions: PsycopgSharedTransactions
) -> None:
    tx = begun(transactions)
    assert found(url) == (0, [])
    assert tx.commit([settlement(lease)]) == (Fate.COMMITTED, None)
    assert found(url) == (1, ["shared"])
    session = tx.connection.pgconn
    tx.close(committed=True)
    again = transactions.begin()
    assert again.connection.pgconn is session
    again.roll_back()
    again.close()


def test_a_former_owner_loses_the_effects_too(
    url: str, lease: Lease, transactions: PsycopgSharedTransactions
) -> None:
    tx = begun(transactions)
    with psycopg.connect(url) as successor:
        successor.execute(TAKE_OVER)
    fate, error = tx.commit([settlement(lease)])
    assert found(url) == (0, ["takeover"])
    assert fate is Fate.REFUSED
    assert isinstance(error, psycopg.IntegrityError)
    tx.close()


def test_a_zombie_that_outslept_the_journal_loses_them(
    url: str, lease: Lease, transactions: PsycopgSharedTransactions
) -> None:
    tx = begun(transactions)
    with psycopg.connect(url) as successor:
        successor.execute(TAKE_OVER)
        successor.execute("update late_settlement set seq = seq + 5 where seq > 1")
    assert tx.commit([settlement(lease)])[0] is Fate.REFUSED
    assert found(url)[0] == 0
    tx.close()


def test_a_lock_that_does_not_come_rolls_all_back(
    url: str,
    lease: Lease,
    transactions: PsycopgSharedTransactions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another shared transaction may hold it, and wait for this one without the server's knowing"""
    tx = begun(transactions)
    tx.connection.execute("set local lock_timeout = 50")
    with psycopg.connect(url) as other:
        other.execute("lock table late_settlement in exclusive mode")
        fate, error = tx.commit([settlement(lease)])
    assert fate is Fate.ROLLED_BACK
    assert error is not None
    assert tx.is_transient(error)
    assert found(url) == (0, [])
    tx.close()


def test_the_last_statement_bounds_waits_for_locks(transactions: PsycopgSharedTransactions) -> None:
    tx = transactions.begin()
    tx.last()
    [(setting,)] = tx.connection.execute("show lock_timeout").fetchall()
    assert setting == f"{shared_transaction.LOCK_S:g}s"
    tx.roll_back()
    tx.close()


def test_it_is_read_committed_whatever_the_role_has(
    url: str, lease: Lease, transactions: PsycopgSharedTransactions
) -> None:
    """With an older snapshot the journal's last row would look older than it is."""
    with psycopg.connect(url, autocommit=True) as admin:
        name = psycopg.sql.Identifier(admin.info.dbname)
        for setting in ("isolation = serializable", "read_only = on"):
            change = psycopg.sql.SQL(f"alter database {{}} set default_transaction_{setting}")
            admin.execute(change.format(name))
    tx = begun(transactions)
    with psycopg.connect(url, options="-c default_transaction_read_only=off") as own:
        own.execute(
            "insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch,"
            " owner, cursor, open, settled_at_us) select consumer_group, shard_id, seq + 1,"
            " 'between', epoch, owner, cursor, open, 1 from late_settlement"
        )
    later = msgspec.structs.replace(settlement(lease), seq=lease.seq + 2)
    assert tx.commit([later]) == (Fate.COMMITTED, None)
    tx.close(committed=True)
    assert found(url) == (1, ["between", "shared"])


def test_a_handler_can_be_broken_off(url: str, transactions: PsycopgSharedTransactions) -> None:
    tx = transactions.begin()
    tx.connection.execute("insert into effect values (1)")
    started, errors = threading.Event(), list[BaseException]()

    def work() -> None:
        started.set()
        try:
            tx.connection.execute("select pg_sleep(60)")
        except psycopg.Error as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait(120)
    tx.break_off()
    tx.cancel()
    thread.join(120)
    assert len(errors) == 1
    assert not tx.undo()
    tx.close()
    assert found(url) == (0, [])


@pytest.mark.parametrize("url_of", ["spanner://p/i/d", "cockroachdb://h/d"])
def test_other_stores_say_so(url_of: str) -> None:
    with pytest.raises(ConfigError, match=r"task 'charge' .* SQLite and not on \w+: .*savepoint"):
        open_shared(url_of, task="charge")


def test_an_object_that_nobody_has_changed_or_kept_is_used_again(
    transactions: PsycopgSharedTransactions,
) -> None:
    tx = transactions.begin()
    first = weakref.ref(tx.connection)
    tx.connection.execute("select 1").fetchone()
    tx.next()
    assert tx.connection is first()

    kept = tx.connection
    tx.next()
    assert tx.connection is not kept
    with pytest.raises(psycopg.OperationalError, match="the connection is closed"):
        kept.execute("insert into effect values (1)")
    tx.roll_back()
    tx.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda tx: setattr(tx, "row_factory", psycopg.rows.dict_row),
        lambda tx: tx.add_notice_handler(print),
        lambda tx: tx.adapters.register_loader("int4", psycopg.types.string.TextLoader),
        lambda tx: setattr(tx, "prepare_threshold", 0),
    ],
    ids=["rows", "notices", "adapters", "prepared"],
)
def test_what_a_handler_changes_on_its_object_is_for_no_other(
    transactions: PsycopgSharedTransactions, change: Callable[[Any], None]
) -> None:
    tx = transactions.begin()
    as_given = tx.connection.prepare_threshold
    change(tx.connection)
    for end in (tx.next, tx.last):
        end()
        assert tx.connection.execute("select 7").fetchone() == (7,)
        assert tx.connection.prepare_threshold == as_given
        assert not tx.connection._notice_handlers
    tx.roll_back()
    tx.close()


def prepared(transactions: PsycopgSharedTransactions) -> list[int]:
    """Return how many statements are prepared after each handler of a transaction, and then in the
    next transaction on the same session."""
    counts = []
    tx = transactions.begin()
    for number in range(PREPARE_AFTER + 2):
        if number:
            tx.next()
        tx.connection.execute("insert into effect values (%s)", (number,))
        tx.connection.prepare_threshold = 0  # It is for no other.
        counts.append(names(tx))
    tx.roll_back()
    tx.close()
    tx = transactions.begin()
    counts.append(names(tx))
    tx.roll_back()
    tx.close()
    return counts


def names(tx: PsycopgShared) -> int:
    [[count]] = tx.connection.execute(
        "select count(*) from pg_prepared_statements where name <> ''", prepare=False
    ).fetchall()
    assert isinstance(count, int)
    return count


def test_what_handlers_repeat_is_prepared_until_the_end_of_the_transaction(
    transactions: PsycopgSharedTransactions,
) -> None:
    assert prepared(transactions) == [0] * PREPARE_AFTER + [1, 1, 0]


def test_behind_a_pooler_nothing_is_prepared(
    transactions: PsycopgSharedTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    through_a_pooler = psycopg_shared._BEGIN.replace(b"pg_backend_pid()", b"-1")
    monkeypatch.setattr(psycopg_shared, "_BEGIN", through_a_pooler)
    assert prepared(transactions) == [0] * (PREPARE_AFTER + 3)
