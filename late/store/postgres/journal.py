"""Settlements, takeovers and releases on PostgreSQL: every write of the workers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import errors

from late.errors import TransactionAborted
from late.model.task import Cursor, Epoch, Reads, ShardId
from late.store.base import HeldKey, Lease, Settlement, SettleResult, Tick
from late.store.common.columns import journal_values
from late.store.common.groups import reads_of
from late.store.common.open_tasks import open_of
from late.store.common.suspects import suspects_of
from late.store.postgres import stages
from late.store.postgres import statements as sql
from late.store.postgres.connection import Connection
from late.store.postgres.cursor import parse
from late.store.postgres.membership import change_row
from late.store.postgres.settlement_rows import (
    EndedKey,
    JournalRow,
    ResultRow,
    Step,
    TimerKey,
    dead_letter,
    timer,
)

T = TypeVar("T")
Statement = tuple[str, Any]
ROWS_MAX = 200
"""The most rows of one statement that parks, buries or has results: the worker's loop stops while
they are encoded."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Key(msgspec.Struct):
    """A row of the ordering keys that `sql.TAKE_OVER` returns."""

    key: str
    waiting: int
    head_parked: bool


_keys_of = msgspec.json.Decoder(list[_Key]).decode

# A seq that is taken, or one that does not follow the last (see `sql.SETTLE`).
_REFUSED = (errors.UniqueViolation, errors.NotNullViolation)


async def settle(connection: Connection, settlements: Sequence[Settlement]) -> list[SettleResult]:
    """Write all in one transaction and usually one round trip; if one is refused, one by one.

    An error on the way leaves the earlier ones settled: repeating the call is fine.
    """
    # The same order everywhere: two workers that compete for several shards do not deadlock.
    ordered = sorted(settlements, key=lambda s: (s.group, s.shard_id))
    try:
        await _write(connection, ordered)
    except _REFUSED as error:
        if not is_refused(error):
            raise
    else:
        return [SettleResult.SETTLED] * len(settlements)
    results = {(s.group, s.shard_id): await _settle_one(connection, s) for s in ordered}
    return [results[s.group, s.shard_id] for s in settlements]


async def _settle_one(connection: Connection, settlement: Settlement) -> SettleResult:
    try:
        await _write(connection, [settlement])
    except _REFUSED as error:
        if not is_refused(error):
            raise
        key = (settlement.group, settlement.shard_id, settlement.seq)
        cursor = await connection.execute(sql.SETTLEMENT_ID, key)
        row = await cursor.fetchone()
        # Our own id: an earlier call with an unknown outcome had committed after all.
        ours = row is not None and row[0] == settlement.settlement_id
        return SettleResult.SETTLED if ours else SettleResult.FENCED
    return SettleResult.SETTLED


def is_refused(error: psycopg.Error) -> bool:
    """Return whether the journal has refused a settlement, and not another table."""
    return isinstance(error, _REFUSED) and error.diag.table_name == "late_settlement"


async def _write(connection: Connection, settlements: Sequence[Settlement]) -> None:
    statements = statements_of(settlements)
    journal, more = next(statements), next(statements, None)
    if more is None:
        await connection.execute(*journal)
        return
    async with connection.pipeline(), connection.transaction():
        for statement, values in chain((journal, more), statements):
            await connection.execute(statement, values)
            await asyncio.sleep(0)  # rows take time to encode: others have their turn in between


def statements_of(settlements: Sequence[Settlement]) -> Iterator[Statement]:
    """Yield the statement of the journal first, because it decides; then those of all that the
    settlements carry, one statement per table and `ROWS_MAX` rows.

    Settlements do not touch each other's rows, and within one the deletes of timers still come
    before the inserts.
    """
    journal = [
        JournalRow(str(parse(each.cursor).xmax), *journal_values(each)) for each in settlements
    ]
    yield sql.SETTLE, [_encode(journal).decode()]
    yield from carried_of(settlements)
    for settlement in settlements:
        for tick in settlement.ticks:
            yield sql.TICK, _tick(tick)
    yield from ends_of(settlements)


def carried_of(settlements: Sequence[Settlement]) -> Iterable[Statement]:
    """Yield the statements for tasks that leave the timer table, enter it, die, or have results."""
    keyed = [(s.group, s.shard_id, s) for s in settlements]
    for some in _parts([(g, i, *key) for g, i, s in keyed for key in s.unparked]):
        yield sql.UNPARK, [_encode([TimerKey(*key) for key in some]).decode()]
    for part in _parts([(g, i, p) for g, i, s in keyed for p in s.parked]):
        yield sql.PARK, [_encode([timer(*each) for each in part]).decode()]
    for dead in _parts([(g, i, d) for g, i, s in keyed for d in s.dead]):
        yield sql.BURY, [_encode([dead_letter(*each) for each in dead]).decode()]
    revived = [(g, i, r.task_id, r.due_at_us, r.payload) for g, i, s in keyed for r in s.revived]
    if revived:
        yield sql.REVIVE, _columns(revived, 5)
    results = [ResultRow(g, r.task_id, r.value, r.ttl_us) for g, _, s in keyed for r in s.results]
    for rows in _parts(results):
        yield sql.RESULT, [_encode(rows).decode()]
    steps = [
        Step(g, t.task_id, place, t.at_us, t.event, s.owner, t.detail)
        for g, _, s in keyed
        for place, t in enumerate(s.history)
    ]
    if steps:
        yield sql.HISTORY, [_encode(steps).decode()]
    if revived:
        back = [(g, i, r.task_id, r.due_at_us, s.owner) for g, i, s in keyed for r in s.revived]
        yield sql.REVIVED, _columns(back, 5)
        yield stages.REVIVED, _columns([row[:4] for row in back], 4)


