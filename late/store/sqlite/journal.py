"""Settlements, takeovers and releases on SQLite, as plain functions.

They run in the store's own thread, with the connection that it owns.
"""

from __future__ import annotations

import logging
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from operator import attrgetter

import msgspec

from late.model.task import Cursor, Epoch, NewTask, Reads, ShardId
from late.store.base import HeldKey, Lease, Settlement, SettleResult, Tick
from late.store.common.columns import carried, journal_values
from late.store.common.groups import reads_of
from late.store.common.open_tasks import open_of, outline_text
from late.store.common.suspects import inherited, suspects_of
from late.store.sqlite import stages
from late.store.sqlite import statements as sql
from late.store.sqlite.write_lock import clock, transaction

log = logging.getLogger("late.store")

SEQ_MAX = 2**62
"""No genuine journal comes near it; a forged row at 2^63-1 would leave no room for the next."""
SHORT_OPEN = 16
"""Open tasks of a row that stays as it is when another one follows it: some 200 characters."""

_ROW = (
    "settlement_id", "group", "shard_id", "seq", "epoch", "owner", "cursor", "open", "usage",
    "suspects",
)  # fmt: skip
_more = attrgetter(*[field for field in Settlement.__struct_fields__ if field not in _ROW])
"""Get the other fields of a settlement, later ones included: one left out would be lost."""


_Values = Mapping[str, object]
"""The values of a statement by their names."""


class _SeqTaken(Exception):
    """A settlement of the batch does not follow the last row of its journal."""


Outlines = dict[tuple[str, ShardId], tuple[str, str, ShardId, int]]
"""The last long row of each journal that this store has written: its outline, and its key."""


def settle(
    connection: sqlite3.Connection, settlements: Sequence[Settlement], outlines: Outlines
) -> list[SettleResult]:
    """Write all in one transaction; if one is refused, one by one.

    An error on the way leaves the earlier ones settled: repeating the call is fine.
    """
    try:
        _write(connection, settlements, outlines)
    except _SeqTaken:
        return [_settle_one(connection, settlement, outlines) for settlement in settlements]
    return [SettleResult.SETTLED] * len(settlements)


def _settle_one(
    connection: sqlite3.Connection, settlement: Settlement, outlines: Outlines
) -> SettleResult:
    try:
        _write(connection, [settlement], outlines)
    except _SeqTaken:
        key = (settlement.group, settlement.shard_id, settlement.seq)
        row = connection.execute(sql.SETTLEMENT_ID, key).fetchone()
        # Our own id: an earlier call with an unknown outcome had committed after all.
        ours = row is not None and row[0] == settlement.settlement_id
        return SettleResult.SETTLED if ours else SettleResult.FENCED
    return SettleResult.SETTLED


def _write(
    connection: sqlite3.Connection, settlements: Sequence[Settlement], outlines: Outlines
) -> None:
    """Write the journal rows first, because they decide; then all that the settlements carry."""
    rows = [(outlines.get((s.group, s.shard_id)), s.seq) for s in settlements]
    followed = [row for row, seq in rows if row is not None and row[-1] == seq - 1]
    more = any(map(_has_more, settlements))
    if more or followed:
        with transaction(connection):
            now_us = clock(connection)
            _follow(connection, settlements, now_us)
            _many(connection, sql.SHORTEN, followed)
            if more:
                _write_more(connection, settlements, now_us)
    else:
        _follow(connection, settlements)  # one statement is a transaction of its own
    for s in settlements:
        if len(s.open) > SHORT_OPEN:
            row = (outline_text(s.open), s.group, s.shard_id, s.seq)
            outlines[s.group, s.shard_id] = row


def write_within(connection: sqlite3.Connection, settlements: Sequence[Settlement]) -> None:
    """Write all in the transaction that is open, for `shared_transaction.py`.

    Raises an error of which `is_refused` tells whether it is the journal's refusal.
    """
    now_us = clock(connection)
    _follow(connection, settlements, now_us)
    _write_more(connection, settlements, now_us)


