"""Take the unique keys of debounced tasks: `on_conflict="replace"` with a delay and `max_wait`.

A chain is a row of calls of one key, each of which replaces the one before while that waits. Its
state is in the row of the key: `created_at_us` is the time of the chain's first call, and
`expires_at_us` is the due time of its last one, negative until that task has ended, as for a key
with a period. So a worker of any version frees the key.

A task that is not due cannot have started in any group, so it is cancelled and the chain goes on.
One that is due may have started: it runs, it loses the key, and a new chain begins. So a chain ends
`max_wait` after its first call, even if workers are behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from late.model.task import NewTask, TaskId
from late.outbox import key_turns
from late.outbox.base import Statement, Steps
from late.outbox.statements import Dialect


class Held(NamedTuple):
    """The row of a taken key."""

    task_id: TaskId
    created_at_us: int
    expires_at_us: int | None

    @property
    def due_us(self) -> int | None:
        """The due time of its task, if that is debounced and has not ended."""
        if self.expires_at_us is None or self.expires_at_us >= 0:
            return None
        return -self.expires_at_us


class Place(NamedTuple):
    """The place of a call in the chain of its key."""

    first_us: int
    """The time of the chain's first call."""
    due_us: int
    cancels: bool
    """The task that has the key is cancelled."""


class Taken(NamedTuple):
    """A debounced task that has its key."""

    row: NewTask
    """The row to insert, with its due time."""
    cancelled: TaskId | None
    """The task that had the key, if it is to be cancelled."""


def place(
    held: Held, now_us: int, delay_us: int, max_wait_us: int, first_us: int | None = None
) -> Place:
    """Return the place of a call whose key is held by the task of another one.

    A task with the key and no due time was enqueued without `max_wait`: it is replaced as there.

    Args:
        first_us: the first call of the chain, if it is known from an earlier look.
    """
    waits = held.due_us is not None and now_us < held.due_us
    if first_us is None:
        first_us = held.created_at_us if waits else now_us
    due_us = min(now_us + delay_us, first_us + max_wait_us)
    return Place(first_us, due_us, waits or held.expires_at_us is None)


def take(
    claims: Sequence[NewTask], firsts: dict[str, int], dialect: Dialect
) -> Steps[list[Taken] | None]:
    """Take the keys of `claims`; return None if one kept changing hands.

    Args:
        firsts: the first call of each key's chain, from an earlier round of the same insert, which
            has given the keys back. Those of this round are added.
    """
    found = []
    for row in claims:
        taken = yield from _take(row, firsts, dialect)
        if taken is None:
            return None
        found.append(taken)
    return found


def _take(row: NewTask, firsts: dict[str, int], dialect: Dialect) -> Steps[Taken | None]:
    key, again = str(row.unique_key), str(row.unique_key) in firsts
    assert row.at is not None
    assert row.unique_for_us is not None
    assert row.max_wait_us is not None
    has_turn = False
    for _ in range(key_turns.ROUNDS_MAX):
        # The insert comes first. On SQLite it takes the lock for writing; on PostgreSQL it waits
        # for a transaction that has just taken the key.
        yield dialect.claim([row])
        answer = yield _read(key, dialect)
        if not answer.rows:
            continue
        task_id, created_at_us, expires_at_us, now_us = answer.rows[0]
        held = Held(TaskId(str(task_id)), created_at_us, expires_at_us)
        if held.task_id == row.task_id and not again:
            # PostgreSQL reads its clock twice for a row: the key may be due some microseconds
            # later. A cancel that comes between finds a task that has started, and does nothing.
            firsts[key] = held.created_at_us
            return Taken(row.at(held.created_at_us + row.unique_for_us), None)
        found = place(held, now_us, row.unique_for_us, row.max_wait_us, firsts.get(key))
        # Producers have no right to update a row.
        if (yield _freed(key, held, dialect)).rowcount == 0:
            if not has_turn:
                yield from key_turns.wait([key], dialect)
                has_turn = True
            continue
        if (yield _taken(row, found, dialect)).rowcount == 1:
            firsts[key] = found.first_us
            cancelled = held.task_id if found.cancels and held.task_id != row.task_id else None
            return Taken(row.at(found.due_us), cancelled)
    return None


def _read(key: str, dialect: Dialect) -> Statement:
    return dialect.bind(
        "select task_id, created_at_us, expires_at_us, {now} from late_unique"
        " where unique_key = {key}",
        fetch=True,
        key=key,
    )


def _freed(key: str, held: Held, dialect: Dialect) -> Statement:
    """Delete the row of the key, if its task still has it."""
    return dialect.bind(
        "delete from late_unique where unique_key = {key} and task_id = {task_id}",
        key=key,
        task_id=held.task_id,
    )


def _taken(row: NewTask, found: Place, dialect: Dialect) -> Statement:
    """Write the row of the key again, for `row`."""
    return dialect.bind(
        "{insert} into late_unique (unique_key, task_id, digest, created_at_us, expires_at_us)"
        " values ({key}, {task_id}, {digest}, {first_us}, {expires_at_us}){ignore}",
        key=str(row.unique_key),
        task_id=row.task_id,
        digest=str(row.digest),
        first_us=found.first_us,
        expires_at_us=-found.due_us,
    )
