"""What a handlers' transaction learns of its commit on PostgreSQL, by the server's answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from late.store.base import Fate
from late.store.postgres import shared_transaction
from late.store.postgres.shared_transaction import commit


class Connection:
    """Answers the commit with this tag, and is in this state after it."""

    def __init__(self, tag: str, status: TransactionStatus, rollback: bytes = b"ROLLBACK") -> None:
        self.tag, self.closed = tag, False
        done = SimpleNamespace(command_status=rollback)
        self.pgconn = SimpleNamespace(transaction_status=status, exec_=lambda _: done)

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        yield

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("tag", "status", "rollback", "fate"),
    [
        ("COMMIT", TransactionStatus.IDLE, b"ROLLBACK", Fate.COMMITTED),
        # PostgreSQL answers the commit of a failed transaction with ROLLBACK, without an error
        ("ROLLBACK", TransactionStatus.IDLE, b"ROLLBACK", Fate.ROLLED_BACK),
        ("", TransactionStatus.INERROR, b"ROLLBACK", Fate.ROLLED_BACK),
        ("", TransactionStatus.INTRANS, b"", Fate.UNKNOWN),
        ("", TransactionStatus.UNKNOWN, b"ROLLBACK", Fate.UNKNOWN),
    ],
)
def test_only_a_commit_that_the_server_confirms_is_one(
    tag: str, status: TransactionStatus, rollback: bytes, fate: Fate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    tx: Any = Connection(tag, status, rollback)
    cursor = SimpleNamespace(execute=lambda *_: None, statusmessage=tag)
    monkeypatch.setattr(shared_transaction.psycopg, "Cursor", lambda _: cursor, raising=True)
    found, error = commit(tx, [])
    assert found is fate
    assert (error is None) is (fate is Fate.COMMITTED)
    assert isinstance(error, psycopg.Error | None)
    assert tx.closed is (fate is Fate.UNKNOWN)


@pytest.mark.parametrize(
    ("error", "rolled_back"),
    [
        (psycopg.errors.SerializationFailure(), True),
        (psycopg.OperationalError("no answer"), False),
        (OSError(), False),
    ],
)
def test_a_commit_without_an_answer_may_have_happened(error: Exception, rolled_back: bool) -> None:
    tx: Any = Connection("", TransactionStatus.IDLE)
    assert shared_transaction._is_rolled_back(tx, error) is rolled_back
