"""House-keeping: what may go, judged by the journal alone, and how it goes in small steps.

Never by age: a row that committed late may be old by its clock and read by nobody.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from late.store import sqlite_sql as sql
from late.store.sqlite_lock import transaction

BATCH = 2_000
"""Rows per transaction: some ten milliseconds under the write lock that all producers share."""
WORKER_KEEP_US = 3_600_000_000
"""A worker that has been silent for an hour is a row that nobody asks for any more."""


class Range(msgspec.Struct):
    """Log rows of one shard that every group has settled: up to `through`, without `open`."""

    shard_id: int
    after: int
    through: int
    open: Sequence[int]
    """Positions that some group still needs, ascending."""


def settled_ranges(connection: sqlite3.Connection) -> list[Range]:
    """What the last settlements of all groups agree on, shard by shard.

    A group that exists but has no settlement for a shard has read nothing of it: it holds the
    shard at its beginning. So does a lease whose journal is missing.
    """
    groups = {name for (name,) in connection.execute(sql.GROUPS)}
    floors: dict[int, list[int]] = defaultdict(list)
    needed: dict[int, set[int]] = defaultdict(set)
    for _, shard_id, cursor, open_text in connection.execute(sql.LAST_CHECKPOINTS):
        floors[shard_id].append(sql.position_of(cursor))
        needed[shard_id].update(task.position for task in sql.open_of(open_text))
    return [
        Range(shard_id, 0, min(positions), sorted(needed[shard_id]))
        for shard_id, positions in sorted(floors.items())
        if len(positions) == len(groups) and min(positions) > 0
    ]


def delete_batch(connection: sqlite3.Connection, todo: Range) -> int | None:
    """Delete the next `BATCH` rows of `todo` and move its `after` on.

    Returns:
        How many rows went; None when the range is finished.
    """
    bounds = (todo.shard_id, todo.after, todo.through, BATCH)
    (end,) = connection.execute(sql.BATCH_END, bounds).fetchone()
    if end is None:
        return None
    # Between two rows that must stay everything goes, so a batch is a few ranges of the index.
    stay = [position for position in todo.open if todo.after < position <= end]
    edges = [todo.after, *stay, end + 1]
    pairs = [(todo.shard_id, low, high) for low, high in pairwise(edges)]
    with transaction(connection):
        deleted = connection.executemany(sql.DELETE_TASKS, pairs).rowcount
    todo.after = end
    return deleted


def old_settlements(
    connection: sqlite3.Connection, keep_s: float
) -> list[tuple[str, int, int, int]]:
    """(group, shard, first seq, first seq to keep) of every journal that has something to lose."""
    (now_us,) = connection.execute(sql.NOW).fetchone()
    horizon_us = now_us - round(keep_s * 1_000_000)
    found = []
    for group, shard_id, _, _ in connection.execute(sql.LAST_CHECKPOINTS).fetchall():
        first, keep = connection.execute(sql.JOURNAL_KEEP, (group, shard_id, horizon_us)).fetchone()
        if first < keep:
            found.append((group, shard_id, first, keep))
    return found


def delete_settlements(
    connection: sqlite3.Connection, group: str, shard_id: int, before: int
) -> int:
    with transaction(connection):
        deleted = connection.execute(sql.DELETE_SETTLEMENTS, (group, shard_id, before))
    return deleted.rowcount


def delete_workers(connection: sqlite3.Connection) -> int:
    """Workers that have been silent for so long that nobody can be waiting for them."""
    with transaction(connection) as now_us:
        gone = connection.execute(sql.DELETE_WORKERS, (now_us - WORKER_KEEP_US,))
    return gone.rowcount
