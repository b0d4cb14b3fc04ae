"""`late rebase`: make a restored or copied file the one that workers may run on."""

from __future__ import annotations

import sqlite3
import uuid
from pathlib import Path

from late.store.sqlite import guard
from late.store.sqlite.write_lock import clock, patiently, transaction

_CLAIM = (
    "insert into late_meta (key, value) values ('identity', ?)"
    " on conflict (key) do update set value = excluded.value"
)
# A journal whose lease somebody has removed has an owner to fence all the same.
_LOST_LEASES = (
    "insert or ignore into late_lease (consumer_group, shard_id, epoch)"
    " select consumer_group, shard_id, max(epoch) from late_settlement"
    " group by consumer_group, shard_id"
)
# A takeover without an owner: the same checkpoint with the raised epoch fences the old owner.
_TAKE_OVER = (
    "insert into late_settlement (consumer_group, shard_id, seq, settlement_id, epoch, owner,"
    " cursor, open, settled_at_us) select s.consumer_group, s.shard_id, s.seq + 1, ?, l.epoch,"
    " 'rebase', s.cursor, s.open, ? from late_lease l"
    " cross join late_settlement s on s.consumer_group = l.consumer_group"
    " and s.shard_id = l.shard_id and s.seq = (select max(seq) from late_settlement m"
    " where m.consumer_group = l.consumer_group and m.shard_id = l.shard_id)"
)


def rebase(path: Path, url: str) -> None:
    """Raise every epoch, free every shard, forget the workers, claim the file: one transaction.

    Raises:
        SchemaMismatch, StoreRefused: the checks of schema, build and log; not those that this call
            repairs.
    """
    connection = guard.connect(path, url)
    try:
        patiently(lambda: _rebase(connection, path))
    finally:
        connection.close()


def _rebase(connection: sqlite3.Connection, path: Path) -> None:
    with transaction(connection):
        now_us = clock(connection)
        connection.execute(_LOST_LEASES)
        connection.execute("update late_lease set epoch = epoch + 1, owner = null")
        connection.execute(_TAKE_OVER, (uuid.uuid4().hex, now_us))
        connection.execute("delete from late_worker")
        connection.execute("delete from late_offer")
        _lift_positions(connection)
        identity = guard.identity_of(path)
        if identity is not None:
            connection.execute(_CLAIM, (identity,))


def _lift_positions(connection: sqlite3.Connection) -> None:
    """Move the rows of a log whose counter fell back above every cursor.

    A row may have been inserted after the fall, below the cursors, or be settled and not yet
    pruned: nothing tells them apart any more. All rows are moved above the cursors, in their order,
    and run (again): a repeat is allowed, a loss is not.
    """
    covered = guard.highest_covered(connection)
    if covered <= guard.highest_given(connection):
        return
    connection.execute("update late_task set seq = seq + ?", (covered,))
    connection.execute("delete from sqlite_sequence where name = 'late_task'")
    connection.execute(
        "insert into sqlite_sequence (name, seq)"
        " select 'late_task', coalesce((select max(seq) from late_task), ?)",
        (covered,),
    )
