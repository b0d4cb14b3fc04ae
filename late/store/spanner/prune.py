"""Pruning on Spanner: the journal alone decides which rows go, and never their age.

Rows leave the log by **deletes of key ranges**. A range is one mutation for any number of rows,
touches only keys below every cursor, where no producer writes any more, and takes exactly the
settled rows. A row deletion policy would decide by age, which is wrong here.

Spanner deletes only ranges whose two ends differ in their last part alone. So a run of rows is up
to three ranges: of ids within the first timestamp, of whole timestamps, of ids within the last.

To bound a transaction its rows are counted first, by a read of their keys at a timestamp in the
past, which takes no lock. A deleted row stays on disk as a mark for an hour, and a read from the
beginning of a shard would walk over all marks, so each round starts where the last one ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from google.cloud.spanner_v1 import KeyRange, KeySet

from late.model.task import OpenTask
from late.store.common.compaction import PROBE, Compacted, JournalRow, Stretch, plan_sums
from late.store.common.groups import RETENTION
from late.store.common.open_tasks import open_of
from late.store.spanner.cursor import SpannerCursor, nanoseconds, parse, timestamp
from late.store.spanner.row_codec import LOG, NOW

BATCH = 2_000
"""Rows per transaction: far below what one commit may touch, and done in milliseconds."""
WORKER_KEEP_US = 3_600_000_000
"""The time after which the row of a silent worker goes: nobody needs it any more."""

Key = tuple[int, str]
"""Position and task id: the key of a row within its shard."""

_GROUPS = (
    "SELECT name FROM late_group UNION DISTINCT SELECT DISTINCT consumer_group FROM late_lease"
)
_CHECKPOINTS = """
SELECT l.consumer_group, l.shard_id, ARRAY(
  SELECT AS STRUCT s.seq, s.cursor, s.open
  FROM late_settlement@{FORCE_INDEX=late_settlement_last} s
  WHERE s.consumer_group = l.consumer_group AND s.shard_id = l.shard_id
  ORDER BY s.seq DESC LIMIT 1)
FROM late_lease l
"""
_PAST = _CHECKPOINTS.replace("l.shard_id\n", f"l.shard_id AND s.settled_at_us <= {NOW} - {{}}\n")
_WORKERS = f"DELETE FROM late_worker WHERE expires_at_us < {NOW} - {WORKER_KEEP_US}"


class SettledShard(msgspec.Struct, frozen=True):
    """The rows of one shard that every group has settled: up to `floor`, except `open`."""

    shard_id: int
    floor: SpannerCursor
    open: tuple[OpenTask, ...]


class JournalRange(msgspec.Struct, frozen=True):
    """The rows of one journal; the last one is always kept."""

    group: str
    shard_id: int
    last: int
    """Its last `seq`."""
    first: int = 0
    """The `seq` below which all rows are gone."""


class PrunePlan(msgspec.Struct, frozen=True):
    """The work of one round."""

    settled: list[SettledShard]
    journals: list[JournalRange]
    now_us: int


class PruneBatch(msgspec.Struct, frozen=True):
    """Rows of one shard to delete in one transaction."""

    ranges: list[tuple[list[Any], list[Any]]]
    """First and last key of each without the shard, both included: `[position, task id]`, or
    `[position]` for all rows of the positions in between."""
    rows: int
    end: Key
    """The key up to which no settled row of the shard is left."""
    full: bool


def plan(database: Any) -> PrunePlan:
    """Find the rows that the last settlements of all groups have settled.

    A group that exists but has no settlement for a shard has read nothing of it: all its rows must
    stay.
    """
    with database.snapshot() as snapshot:
        groups = {name for (name,) in snapshot.execute_sql(_GROUPS)}
    with database.snapshot() as snapshot:
        rows = list(snapshot.execute_sql(_CHECKPOINTS))
    voices = len(groups)
    with database.snapshot() as snapshot:
        retention = list(snapshot.execute_sql(RETENTION))
    before: list[Any] = []
    if retention:
        with database.snapshot() as snapshot:
            before = list(snapshot.execute_sql(_PAST.replace("{}", str(int(retention[0][0])))))
        voices *= 2
    with database.snapshot() as snapshot:
        ((now_us,),) = snapshot.execute_sql(f"SELECT {NOW}")
    of_shard: dict[int, list[tuple[SpannerCursor, tuple[OpenTask, ...]]]] = {}
    journals = []
    for group, shard_id, last in rows:
        if last:
            seq, cursor, open_json = last[0]
            journals.append(JournalRange(group, shard_id, seq))
            of_shard.setdefault(shard_id, []).append((parse(cursor), open_of(open_json)))
    for _, shard_id, last in before:
        for _, cursor, open_json in last:
            of_shard.setdefault(shard_id, []).append((parse(cursor), open_of(open_json)))
    settled = []
    for shard_id, checkpoints in sorted(of_shard.items()):
        floor = min((place for place, _ in checkpoints), key=lambda place: place.key)
        if len(checkpoints) == voices and floor.position > 0:
            kept = {task for _, open_tasks in checkpoints for task in open_tasks}
            settled.append(SettledShard(shard_id, floor, tuple(kept)))
    return PrunePlan(settled, journals, int(now_us))


def next_batch(database: Any, settled: SettledShard, after: Key) -> PruneBatch:
    """Find the next rows of `settled` behind `after`: one read of keys, nothing is deleted yet."""
    floor = settled.floor
    end: list[Any] = [settled.shard_id, timestamp(floor.position)]
    if floor.task_id is not None:
        end.append(floor.task_id)
    keys = KeyRange(start_open=[settled.shard_id, timestamp(after[0]), after[1]], end_closed=end)
    with database.snapshot() as snapshot:
        rows = snapshot.read(LOG, ("created_at", "task_id"), KeySet(ranges=[keys]), limit=BATCH)
        found = [(nanoseconds(created_at), task_id) for created_at, task_id in rows]
    stay: set[Key] = {(task.position, task.task_id) for task in settled.open}
    ranges = list(_ranges(found, stay))
    return PruneBatch(
        ranges=ranges,
        rows=sum(key not in stay for key in found),
        end=found[-1] if found else after,
        full=len(found) == BATCH,
    )


def _ranges(found: list[Key], stay: set[Key]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield ranges that cover `found`, which are neighbours in the log, without those that stay."""
    run: list[Key] = []
    for key in found:
        if key not in stay:
            run.append(key)
        elif run:
            yield from _pieces(run)
            run = []
    if run:
        yield from _pieces(run)