def _parts(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    return (rows[start : start + ROWS_MAX] for start in range(0, len(rows), ROWS_MAX))


def ends_of(settlements: Sequence[Settlement]) -> Iterable[Statement]:
    """Yield the statements that free schedules and unique keys of tasks that have ended, and that
    go on with their workflows."""
    ended = [end for s in settlements for end in s.ended_ticks]
    if ended:
        yield sql.END_TICK, _columns(ended, 2)
    released = [key for s in settlements for key in s.released_keys]
    if released:
        keys = [_encode([EndedKey(*key) for key in released]).decode()]
        yield sql.RELEASE_UNIQUE, keys
        yield sql.END_UNIQUE, keys
    yield from stages.statements_of([end for s in settlements for end in s.ended_stages])


def _columns(rows: Sequence[Any], width: int) -> list[list[Any]]:
    """Turn rows into one array per column, for `unnest`."""
    assert len(rows[0]) == width
    return [list(column) for column in zip(*rows, strict=True)]


def _tick(tick: Tick) -> dict[str, Any]:
    tasks = tick.tasks
    return {
        "name": tick.schedule,
        "due": tick.due_at_us,
        "next": tick.next_due_at_us,
        "last_id": tasks[-1].task_id if tasks else None,
        "shards": [task.shard_id for task in tasks],
        "ids": [task.task_id for task in tasks],
        "queues": [task.queue for task in tasks],
        "names": [task.name for task in tasks],
        "payloads": [task.payload for task in tasks],
        "headers": [task.headers for task in tasks],
        "options": [task.options for task in tasks],
        "keys": [task.unique_key for task in tasks],
        "digests": [task.digest or "" for task in tasks],
    }


TAKEOVERS = 3
"""The number of tries of a takeover against an owner who goes on settling."""

Shard = tuple[str, ShardId]


async def acquire(connection: Connection, worker_id: str, shards: Sequence[Shard]) -> list[Lease]:
    """Take the free shards and return the checkpoints: all in one transaction, and if an old owner
    still settles one of them, one by one.

    Raises:
        TransactionAborted: nothing was taken, because of an owner who goes on settling.
    """
    wanted = sorted(set(shards))
    try:
        return await _take(connection, worker_id, wanted)
    except errors.UniqueViolation:
        pass
    leases: list[Lease] = []
    contested: Shard | None = None
    for shard in wanted:
        taken = await _take_one(connection, worker_id, shard)
        if taken is None:
            contested = shard
        else:
            leases += taken
    if contested is not None and not leases:
        raise TransactionAborted(
            "the owner of shard {1} in group {0!r} goes on settling".format(*contested)
        )
    return leases


async def _take_one(connection: Connection, worker_id: str, shard: Shard) -> list[Lease] | None:
    """Take one shard, if it is free; None where its owner goes on settling."""
    for _ in range(TAKEOVERS):
        try:
            return await _take(connection, worker_id, [shard])
        except errors.UniqueViolation:
            continue
    return None


async def _take(connection: Connection, worker_id: str, shards: Sequence[Shard]) -> list[Lease]:
    asked = []
    async with connection.pipeline(), connection.transaction():
        for group, shard_id in shards:
            values = {
                "group": group,
                "shard": shard_id,
                "worker": worker_id,
                "id": f"{worker_id}:{uuid.uuid4().hex}",
            }
            await connection.execute(sql.GRANT, values)
            asked.append((group, shard_id, await connection.execute(sql.TAKE_OVER, values)))
        await connection.execute(sql.LEASES_CHANGED, (change_row(worker_id),))
    leases = []
    for group, shard_id, cursor in asked:
        row: Any = await cursor.fetchone()
        if row is not None:
            leases.append(_lease(group, shard_id, worker_id, row))
    return leases


def _lease(group: str, shard_id: ShardId, worker_id: str, row: Any) -> Lease:
    epoch, seq, checkpoint, open_text, marks, taken_at_us, held, registered = row
    return Lease(
        group=group,
        shard_id=shard_id,
        owner=worker_id,
        epoch=Epoch(epoch),
        seq=seq,
        cursor=Cursor(checkpoint),
        open=open_of(open_text),
        held_keys={k.key: HeldKey(k.waiting, k.head_parked) for k in _keys_of(held)},
        taken_at_us=taken_at_us,
        suspects=suspects_of(marks),
        reads=Reads() if registered is None else reads_of(*_decode(registered)),
    )


async def release(connection: Connection, leases: Sequence[Lease]) -> None:
    """Give back those of `leases` that are still held under their epoch."""
    rows = [(lease.group, lease.shard_id, lease.owner, lease.epoch) for lease in leases]
    await connection.execute(sql.RELEASE, (*_columns(rows, 4), change_row(leases[0].owner)))
