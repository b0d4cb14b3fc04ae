"""The transaction that a call joins: the one of `transaction(...)`, or Django's atomic block."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from late.app.app import App
from late.errors import InvalidTask
from late.outbox.connections import begin

_open: ContextVar[Any] = ContextVar("late_celery_transaction", default=None)


class NoTransaction(InvalidTask):
    """A task was called and no transaction is open."""


@contextmanager
def transaction(tx: Any) -> Iterator[Any]:
    """Let calls in this block join `tx`: a Session, connection or transaction of a sync driver.

    It neither begins nor commits anything. A task exists if and only if `tx` commits.
    """
    token = _open.set(tx)
    try:
        yield tx
    finally:
        _open.reset(token)


def current(alias: str) -> Any:
    """Return the transaction that is open, or None.

    Args:
        alias: the database of Django whose atomic block counts.
    """
    found = _open.get()
    if found is not None:
        return found
    django = sys.modules.get("django.db")
    if django is None or not sys.modules["django.conf"].settings.configured:
        return None
    if alias not in django.connections:
        return None
    connection = django.connections[alias]
    return connection if connection.in_atomic_block else None


@contextmanager
def joined(app: App, alias: str) -> Iterator[Any]:
    """Give the transaction that is open, or else one of the app's that commits after the block.

    Args:
        alias: see `current`.
    """
    tx = current(alias)
    if tx is not None:
        yield tx
        return
    with begin(app.url) as own:
        yield own