def is_refused(error: BaseException) -> bool:
    """Return whether the journal has refused a settlement."""
    return isinstance(error, _SeqTaken)


def _follow(
    connection: sqlite3.Connection, settlements: Sequence[Settlement], now_us: int | None = None
) -> None:
    """Append the rows to their journals, all or none. Without `now_us` the statement reads the
    clock.

    Raises:
        _SeqTaken: at least one does not follow the last row of its journal.
    """
    rows = msgspec.json.encode([journal_values(settlement) for settlement in settlements]).decode()
    if connection.execute(sql.SETTLE, (rows, now_us)).rowcount != len(settlements):
        raise _SeqTaken


def _has_more(settlement: Settlement) -> bool:
    """Return True if the settlement has more than its row of the journal."""
    return any(_more(settlement))


def _write_more(
    connection: sqlite3.Connection, settlements: Sequence[Settlement], now_us: int
) -> None:
    """Write all that the settlements carry, table by table.

    One `executemany` per table and not per settlement: settlements do not touch each other's rows,
    and within one the deletes of timers still come before the inserts.
    """
    keyed = [(s.group, s.shard_id, s) for s in settlements]
    _many(connection, sql.UNPARK, [(g, i, *timer) for g, i, s in keyed for timer in s.unparked])
    _many(
        connection,
        sql.PARK,
        [
            (g, i, p.due_at_us, p.record.task_id, p.reason, p.held_key, *carried(p))
            for g, i, s in keyed
            for p in s.parked
        ],
    )
    _many(
        connection,
        sql.BURY,
        [
            (g, i, now_us, d.record.task_id, d.reason, *carried(d))
            for g, i, s in keyed
            for d in s.dead
        ],
    )
    revived = [(g, i, r) for g, i, s in keyed for r in s.revived]
    _many(
        connection, sql.REVIVE, [(r.due_at_us, r.payload, g, i, r.task_id) for g, i, r in revived]
    )
    _many(connection, sql.UNBURY, [(g, i, r.task_id) for g, i, r in revived])
    results = [(g, r.task_id, r.value, now_us + r.ttl_us) for g, _, s in keyed for r in s.results]
    _many(connection, sql.RESULT, results)
    for group in {g for g, _, s in keyed if s.history}:
        _write_history(connection, group, [s for g, _, s in keyed if g == group])
    back: list[_Values] = [
        {
            "group": g, "shard": i, "task": r.task_id, "due": r.due_at_us, "worker": s.owner,
            "now": now_us,
        }
        for g, i, s in keyed for r in s.revived
    ]  # fmt: skip
    _many(connection, sql.REVIVED, back)
    _many(connection, stages.REVIVED, back)
    for settlement in settlements:
        for tick in settlement.ticks:
            _tick(connection, tick, now_us)
    _many(connection, sql.END_TICK, [end for s in settlements for end in s.ended_ticks])
    released = [key for s in settlements for key in s.released_keys]
    gone = connection.executemany(sql.RELEASE_UNIQUE, released).rowcount if released else 0
    if gone < len(released):  # Some have a period, and stay.
        _many(connection, sql.END_UNIQUE, released)
    ends = [end for s in settlements for end in s.ended_stages]
    if ends:
        stages.end(connection, ends, _insert, now_us)


def _write_history(
    connection: sqlite3.Connection, group: str, settlements: Sequence[Settlement]
) -> None:
    """Write the steps of tasks, each numbered after the last one of its task."""
    numbers = {step.task_id: 0 for s in settlements for step in s.history}
    asked = msgspec.json.encode(list(numbers)).decode()
    numbers |= connection.execute(sql.LAST_STEPS, (group, asked)).fetchall()
    steps = []
    for s in settlements:
        for t in s.history:
            numbers[t.task_id] = number = numbers[t.task_id] + 1
            steps.append((group, t.task_id, number, t.at_us, t.event, s.owner, t.detail))
    connection.executemany(sql.HISTORY, steps)


def _many(
    connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[object, ...] | _Values]
) -> None:
    if rows:
        connection.executemany(statement, rows)


