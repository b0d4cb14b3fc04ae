"""Pruning on SQLite in small steps: the journal alone decides which rows go.

Never their age: a row that committed late may be old by its clock and read by nobody.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from late.store.common.compaction import PROBE, Compacted, JournalRow, Stretch, plan_sums
from late.store.common.groups import RETENTION
from late.store.common.open_tasks import EMPTY, OUTLINE, open_of, outline_of
from late.store.sqlite import statements as sql
from late.store.sqlite.cursor import cursor_at, position_of
from late.store.sqlite.write_lock import clock, transaction

BATCH = 2_000
"""Rows per transaction: some ten milliseconds under the write lock that all producers share."""
INCREMENTAL = 2
"""`auto_vacuum` of a file that can give pages back."""
FREE_PAGES = 512
"""Free pages that the file keeps in any case, 2 MiB: what the next seconds write."""
VACUUM_PAGES = 500
"""Pages that one transaction gives back: some milliseconds of work."""
WORKER_KEEP_US = 3_600_000_000
"""The time after which the row of a silent worker goes: nobody needs it any more."""


class SettledRange(msgspec.Struct):
    """Log rows that every group has settled: above `after`, up to `through`, without `open`."""

    shard_id: int | None
    """The shard; None: all shards."""
    after: int
    through: int
    open: Sequence[int]
    """Positions that some group still needs, ascending."""


def settled_ranges(connection: sqlite3.Connection) -> list[SettledRange]:
    """Find the rows that the last settlements of all groups have settled.

    A group that exists but has no settlement for a shard has read nothing of it: all its rows must
    stay. The same holds for a lease whose journal is missing.

    The first range is the one in which the rows of *all* shards are settled, deleted in the order
    of the table; the others are the rows that each shard has settled beyond it. With ranges of
    shards alone, every page of the table, which has rows of all shards, would be written again for
    each shard.
    """
    voices = len(connection.execute(sql.GROUPS).fetchall())
    rows = connection.execute(sql.LAST_CHECKPOINTS).fetchall()
    kept = connection.execute(RETENTION).fetchone()
    if kept is not None:
        horizon_us = clock(connection) - int(kept[0])
        past = connection.execute(sql.PAST_CHECKPOINTS, (horizon_us,)).fetchall()
        rows += [(group, shard_id, *_as_it_was(*each)) for group, shard_id, *each in past]
        voices *= 2
    covered: dict[int, list[int]] = defaultdict(list)
    needed: dict[int, set[int]] = defaultdict(set)
    for _, shard_id, cursor, open_text in rows:
        covered[shard_id].append(position_of(cursor))
        needed[shard_id].update(task.position for task in open_of(open_text))
    floors = {s: min(at) for s, at in covered.items() if len(at) == voices and min(at) > 0}
    if not floors:
        return []
    # Rows that are inserted from here on lie above every floor, so that looking shard by shard
    # without a transaction cannot miss one below the end of the common range.
    common = max(floors.values())
    for (shard_id,) in connection.execute(sql.SHARDS_WITH_ROWS).fetchall():
        key = (shard_id, floors.get(shard_id, 0))
        (unsettled,) = connection.execute(sql.FIRST_AFTER, key).fetchone()
        if unsettled is not None:
            common = min(common, unsettled - 1)
    everywhere = SettledRange(None, 0, common, sorted(set().union(*needed.values())))
    return [everywhere] + [
        SettledRange(shard_id, common, floor, sorted(needed[shard_id]))
        for shard_id, floor in sorted(floors.items())
        if floor > common
    ]


def _as_it_was(cursor: str, open_text: str) -> tuple[str, str]:
    """Return the checkpoint of a row that may have been shortened: what it had open is not known
    then, so it covers what is below all of that, and has nothing open."""
    if not open_text.startswith(OUTLINE):
        return cursor, open_text
    floor = outline_of(open_text).floor
    assert floor is not None
    return cursor_at(min(position_of(cursor), floor - 1)), EMPTY


def delete_batch(connection: sqlite3.Connection, todo: SettledRange) -> int | None:
    """Delete the next `BATCH` rows of `todo` and move its `after` on.

    Returns:
        The number of rows deleted; None when the range is finished.
    """
    shard: tuple[int, ...] = () if todo.shard_id is None else (todo.shard_id,)
    batch_end = sql.BATCH_END if shard else sql.BATCH_END_ALL
    delete = sql.DELETE_TASKS if shard else sql.DELETE_TASKS_ALL
    bounds = (*shard, todo.after, todo.through, BATCH)
    (end,) = connection.execute(batch_end, bounds).fetchone()
    if end is None:
        return None
    # All rows between two that must stay are deleted, so a batch is a few ranges of the index.
    stay = todo.open[bisect_right(todo.open, todo.after) : bisect_right(todo.open, end)]
    edges = [todo.after, *stay, end + 1]
    with transaction(connection, durable=False):
        deleted = connection.executemany(delete, [(*shard, *pair) for pair in pairwise(edges)])
    todo.after = end
    return deleted.rowcount


def old_settlements(
    connection: sqlite3.Connection, keep_s: float
) -> list[tuple[str, int, int, int]]:
    """Find (group, shard, first seq, first seq to keep) of every journal with rows to delete."""
    horizon_us = clock(connection) - round(keep_s * 1_000_000)
    found = []
    for group, shard_id, _, _ in connection.execute(sql.LAST_CHECKPOINTS).fetchall():
        key = {"group": group, "shard": shard_id, "horizon": horizon_us}
        first, keep = connection.execute(sql.JOURNAL_KEEP, key).fetchone()
        if first < keep:
            found.append((group, shard_id, first, keep))
    return found


def delete_settlements(
    connection: sqlite3.Connection, group: str, shard_id: int, before: int
) -> int:
    with transaction(connection, durable=False):
        deleted = connection.execute(sql.DELETE_SETTLEMENTS, (group, shard_id, before))
    return deleted.rowcount


def journals(connection: sqlite3.Connection) -> list[tuple[str, int, int]]:
    """Read (group, shard, last seq) of every journal."""
    found = connection.execute(sql.LAST_SETTLEMENTS).fetchall()
    return [(group, shard_id, last) for group, shard_id, last in found if last is not None]


def compact(connection: sqlite3.Connection, stretch: Stretch, limit: int) -> Compacted:
    """Put the rows of one batch together: see `store/common/compaction.py`."""
    if limit == PROBE:
        return plan_sums(_journal_rows(connection, stretch, limit), stretch, limit)
    journal = (stretch.group, stretch.shard_id)
    with transaction(connection, durable=False):
        done = plan_sums(_journal_rows(connection, stretch, limit), stretch, limit)
        for each in done.sums:
            connection.execute(sql.DELETE_SUMMED, (*journal, each.low, each.seq))
            connection.execute(sql.UPDATE_SUM, (each.first_seq, each.usage, *journal, each.seq))
    return done


def _journal_rows(connection: sqlite3.Connection, stretch: Stretch, limit: int) -> list[JournalRow]:
    values = (stretch.group, stretch.shard_id, stretch.start, stretch.last, limit)
    return [JournalRow(*row) for row in connection.execute(sql.COMPACTED, values)]


def shrink(connection: sqlite3.Connection) -> bool:
    """Give pages at the end of the file back, a few at a time, where more are free than the next
    tasks need; return True if there are more. A file of an older version keeps its size until
    somebody runs VACUUM: see `docs/stores.md`."""
    if connection.execute("pragma auto_vacuum").fetchone()[0] != INCREMENTAL:
        return False
    free: int = connection.execute("pragma freelist_count").fetchone()[0]
    pages: int = connection.execute("pragma page_count").fetchone()[0]
    surplus = free - max(FREE_PAGES, (pages - free) // 4)
    if surplus <= 0:
        return False
    # As a script, which runs to its end: `execute` stops after each page.
    connection.executescript(f"pragma incremental_vacuum({min(surplus, VACUUM_PAGES)})")
    return surplus > VACUUM_PAGES


def delete_workers(connection: sqlite3.Connection) -> int:
    """Delete workers that have been silent for `WORKER_KEEP_US`."""
    with transaction(connection, durable=False):
        silent_since_us = clock(connection) - WORKER_KEEP_US
        gone = connection.execute(sql.DELETE_WORKERS, (silent_since_us,))
    return gone.rowcount
