"""Settlements, takeovers and releases on CockroachDB: every write of the workers.

Each function is one SERIALIZABLE transaction per shard that can run again from its beginning (see
`connection.repeated`): with several shards in one there would only be more to repeat.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import psycopg

from late.errors import TransactionAborted
from late.model.task import Cursor, Epoch, Reads, ShardId
from late.store.base import HeldKey, Lease, Settlement, SettleResult, Tick
from late.store.cockroach import statements as sql
from late.store.cockroach.connection import repeated
from late.store.cockroach.cursor import parse
from late.store.cockroach.tail import RowsRead
from late.store.common.columns import journal_values
from late.store.common.groups import reads_of
from late.store.common.open_tasks import open_of
from late.store.common.suspects import inherited, suspects_of, suspects_text
from late.store.postgres.connection import Connection, rows_of, translate
from late.store.postgres.journal import carried_of, ends_of
from late.store.postgres.statements import SETTLEMENT_ID

Shard = tuple[str, ShardId]
_JOURNAL = ("group", "shard", "seq", "id", "epoch", "owner", "cursor", "open", "usage", "suspects")
"""Parameters of `sql.SETTLE`, in the order of `journal_values`."""


class CockroachSettler:
    """Writes settlements, and with each deletes the log rows that no group needs any more.

    Args:
        rows_read: the rows that this process has read; only these can be deleted at once.
    """

    def __init__(self, rows_read: RowsRead) -> None:
        self._rows_read = rows_read
        self._groups: frozenset[str] = frozenset()
        """The groups that exist, as far as is known: the delete itself checks it again."""

    async def settle(self, connection: Connection, settlement: Settlement) -> SettleResult:
        """Write one settlement. See `Store.settle`."""
        shard_id = settlement.shard_id
        gone = self._rows_read.settled(shard_id, settlement.cursor, settlement.open)
        if gone:
            gone = await self._settled_by_all(connection, settlement, gone)
        groups = sorted(self._groups)
        deleted = 0

        async def work() -> SettleResult:
            nonlocal deleted
            written, deleted = await _write(connection, settlement, gone, groups)
            return SettleResult.SETTLED if written else await _of_whom(connection, settlement)

        result = await repeated(work)
        if result is SettleResult.FENCED:
            self._rows_read.forget(shard_id)
            return result
        self._rows_read.remove(shard_id, gone)
        if deleted != len(gone):
            # Another group has appeared, or a prune was faster: the next call reads them again.
            self._groups = frozenset()
        return result

    async def _settled_by_all(
        self, connection: Connection, settlement: Settlement, task_ids: list[str]
    ) -> list[str]:
        """Return those of `task_ids` that every other group has settled too, by its last
        checkpoint. It may be older than the group: settled tasks stay settled, so that is safe."""
        if settlement.group not in self._groups:
            found = await rows_of(connection, sql.GROUPS)
            self._groups = frozenset({settlement.group, *(name for (name,) in found)})
        for group in self._groups - {settlement.group}:
            last = await rows_of(connection, sql.CHECKPOINT, (group, settlement.shard_id))
            if not last:
                return []  # it has read nothing of the shard: all rows must stay
            ((cursor, open_text),) = last
            held = {task.task_id for task in open_of(open_text)}
            covered = self._rows_read.only(settlement.shard_id, task_ids, parse(Cursor(cursor)))
            task_ids = [task_id for task_id in covered if task_id not in held]
        return task_ids


async def _write(
    connection: Connection, settlement: Settlement, gone: list[str], groups: list[str]
) -> tuple[bool, int]:
    """Write the journal first, because it decides; then all that the settlement carries. Return
    whether it was written, and the number of log rows deleted."""
    async with connection.transaction() as transaction:
        cursor = await connection.execute(
            sql.SETTLE, dict(zip(_JOURNAL, journal_values(settlement), strict=True))
        )
        if cursor.rowcount != 1:
            raise psycopg.Rollback(transaction)
        for statement, values in carried_of([settlement]):
            await connection.execute(statement, values)
        for tick in settlement.ticks:
            await _tick(connection, tick)
        for statement, values in ends_of([settlement]):
            await connection.execute(statement, values)
        deleted = 0
        if gone:
            values = {"shard": settlement.shard_id, "ids": gone, "groups": groups}
            deleted = (await connection.execute(sql.DELETE_SETTLED, values)).rowcount
        return True, deleted
    return False, 0


async def _of_whom(connection: Connection, settlement: Settlement) -> SettleResult:
    """Find out whose row has the place of a settlement that was not written: after 40003 it may be
    our own."""
    key = (settlement.group, settlement.shard_id, settlement.seq)
    rows = await rows_of(connection, SETTLEMENT_ID, key)
    ours = bool(rows) and rows[0][0] == settlement.settlement_id
    return SettleResult.SETTLED if ours else SettleResult.FENCED


async def _tick(connection: Connection, tick: Tick) -> None:
    """Write a tick. It takes effect only if the schedule still expects it; a task whose unique key
    is taken is in the log already."""
    values = {
        "name": tick.schedule,
        "due": tick.due_at_us,
        "next": tick.next_due_at_us,
        "last_id": tick.tasks[-1].task_id if tick.tasks else None,
    }
    if (await connection.execute(sql.MOVE_SCHEDULE, values)).rowcount != 1:
        return
    for task in tick.tasks:
        if task.unique_key is not None:
            claim = (task.unique_key, task.task_id, task.digest or "")
            if (await connection.execute(sql.CLAIM, claim)).rowcount != 1:
                continue
        row = (task.shard_id, task.task_id, task.queue, task.name, task.payload, task.headers)
        await connection.execute(sql.INSERT_TASK, (*row, task.options))


async def acquire(connection: Connection, worker_id: str, shards: Sequence[Shard]) -> list[Lease]:
    """Take the free shards and return the checkpoints, one transaction per shard.

    Raises:
        TransactionAborted: nothing was taken, because others go on writing the same rows.
    """
    leases: list[Lease] = []
    contested: psycopg.Error | None = None
    for shard in sorted(set(shards)):

        async def work(shard: Shard = shard) -> Lease | None:
            return await _take(connection, worker_id, *shard)

        try:
            lease = await repeated(work)
        except (psycopg.errors.SerializationFailure, psycopg.errors.UniqueViolation) as error:
            contested = error
            continue
        if lease is not None:
            leases.append(lease)
    if contested is not None and not leases:
        raise TransactionAborted(str(translate(contested, "CockroachDB")))
    return leases


async def _take(
    connection: Connection, worker_id: str, group: str, shard_id: ShardId
) -> Lease | None:
    """Take one shard, if it is free. SERIALIZABLE guarantees that the reads stay true until the
    commit: the owner is gone, and nobody has settled after the last settlement read here."""
    key = (group, shard_id)
    async with connection.transaction():
        held = await rows_of(connection, sql.LEASE, key)
        owner, epoch, alive, taken_at_us, now_us = held[0] if held else (None, 0, False, None, 0)
        if alive and owner != worker_id:
            return None
        last = await rows_of(connection, sql.LAST, key)
        seq, last_epoch, cursor, open_text, marks = last[0] if last else (0, 0, "", "[]", None)
        seq, epoch = seq + 1, max(epoch, last_epoch) + 1
        died = owner not in (None, worker_id)
        taken_at_us = now_us if died else taken_at_us
        suspects = inherited(suspects_of(marks), died=died)
        await connection.execute(sql.GRANT, (*key, worker_id, epoch, taken_at_us))
        made = (f"{worker_id}:{uuid.uuid4().hex}", epoch, worker_id, cursor, open_text)
        values = (*key, seq, *made, suspects_text(suspects))
        await connection.execute(sql.TAKE_OVER, values)
        waiting = await rows_of(connection, sql.HELD, key)
        registered = await rows_of(connection, sql.READS, (group,))
    return Lease(
        group=group,
        shard_id=shard_id,
        owner=worker_id,
        epoch=Epoch(epoch),
        seq=seq,
        cursor=Cursor(cursor),
        open=open_of(open_text),
        held_keys={name: HeldKey(count, parked) for name, count, parked in waiting},
        taken_at_us=taken_at_us,
        suspects=suspects,
        reads=reads_of(*registered[0]) if registered else Reads(),
    )


async def release(connection: Connection, lease: Lease) -> None:
    """Give back `lease`, if it is still held under its epoch."""
    key = (lease.group, lease.shard_id, lease.owner, lease.epoch)

    async def work() -> None:
        await connection.execute(sql.RELEASE, key)

    await repeated(work)
