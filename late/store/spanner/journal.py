"""Settlements, takeovers and releases on Spanner, one transaction per shard.

A settlement is two round trips: one read of the end of the journal, which decides, and one commit
of mutations. Nothing here is a single-use transaction: those
have no protection against a commit that is sent twice.

Mutations of one commit, as Spanner counts them: 14 for the journal row with its index, 17 for a
parked task and 6 more for its index if it waits for a key, 16 for a dead letter, 7 for a step of a
history, 2 for a timer that goes. A full window of 2,000 parked tasks with histories stays below
64,000; Spanner allows 80,000.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import Any

from google.cloud.spanner_v1 import COMMIT_TIMESTAMP, KeyRange, KeySet

from late.model.task import HELD_US, Cursor, Epoch, NewTask, Reads, ShardId, TaskId
from late.store.base import HeldKey, Lease, Settlement, SettleResult, Step
from late.store.common.columns import journal_values
from late.store.common.groups import reads_of
from late.store.common.open_tasks import open_of
from late.store.common.suspects import inherited, suspects_of
from late.store.spanner import stages
from late.store.spanner.row_codec import (
    DEAD_COLUMNS,
    JOURNAL_COLUMNS,
    LOG,
    LOG_COLUMNS,
    NOW,
    TIMER_COLUMNS,
    bytes_in,
    carried_row,
    task_row,
)

CHECKPOINT = f"""
SELECT {NOW},
  ARRAY(SELECT AS STRUCT seq, epoch, cursor, open, suspects
        FROM late_settlement@{{FORCE_INDEX=late_settlement_last}}
        WHERE consumer_group = @group AND shard_id = @shard ORDER BY seq DESC LIMIT 1),
  ARRAY(SELECT AS STRUCT l.owner, l.epoch, w.expires_at_us, l.taken_at_us FROM late_lease l
        LEFT JOIN late_worker w ON w.worker_id = l.owner
        WHERE l.consumer_group = @group AND l.shard_id = @shard),
  ARRAY(SELECT AS STRUCT queues, from_us, replay_us, paused FROM late_group WHERE name = @group)
