"""The inbox: the claim of a task's effects, written in the transaction that has the effects.

The claim is one insert. If it writes its row, the task's effects happen in the caller's
transaction: they and the row commit together or not at all. If the row exists already, the effects
have happened. The insert waits for an open transaction that has inserted the same row. So if a task
runs twice at the same time, the second run decides after the first has ended.

The insert also checks that the attempt's shard has had no other owner since. Otherwise an abandoned
run could commit its effects after those of a later run, when the row of that run has been removed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum

from late.errors import InvalidTask, StoreError
from late.model.task import Attempt
from late.outbox.base import AsyncTransaction, Steps, SyncTransaction
from late.outbox.execute import run, run_async
from late.outbox.insert import Target

_LATER = (
    "select 1 from late_lease where consumer_group = {group} and shard_id = {shard}"
    " and epoch > {epoch}"
)
_CLAIM = (
    "{insert} into late_inbox (consumer_group, task_id, done_at_us)"
    f" select {{group}}, {{task_id}}, {{now}}{{row}} where not exists ({_LATER}){{ignore}}"
)


class Claim(Enum):
    """The result of a claim."""

    TAKEN = "taken"
    """This transaction has the claim: the effects are to be done in it."""
    DONE = "done"
    """Another transaction has committed the effects."""
    OVER = "over"
    """The shard has had another owner since: this attempt must not have effects."""


def claim(tx: SyncTransaction, attempt: Attempt) -> Claim:
    """Claim the effects of `attempt`'s task for the transaction `tx`.

    Raises:
        InvalidTask: the type of `tx` is not accepted, it is async, or it commits each statement by
            itself.
        SchemaMismatch: the tables are missing or have another version.
    """
    return run(tx, lambda into: _claim(attempt, into))


def refuse_on_loop(tx: object) -> None:
    """Refuse a sync transaction of an awaited handler, unless this is a thread of its own.

    Raises:
        InvalidTask: it would stop the event loop.
    """
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise InvalidTask(
            f"{type(tx).__name__} is not async: use it, and claim, in a function that"
            " `asyncio.to_thread` runs (Django: `sync_to_async`)"
        )


async def claim_async(tx: AsyncTransaction, attempt: Attempt) -> Claim:
    """Claim the effects for an async transaction; see `claim`.

    After a cancellation the transaction must be rolled back.
    """
    return await run_async(tx, lambda into: _claim(attempt, into))


def _claim(attempt: Attempt, into: Target) -> Steps[Claim]:
    if into.autocommit:
        # The row would be committed before the effects, and a crash between them would lose them.
        raise InvalidTask("effects that happen once need a transaction: begin one first")
    group, shard_id, epoch = attempt.group, int(attempt.record.shard_id), int(attempt.epoch)
    bind = into.dialect.bind
    task_id = str(attempt.record.task_id)
    answer = yield bind(_CLAIM, task_id=task_id, group=group, shard=shard_id, epoch=epoch)
    if answer.rowcount == 1:
        return Claim.TAKEN
    if answer.rowcount:
        # The driver does not count rows, so it is not known whether the effects exist.
        raise StoreError(f"one row claimed, the driver says {answer.rowcount}")
    answer = yield bind(_LATER, fetch=True, group=group, shard=shard_id, epoch=epoch)
    return Claim.OVER if answer.rows else Claim.DONE
