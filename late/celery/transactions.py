"""The transaction that a call joins: the one of `transaction(...)`, or Django's atomic block."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from late.app.app import App
from late.celery.blocks import Block
from late.celery.exceptions import NotSupported
from late.errors import InvalidTask
from late.outbox.connections import begin

_open: ContextVar[Block | None] = ContextVar("late_celery_transaction", default=None)


class OutsideTransaction(UserWarning):
    """A task was called with `task_always_eager`, where a real call would need a transaction."""


class NoTransaction(InvalidTask):
    """A task was called and no transaction is open."""


@contextmanager
def transaction(tx: Any) -> Iterator[Any]:
    """Let calls in this block join `tx`: a Session, connection or transaction of a sync driver.

    It neither begins nor commits anything. A task exists if and only if `tx` commits.

    Raises:
        NotCommitted: at the end of the block, of a session or connection of SQLAlchemy: a task was
            called after a commit in the block, and there was no other commit since.
    """
    block = Block(tx, _open.get())
    token = _open.set(block)
    try:
        yield tx
    finally:
        _open.reset(token)
        block.close()
    block.check()


def current(alias: str) -> Any:
    """Return the transaction that is open, or None.

    Args:
        alias: the database of Django whose atomic block counts.
    """
    block = _open.get()
    if block is not None:
        return block.tx
    django = sys.modules.get("django.db")
    if django is None or not sys.modules["django.conf"].settings.configured:
        return None
    if alias not in django.connections:
        return None
    connection = django.connections[alias]
    return connection if connection.in_atomic_block else None


def write(app: Any, name: str, insert: Callable[[Any], Any]) -> Any:
    """Call `insert` with the transaction that is open, or with its own where that is set.

    Args:
        app: the `Celery` whose settings apply.
        name: the task of which an error tells.

    Raises:
        NoTransaction: none is open, and the settings do not allow that.
        NotSupported: it is an async one.
    """
    tx = current(app.conf.late_django_database)
    if tx is None and app.conf.late_outside_transaction == "open":
        with begin(app.late_app.url) as tx:
            return insert(tx)
    if tx is None:
        raise NoTransaction(
            f"{name}: no transaction is open. Call it in `with late.celery.transaction(tx)` or in"
            " transaction.atomic() of Django, or set late_outside_transaction='open'"
        )
    found = insert(tx)
    if (block := _open.get()) is not None:
        block.note(name)
    if isinstance(found, Awaitable):
        getattr(found, "close", lambda: None)()
        raise NotSupported(f"{name}: an async transaction takes `await task.enqueue(tx)` of a task"
                           " of `late`; nothing was enqueued")  # fmt: skip
    return found


def tell_of_none(app: Any, name: str) -> None:
    """Warn of a call that runs here at once, and would raise `NoTransaction` in production.

    Args:
        app: the `Celery` whose settings apply.
        name: the task.
    """
    conf = app.conf
    if conf.late_outside_transaction != "open" and current(conf.late_django_database) is None:
        warnings.warn(
            f"{name}: no transaction is open. With task_always_eager it runs; without, the call"
            " raises NoTransaction",
            OutsideTransaction,
            stacklevel=5,
        )


@contextmanager
def joined(app: App, alias: str) -> Iterator[Any]:
    """Give the transaction that is open, or else one of the app's that commits after the block.

    Args:
        alias: see `current`.
    """
    tx = current(alias)
    if tx is not None:
        yield tx
        if (block := _open.get()) is not None:
            block.note("revoke")
        return
    with begin(app.url) as own:
        yield own
