"""The inbox: a task's claim to its effects, written in the transaction that holds the effects.

One insert. If it takes, the caller's transaction is the one in which the task's effects happen:
they and the row commit together or not at all. If the row is there, they have happened. An insert
of the same row in a transaction that has not ended is waited for, so that of two runs of one task
at the same time the second decides by what became of the first.

The insert also asks whether the attempt's shard has had another owner since: a run that was given
up must not bring its effects in after those of its successor are done, recorded and forgotten.
"""

from __future__ import annotations

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
    """The claim is this transaction's: the effects are to be done in it."""
    DONE = "done"
    """Another transaction has committed the effects."""
    OVER = "over"
    """The shard has had another owner since: what this attempt does counts no more."""


def claim(tx: SyncTransaction, attempt: Attempt) -> Claim:
    """Claim the effects of `attempt`'s task for the transaction `tx`.

    Raises:
        InvalidTask: `tx` is of no accepted type, is async, or commits each statement by itself.
        SchemaMismatch: the tables are missing or of another version.
    """
    return run(tx, lambda into: _claim(attempt, into))


async def claim_async(tx: AsyncTransaction, attempt: Attempt) -> Claim:
    """`claim` for an async transaction. Cancelled, the transaction must be rolled back."""
    return await run_async(tx, lambda into: _claim(attempt, into))


def _claim(attempt: Attempt, into: Target) -> Steps[Claim]:
    if into.autocommit:
        # The row would say that the effects are done, and a crash could still prevent them.
        raise InvalidTask("effects that happen once need a transaction: begin one first")
    group, shard_id, epoch = attempt.group, int(attempt.record.shard_id), int(attempt.epoch)
    bind = into.dialect.bind
    task_id = str(attempt.record.task_id)
    answer = yield bind(_CLAIM, task_id=task_id, group=group, shard=shard_id, epoch=epoch)
    if answer.rowcount == 1:
        return Claim.TAKEN
    if answer.rowcount:
        # A driver that does not count: nobody may be told that the effects are there.
        raise StoreError(f"one row claimed, the driver says {answer.rowcount}")
    answer = yield bind(_LATER, fetch=True, group=group, shard=shard_id, epoch=epoch)
    return Claim.OVER if answer.rows else Claim.DONE