"""
# The index holds only the timers that wait for a key: a takeover reads no others. The first hint is
# for the emulator, which does not see that the condition excludes the same rows as the index.
_HELD_KEYS = f"""
@{{spanner_emulator.disable_query_null_filtered_index_check=true}}
SELECT held_key, COUNTIF(due_at_us >= {HELD_US}), COUNTIF(due_at_us < {HELD_US})
FROM late_timer@{{FORCE_INDEX=late_timer_held}}
WHERE consumer_group = @group AND shard_id = @shard AND held_key IS NOT NULL GROUP BY held_key
"""
SEQ_MAX = 2**62
"""No genuine journal comes near it; a forged row at 2^63-1 would leave no room for the next."""


def settle(transaction: Any, settlement: Settlement, now_us: int) -> SettleResult:
    """Write one settlement and all that it carries.

    The key alone would not do as a fence. A zombie that slept for long finds its next `seq` free
    again, because retention or compaction has removed the row that fenced it. The last row is
    always kept, so the row before must be there and must be the last. The read holds all keys from
    there on until the commit, also those that it found nothing for.
    """
    group, shard_id, seq = settlement.group, settlement.shard_id, settlement.seq
    end = KeyRange(start_closed=[group, shard_id, seq - 1], end_closed=[group, shard_id])
    rows = transaction.read(
        "late_settlement", ("seq", "settlement_id"), KeySet(ranges=[end]), limit=2
    )
    found = dict(map(tuple, rows))
    if seq in found:
        # Our own id: an earlier call with an unknown outcome had committed after all.
        ours = found[seq] == settlement.settlement_id
        return SettleResult.SETTLED if ours else SettleResult.FENCED
    if list(found) != ([] if seq == 1 else [seq - 1]):
        return SettleResult.FENCED
    schedules = _schedules(transaction, settlement)
    keys_held = _unique_keys(transaction, settlement)
    stage_rows, started = stages.read(transaction, settlement.ended_stages, now_us)
    transaction.insert("late_settlement", JOURNAL_COLUMNS, [(*journal_values(settlement), now_us)])
    _timers_and_dead(transaction, settlement, now_us)
    _ticks(transaction, settlement, schedules, keys_held, now_us)
    _released(transaction, settlement, keys_held)
    if stage_rows:
        transaction.update("late_stage", stages.KEYS, stage_rows)
    _append(transaction, started, keys_held, now_us)
    return SettleResult.SETTLED


def _timers_and_dead(transaction: Any, settlement: Settlement, now_us: int) -> None:
    prefix = (settlement.group, settlement.shard_id)
    if settlement.unparked:
        gone = [[*prefix, *timer] for timer in settlement.unparked]
        transaction.delete("late_timer", KeySet(keys=gone))
    if settlement.parked:
        transaction.insert_or_update(
            "late_timer",
            TIMER_COLUMNS,
            [
                (*prefix, p.due_at_us, p.record.task_id, p.reason, p.held_key, *carried_row(p))
                for p in settlement.parked
            ],
        )
    if settlement.dead:
        transaction.insert_or_update(
            "late_dead",
            DEAD_COLUMNS,
            [
                (*prefix, now_us, d.record.task_id, d.reason, *carried_row(d))
                for d in settlement.dead
            ],
        )
    if settlement.results:
        transaction.insert_or_update(
            "late_result",
            ("consumer_group", "task_id", "value", "expires_at_us"),
            [
                (settlement.group, r.task_id, bytes_in(r.value), now_us + r.ttl_us)
                for r in settlement.results
            ],
        )
    _history(transaction, settlement, _revive(transaction, settlement, now_us), now_us)


def _history(
    transaction: Any, settlement: Settlement, revived: Collection[TaskId], now_us: int
) -> None:
    """Write the steps, each numbered after the last one of its task; a revived dead letter gets one
    if its history is kept."""
    if not (settlement.history or revived):
        return
    group = settlement.group
    ids = sorted({step.task_id for step in settlement.history} | set(revived))
    ranges = [KeyRange(start_closed=[group, i], end_closed=[group, i]) for i in ids]
    last: dict[str, int] = {}
    known = transaction.read("late_history", ("task_id", "number"), KeySet(ranges=ranges))
    for task_id, number in known:
        last[task_id] = max(number, last.get(task_id, 0))
    rows = []
    kept = last.keys() | {step.task_id for step in settlement.history}
    back = [Step(task_id, now_us, "redriven") for task_id in revived if task_id in kept]
    for step in (*settlement.history, *back):
        last[step.task_id] = number = last.get(step.task_id, 0) + 1
        rows.append((group, step.task_id, number, step.at_us, step.event, settlement.owner,
                     step.detail))  # fmt: skip
    if rows:
        columns = ("consumer_group", "task_id", "number", "at_us", "event", "worker", "detail")
        transaction.insert("late_history", columns, rows)


def _revive(transaction: Any, settlement: Settlement, now_us: int) -> Collection[TaskId]:
    """Move dead letters back to the timer table, and return their ids. Those of this settlement are
    mutations, which its own reads do not see."""
    last = {revival.task_id: revival for revival in settlement.revived}
    if not last:
        return ()
    prefix = [settlement.group, settlement.shard_id]
    ranges = [KeyRange(start_closed=[*prefix, i], end_closed=[*prefix, i]) for i in last]
    index = transaction.read(
        "late_dead", ("dead_at_us", "task_id"), KeySet(ranges=ranges), index="late_dead_task"
    )
    keys = [[*prefix, *row] for row in index]
    rows = transaction.read("late_dead", DEAD_COLUMNS, KeySet(keys=keys)) if keys else ()
    found = [(row[3], row[5:]) for row in rows]
    keys += [
        [*prefix, now_us, d.record.task_id] for d in settlement.dead if d.record.task_id in last
    ]
    found += [
        (d.record.task_id, carried_row(d)) for d in settlement.dead if d.record.task_id in last
    ]
    if not keys:
        return ()
    transaction.delete("late_dead", KeySet(keys=keys))
    timers = {}
    for task_id, (*body, _, _, errors) in found:
        revival = last[task_id]
        if revival.payload is not None:
            body[4] = bytes_in(revival.payload)
        timers[task_id] = (
            *prefix, revival.due_at_us, task_id, "retry", None, *body, 0, 0, errors
        )  # fmt: skip
    transaction.insert_or_update("late_timer", TIMER_COLUMNS, list(timers.values()))
    stages.revived(transaction, timers)
    return timers


def _schedules(transaction: Any, settlement: Settlement) -> dict[str, list[Any]]:
    """Read [next_due_at_us, open_task_id] of every schedule in the settlement."""
    names = {tick.schedule for tick in settlement.ticks}
    names.update(name for name, _ in settlement.ended_ticks)
    if not names:
        return {}
    keys = KeySet(keys=[[name] for name in sorted(names)])
    rows = transaction.read("late_schedule", ("name", "next_due_at_us", "open_task_id"), keys)
    return {name: state for name, *state in rows}


_Held = dict[str, tuple[str, int | None]]
"""Unique keys with the task that holds each, and its period: see `late/outbox/insert.py`."""


def _unique_keys(transaction: Any, settlement: Settlement) -> _Held:
    """Read the holders of the unique keys that the settlement frees or takes."""
    names = {key for key, _ in settlement.released_keys}
    names.update(task.unique_key for tick in settlement.ticks for task in tick.tasks
                 if task.unique_key is not None)  # fmt: skip
    if not names:
        return {}
    keys = KeySet(keys=[[name] for name in sorted(names)])
    columns = ("unique_key", "task_id", "expires_at_us")
    return {key: (holder, us) for key, holder, us in transaction.read("late_unique", columns, keys)}


def _ticks(
    transaction: Any,
    settlement: Settlement,
    schedules: dict[str, list[Any]],
    keys_held: _Held,
    now_us: int,
) -> None:
    """Move schedules on and insert their tasks, if a schedule still expects the tick.

    Otherwise the schedule was changed or fired in the meantime: the tick has no effect, and the
    settlement that carries it is still valid.
    """
    changed = set()
    for tick in settlement.ticks:
        state = schedules.get(tick.schedule)
        if state is None or state[0] != tick.due_at_us:
            continue
        state[0] = tick.next_due_at_us
        state[1] = tick.tasks[-1].task_id if tick.tasks else state[1]
        changed.add(tick.schedule)
        _append(transaction, tick.tasks, keys_held, now_us)
    if changed:
        transaction.update(
            "late_schedule",
            ("name", "next_due_at_us", "open_task_id", "updated_at_us"),
            [(name, *schedules[name], now_us) for name in sorted(changed)],
        )
    ended = [name for name, task_id in settlement.ended_ticks
             if name in schedules and schedules[name][1] == task_id]  # fmt: skip
    if ended:
        transaction.update("late_schedule", ("name", "open_task_id"), [(n, None) for n in ended])


def _append(transaction: Any, tasks: Sequence[NewTask], keys_held: _Held, now_us: int) -> None:
    """Insert rows into the log, except those whose unique key is taken: they are there already."""
    rows = []
    for task in tasks:
        if task.unique_key is not None:
            if task.unique_key in keys_held:
                continue
            keys_held[task.unique_key] = (task.task_id, None)
            transaction.insert(
                "late_unique",
                ("unique_key", "task_id", "digest", "created_at_us"),
                [(task.unique_key, task.task_id, task.digest or "", now_us)],
            )
        rows.append(task_row(task, COMMIT_TIMESTAMP))
    if rows:
        transaction.insert(LOG, LOG_COLUMNS, rows)


def _released(transaction: Any, settlement: Settlement, keys_held: _Held) -> None:
    held = [(key, *keys_held[key]) for key, task_id in settlement.released_keys
            if key in keys_held and keys_held[key][0] == task_id]  # fmt: skip
    if free := [[key] for key, _, us in held if us is None]:
        transaction.delete("late_unique", KeySet(keys=free))
    if ended := [(key, -us) for key, _, us in held if us is not None and us < 0]:
        transaction.update("late_unique", ("unique_key", "expires_at_us"), ended)


def take(transaction: Any, worker_id: str, group: str, shard_id: ShardId) -> Lease | None:
    """Take one shard if it is free; see `Store.acquire`. None if a live worker holds it."""
    where = {"group": group, "shard": shard_id}
    ((now_us, journal, leases, groups),) = transaction.execute_sql(CHECKPOINT, where)
    seq, last_epoch, cursor, open_json, marks = journal[0] if journal else (0, 0, "", "[]", None)
    owner, epoch, expires_at_us, taken_at_us = leases[0] if leases else (None, 0, None, None)
    live = expires_at_us is not None and expires_at_us > now_us
    if (owner not in (None, worker_id) and live) or max(seq, last_epoch) >= SEQ_MAX:
        return None
    # The epoch also stays above that of the journal, should a lease row have been tampered with.
    granted = Epoch(max(epoch, last_epoch) + 1)
    died = owner not in (None, worker_id)
    taken_at_us = now_us if died else taken_at_us
    suspects = inherited(suspects_of(marks), died=died)
    takeover = Settlement(
        settlement_id=uuid.uuid4().hex,
        group=group,
        shard_id=shard_id,
        seq=seq + 1,
        epoch=granted,
        owner=worker_id,
        cursor=Cursor(cursor),
        open=open_of(open_json),
        suspects=suspects,
    )
    held_keys = {
        key: HeldKey(waiting, bool(parked))
        for key, waiting, parked in transaction.execute_sql(_HELD_KEYS, where)
    }
    transaction.insert_or_update(
        "late_lease",
        ("consumer_group", "shard_id", "owner", "epoch", "taken_at_us"),
        [(group, shard_id, worker_id, granted, taken_at_us)],
    )
    transaction.insert("late_settlement", JOURNAL_COLUMNS, [(*journal_values(takeover), now_us)])
    return Lease(
        group=group,
        shard_id=shard_id,
        owner=worker_id,
        epoch=granted,
        seq=takeover.seq,
        cursor=takeover.cursor,
        open=takeover.open,
        held_keys=held_keys,
        taken_at_us=taken_at_us,
        suspects=suspects,
        reads=reads_of(*groups[0]) if groups else Reads(),
    )


def release(transaction: Any, leases: Sequence[Lease]) -> None:
    """Give back those of `leases` that are still held under their epoch."""
    keys = KeySet(keys=[[lease.group, lease.shard_id] for lease in leases])
    columns = ("consumer_group", "shard_id", "owner", "epoch")
    held = {tuple(row) for row in transaction.read("late_lease", columns, keys)}
    free = [
        (lease.group, lease.shard_id, None)
        for lease in leases
        if (lease.group, lease.shard_id, lease.owner, lease.epoch) in held
    ]
    if free:
        transaction.update("late_lease", ("consumer_group", "shard_id", "owner"), free)
