"""Note the shards of new tasks in transactions that `late` commits, so that it can wake workers.

Nothing is noted for the callers' own transactions: they call `late.wake` after their commit, unless
`late.contrib` commits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from late.model.ids import shard_of
from late.model.task import TaskId

# By the identity of the transaction. A context variable would not work, because a handler may use
# its transaction in another thread.
_noted: dict[int, set[int]] = {}


def begin(tx: Any, into: set[int]) -> None:
    """Let `into` receive the shards of tasks that are enqueued through `tx`, until `end`."""
    _noted[id(tx)] = into


def end(tx: Any) -> None:
    """Note nothing more of `tx`."""
    _noted.pop(id(tx), None)


@contextmanager
def noting(tx: Any) -> Iterator[set[int]]:
    """Yield a set that receives the shards of tasks enqueued through `tx` within the block."""
    shards: set[int] = set()
    begin(tx, shards)
    try:
        yield shards
    finally:
        end(tx)


def note(tx: Any, task_ids: Collection[TaskId]) -> None:
    """Note that these tasks were enqueued through `tx`."""
    shards = _noted.get(id(tx))
    if shards is not None:
        shards.update(map(shard_of, task_ids))