def _tick(connection: sqlite3.Connection, tick: Tick, now_us: int) -> None:
    """Move the schedule on and insert its tasks, if it still expects this tick.

    Otherwise the schedule was changed or fired in the meantime: the tick has no effect, and the
    settlement that carries it is still valid.
    """
    last_id = tick.tasks[-1].task_id if tick.tasks else None
    key = (tick.next_due_at_us, last_id, now_us, tick.schedule, tick.due_at_us)
    if connection.execute(sql.TICK, key).rowcount != 1:
        return
    for task in tick.tasks:
        _insert(connection, task, now_us)


def _insert(connection: sqlite3.Connection, task: NewTask, now_us: int) -> None:
    """Insert one row of the log, unless its unique key is taken: then the task is there already."""
    if task.unique_key is not None:
        key = (task.unique_key, task.task_id, task.digest or "", now_us)
        if connection.execute(sql.INSERT_UNIQUE, key).rowcount != 1:
            return
    connection.execute(
        sql.INSERT_TASK,
        (
            task.shard_id,
            task.task_id,
            task.queue,
            task.name,
            task.payload,
            task.headers,
            task.options,
        ),
    )


def acquire(
    connection: sqlite3.Connection, worker_id: str, shards: Sequence[tuple[str, ShardId]]
) -> list[Lease]:
    """Take the free ones of `shards` in one transaction: one sync of the disk, not one each."""
    with transaction(connection):
        now_us = clock(connection)
        taken = [_take(connection, worker_id, group, shard, now_us) for group, shard in shards]
    return [lease for lease in taken if lease is not None]


def _take(
    connection: sqlite3.Connection, worker_id: str, group: str, shard_id: ShardId, now_us: int
) -> Lease | None:
    key = (group, shard_id)
    last = connection.execute(sql.LAST, key).fetchone()
    seq, last_epoch, text, open_text, marks = last or (0, 0, "", "[]", None)
    cursor = Cursor(text)
    if max(seq, last_epoch) >= SEQ_MAX:
        # Left out and not raised: the other shards are unaffected.
        log.error("journal of group %s, shard %s ends in a forged row (seq %s)", *key, seq)
        return None
    asked = {
        "group": group, "shard": shard_id, "worker": worker_id, "epoch": last_epoch, "now": now_us
    }  # fmt: skip
    granted = connection.execute(sql.ACQUIRE, asked).fetchone()
    if granted is None:
        return None
    epoch, taken_at_us = Epoch(granted[0]), granted[1]
    # An earlier takeover at the same moment does no harm: it has left no mark to be counted.
    suspects = inherited(suspects_of(marks), died=taken_at_us == now_us)
    open_tasks = open_of(open_text)
    takeover = Settlement(
        settlement_id=uuid.uuid4().hex,
        group=group,
        shard_id=shard_id,
        seq=seq + 1,
        epoch=epoch,
        owner=worker_id,
        cursor=cursor,
        open=open_tasks,
        suspects=suspects,
    )
    # We hold the write lock: nobody can have used this seq.
    _follow(connection, [takeover], now_us)
    registered = connection.execute(sql.READS, (group,)).fetchone()
    return Lease(
        group=group,
        shard_id=shard_id,
        owner=worker_id,
        epoch=epoch,
        seq=seq + 1,
        cursor=cursor,
        open=open_tasks,
        held_keys={
            held_key: HeldKey(waiting, bool(head_parked))
            for held_key, waiting, head_parked in connection.execute(sql.HELD_KEYS, key)
        },
        taken_at_us=taken_at_us,
        suspects=suspects,
        reads=Reads() if registered is None else reads_of(*registered),
    )


def release(connection: sqlite3.Connection, leases: Sequence[Lease]) -> None:
    """Give back those of `leases` that are still held under their epoch."""
    rows = [(lease.group, lease.shard_id, lease.owner, lease.epoch) for lease in leases]
    with transaction(connection):
        _many(connection, sql.RELEASE, rows)
