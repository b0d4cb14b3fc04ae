"""Heartbeats and the view of the fleet on SQLite, as plain functions for the store's thread."""

from __future__ import annotations

import hashlib
import sqlite3

from late.errors import DatabaseReplaced
from late.store.base import Membership, WorkerInfo
from late.store.common.fleet import ends_text, groups_text, membership_of
from late.store.common.followed import SETTINGS
from late.store.common.groups import ACTIVE
from late.store.sqlite import statements as sql
from late.store.sqlite.write_lock import clock, transaction

WENT_BACK = (
    "an earlier state was restored into the file of the database while this process had it open:"
    " stop every process that uses it, and start again"
)


def heartbeat(
    connection: sqlite3.Connection, worker: WorkerInfo, ttl_s: float, last_us: int | None = None
) -> Membership:
    """Write the heartbeat and read the fleet in one transaction, by one reading of the clock.

    Args:
        last_us: the end that the last heartbeat has written; None if that is not known.

    Raises:
        DatabaseReplaced: the row has an older one. Nobody else writes it, so somebody has restored
            a backup into the open file. Without this the worker would wait for new tasks beyond a
            position that the log does not reach for long.
    """
    with transaction(connection, durable=False):
        found = connection.execute(sql.BEAT, (worker.worker_id,)).fetchone()
        if last_us is not None and found is not None and found[0] < last_us:
            raise DatabaseReplaced(WENT_BACK)
        now_us = clock(connection)
        if ttl_s > 0:
            row = (
                worker.worker_id,
                now_us + round(ttl_s * 1_000_000),
                now_us,
                worker.address,
                groups_text(worker),
                worker.capacity,
                worker.version,
                ends_text(worker),
            )
            connection.execute(sql.HEARTBEAT, row)
            if worker.handlers is not None:
                connection.execute(sql.DECLARE, (worker.handlers, worker.worker_id))
        else:
            connection.execute(sql.LEAVE, (worker.worker_id,))
        return _membership(connection, now_us, worker.worker_id)


def _membership(connection: sqlite3.Connection, now_us: int, me: str) -> Membership:
    shards = {shard_id for (shard_id,) in connection.execute(sql.SHARDS_WITH_WORK)}
    for first, count in connection.execute(sql.LANES):
        shards.update(range(first, first + count))
    workers = connection.execute(sql.WORKERS, (now_us,))
    leases = connection.execute(sql.LEASES)
    active = (name for (name,) in connection.execute(ACTIVE))
    ((offers,),) = connection.execute(sql.OFFERS, {"me": me}).fetchall()
    return membership_of(
        *(now_us, workers, leases, shards, active),
        settings=_settings(connection),
        offers=bool(offers),
    )


def _settings(connection: sqlite3.Connection) -> str:
    """Return the version of the settings, for `Membership.settings`."""
    rows = [
        connection.execute(f"select {columns} from {table} order by {columns}").fetchall()
        for table, columns in SETTINGS.items()
    ]
    return hashlib.md5(repr(rows).encode(), usedforsecurity=False).hexdigest()
