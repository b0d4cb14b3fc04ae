"""The block `transaction(tx)`, and calls in it that a commit has left behind.

A session of SQLAlchemy begins a new transaction with the next statement. So a call after
`session.commit()` is in a transaction that nobody commits, unless there is another commit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from late.errors import InvalidTask


class NotCommitted(InvalidTask):
    """A task was called after the commit of its transaction, and nobody has committed again."""


class Block:
    """One block and the blocks around it. It belongs to one thread."""

    def __init__(self, tx: Any, around: Block | None) -> None:
        self.tx = tx
        self._around = around
        self._ended = False
        self._left: str | None = None
        """The task that was called after the end of the first transaction, and in no other."""
        self.close = _listen(self)
        """Hear of nothing any more."""

    def note(self, name: str) -> None:
        """Note a call of a task."""
        block: Block | None = self
        while block is not None:
            if block._ended:
                block._left = name
            block = block._around

    def check(self) -> None:
        """Refuse the end of the block while a call in it is not committed.

        Raises:
            NotCommitted: there is one, of after a commit or a rollback in this block.
        """
        if self._left is not None:
            raise NotCommitted(
                f"{self._left}: it was called after the end of the transaction, and what began then"
                " is not committed: the call would be lost. Call it before the commit, or commit"
                " again within the block"
            )

    def settled(self, tx: Any) -> None:
        """Forget a call: `commit` or `rollback` was called behind it."""
        if not getattr(tx, "in_nested_transaction", lambda: False)():
            self._ended, self._left = True, None

    def ended(self, _: Any, transaction: Any) -> None:
        """Note the end of a transaction of a session, also by its `close`."""
        self._ended |= transaction.parent is None


def _listen(block: Block) -> Callable[[], None]:
    """Let a block hear of each transaction of its session or connection, and return what ends that.

    Only those of SQLAlchemy tell.
    """
    orm, engine = sys.modules.get("sqlalchemy.orm"), sys.modules.get("sqlalchemy.engine")
    if orm is None or engine is None:
        return lambda: None
    target = block.tx.registry() if isinstance(block.tx, orm.scoped_session) else block.tx
    heard: list[tuple[str, Callable[..., None]]] = []
    if isinstance(target, orm.Session):
        heard = [("after_commit", block.settled), ("after_rollback", block.settled),
                 ("after_transaction_end", block.ended)]  # fmt: skip
    elif isinstance(target, engine.Connection):
        heard = [("commit", block.settled), ("rollback", block.settled)]
    event = sys.modules["sqlalchemy.event"]
    for name, listener in heard:
        event.listen(target, name, listener)

    def stop() -> None:
        for name, listener in heard:
            event.remove(target, name, listener)

    return stop
