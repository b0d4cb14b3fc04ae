"""Turns of the transactions that take one unique key from its holder: `on_conflict="replace"`.

Under READ COMMITTED on PostgreSQL all of them wait for the same holder. When it commits one of them
gets the key, and the others have lost a round. Without an order the last of twenty would lose
nineteen rounds. So whoever has lost one takes a lock of the key until its transaction ends, and one
at a time goes on. A transaction that loses no round takes no lock and sends no statement more.
"""

from __future__ import annotations

from collections.abc import Iterable

from late.outbox.base import Steps
from late.outbox.statements import Dialect

ROUNDS_MAX = 50
"""The most times that a key is taken by others before the insert is given up. With its turn a
transaction loses only to those that come anew."""
KEYS_MAX = 32
"""The most keys of one call that are locked. The server has a place for each lock in a table of
limited size, and a call may have thousands of keys."""


def wait(keys: Iterable[str], dialect: Dialect) -> Steps[None]:
    """Wait until no other transaction has the turn of these keys, which others have taken.

    The keys are ascending: two calls with the same keys cannot deadlock.
    """
    for key in sorted(keys)[:KEYS_MAX]:
        yield dialect.bind("select {turn} from (select {key} as unique_key) k", fetch=True, key=key)
