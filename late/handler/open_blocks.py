"""Refuse `ctx.enqueue()` inside of a block of `ctx.begin()` or `ctx.once()`.

It takes a transaction of its own. Inside of a block it would commit whatever becomes
of the block, and a repeat of the handler would enqueue once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from late.errors import InvalidTask
from late.model.task import Attempt


class _Block:
    """One that is open. A task of the event loop that outlives it has it still, without attempt."""

    __slots__ = ("attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self.attempt: Attempt | None = attempt


_current: ContextVar[_Block | None] = ContextVar("late_block", default=None)


@contextmanager
def block(attempt: Attempt) -> Iterator[None]:
    """Mark what runs here, and the tasks of the event loop that it starts, as inside of a block."""
    opened, before = _Block(attempt), _current.get()
    _current.set(opened)
    try:
        yield
    finally:
        opened.attempt = None
        _current.set(before)


def refuse_inside(attempt: Attempt) -> None:
    """Refuse an enqueue by itself while a block of the attempt is open.

    Raises:
        InvalidTask: one is.
    """
    current = _current.get()
    if current is not None and current.attempt is attempt:
        raise InvalidTask(
            f"{attempt.record.name}: ctx.enqueue() has a transaction of its own, which would commit"
            " whatever becomes of this block: pass on the transaction of the block,"
            " task.enqueue(tx, ...), or call it after the block"
        )
