"""Commit settlements in a transaction of handlers, on a connection that is not the store's.

The statements are those of `journal.settle`. So the fence is the same: the first statement inserts
the next rows of the journal, and where another owner has been it fails, and with it all that the
handlers have written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from late.store.base import Fate, Settlement
from late.store.postgres.journal import is_refused, statements_of

LOCK_S = 2.0
"""The longest wait of a settlement for a lock. A unique key's may be held by another transaction of
handlers, which waits for this one without the server's knowing."""


def commit(
    tx: psycopg.Connection[Any], settlements: Sequence[Settlement]
) -> tuple[Fate, BaseException | None]:
    """Write the settlements and commit `tx`, in one round trip. It blocks.

    The transaction runs at READ COMMITTED: the journal's last row must not be older than its start.

    Returns:
        What became of it, and the error if it has not committed. `tx` has no transaction after
        that; after `UNKNOWN` it is closed.
    """
    # The same order everywhere, see `journal.settle`.
    ordered = sorted(settlements, key=lambda s: (s.group, s.shard_id))
    try:
        with tx.pipeline():
            for statement, values in statements_of(ordered) if ordered else ():
                psycopg.Cursor(tx).execute(statement, values)
            last = psycopg.Cursor(tx)
            last.execute("commit")
        if last.statusmessage == "COMMIT":
            return Fate.COMMITTED, None
        error: BaseException = psycopg.errors.InFailedSqlTransaction(
            "a statement of this transaction has failed, so nothing of it can be committed"
        )
    except Exception as raised:
        error = raised
    if not _is_rolled_back(tx, error):
        tx.close()
        return Fate.UNKNOWN, error
    refused = isinstance(error, psycopg.Error) and is_refused(error)
    return (Fate.REFUSED if refused else Fate.ROLLED_BACK), error


def _is_rolled_back(tx: psycopg.Connection[Any], error: BaseException) -> bool:
    """Roll back what is open; return whether nothing can have been committed."""
    status = tx.pgconn.transaction_status
    if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        try:
            return tx.pgconn.exec_(b"rollback").command_status == b"ROLLBACK"
        except psycopg.Error:
            return False
    # The server refuses a commit by an error, and goes on. One that says that it ends the
    # connection may come after the commit, while it waited for a standby.
    answered = isinstance(error, psycopg.Error) and error.sqlstate is not None
    return status == TransactionStatus.IDLE and answered
