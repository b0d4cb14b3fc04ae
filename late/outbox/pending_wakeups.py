"""Note the shards of tasks in transactions that we commit ourselves, so that workers can be woken.

Nothing is noted of the callers' own transactions: they call `late.wake` after their commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from late.model.ids import shard_of
from late.model.task import TaskId

# By identity and not in a context variable: a handler may hand its transaction to a thread.
_noted: dict[int, set[int]] = {}


@contextmanager
def noting(tx: Any) -> Iterator[set[int]]:
    """Within the block, add the shards of tasks that are enqueued through `tx` to the set."""
    shards = _noted[id(tx)] = set()
    try:
        yield shards
    finally:
        del _noted[id(tx)]


def note(tx: Any, task_ids: Collection[TaskId]) -> None:
    """Take note that these tasks were enqueued through `tx`."""
    shards = _noted.get(id(tx))
    if shards is not None:
        shards.update(map(shard_of, task_ids))
