"""Commit settlements in a transaction of handlers, on a connection that is not the store's.

The statements are those of `journal.settle`, so the fence is the same: where another owner has been
the journal refuses the rows, and all that the handlers have written is rolled back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress

from late.store.base import Fate, Settlement
from late.store.sqlite import journal


def commit(
    tx: sqlite3.Connection, settlements: Sequence[Settlement]
) -> tuple[Fate, BaseException | None]:
    """Write the settlements and commit `tx`, which has the write lock. It blocks.

    Returns:
        What became of it, and the error if it has not committed. `tx` has no transaction then.
    """
    try:
        if settlements:
            journal.write_within(tx, settlements)
        tx.execute("commit")
        return Fate.COMMITTED, None
    except Exception as raised:
        error = raised
    fate = Fate.REFUSED if journal.is_refused(error) else Fate.ROLLED_BACK
    if tx.in_transaction:
        with suppress(sqlite3.Error):
            tx.execute("rollback")
            return fate, error
    # A fault of the disk has ended it: whether the commit has reached the file only the file knows.
    return Fate.UNKNOWN, error