def _pieces(run: list[Key]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield a run as ranges that Spanner can delete. Only the first and the last timestamp may have
    rows outside the run; it holds all rows of every other one."""
    first, last = run[0][0], run[-1][0]
    for position in sorted({first, last}):
        ids = [task_id for at, task_id in run if at == position]
        yield [position, ids[0]], [position, ids[-1]]
    between = [position for position, _ in run if first < position < last]
    if between:
        yield [between[0]], [between[-1]]


def delete_batch(transaction: Any, shard_id: int, batch: PruneBatch) -> None:
    """Delete a batch, one mutation per range; rows that are already deleted are fine."""

    def key(of: list[Any]) -> list[Any]:
        return [shard_id, timestamp(of[0]), *of[1:]]

    ranges = [KeyRange(start_closed=key(low), end_closed=key(high)) for low, high in batch.ranges]
    transaction.delete(LOG, KeySet(ranges=ranges))


def old_settlements(
    database: Any, journal: JournalRange, horizon_us: int, limit: int = BATCH
) -> tuple[int, int, bool]:
    """Find (the number to delete, the last seq of them, there may be more) of one journal.

    Only a prefix: a hole below a kept row would look like a free `seq` to an old owner, whatever
    the clock did in between.
    """
    if journal.first >= journal.last:
        return 0, 0, False
    keys = KeyRange(
        start_closed=[journal.group, journal.shard_id, journal.first],
        end_open=[journal.group, journal.shard_id, journal.last],
    )
    count = last = 0
    with database.snapshot() as snapshot:
        for seq, settled_at_us in snapshot.read(
            "late_settlement", ("seq", "settled_at_us"), KeySet(ranges=[keys]), limit=limit
        ):
            if settled_at_us >= horizon_us:
                break
            count, last = count + 1, seq
    return count, last, count == limit


def delete_settlements(transaction: Any, journal: JournalRange, last: int) -> None:
    # A full key at both ends: Spanner deletes only ranges that differ in the last part.
    low, high = ([journal.group, journal.shard_id, seq] for seq in (journal.first, last))
    old = KeyRange(start_closed=low, end_closed=high)
    transaction.delete("late_settlement", KeySet(ranges=[old]))


_COMPACTED = JournalRow.__struct_fields__


def compact(reader: Any, stretch: Stretch, limit: int) -> Compacted:
    """Put the rows of one batch together, in a read-write transaction: see
    `store/common/compaction.py`. With `PROBE` it only reads, and a snapshot will do."""
    journal = [stretch.group, stretch.shard_id]
    keys = KeyRange(start_closed=[*journal, stretch.start], end_open=[*journal, stretch.last])
    found = reader.read("late_settlement", _COMPACTED, KeySet(ranges=[keys]), limit=limit)
    done = plan_sums([JournalRow(*row) for row in found], stretch, limit)
    if done.sums:
        gone = [
            KeyRange(start_closed=[*journal, each.low], end_open=[*journal, each.seq])
            for each in done.sums
        ]
        sums = [(*journal, each.seq, each.first_seq, each.usage) for each in done.sums]
        reader.delete("late_settlement", KeySet(ranges=gone))
        reader.update(
            "late_settlement", ("consumer_group", "shard_id", "seq", "first_seq", "usage"), sums
        )
    return done


def probe(database: Any, stretch: Stretch) -> Compacted:
    """Find out whether there is anything to compact."""
    with database.snapshot() as snapshot:
        return compact(snapshot, stretch, PROBE)


def delete_workers(transaction: Any) -> int:
    """Delete workers that have been silent for `WORKER_KEEP_US`."""
    return int(transaction.execute_update(_WORKERS))
