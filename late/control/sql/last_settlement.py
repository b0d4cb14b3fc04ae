"""The last settlement of a (group, shard): how far it has come, and what it has open."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, Select, select

from late.control.sql.per_shard import Value, lateral_rows
from late.schema.tables import lease, settlement


class Journal(msgspec.Struct, frozen=True):
    """The last settlement of one (group, shard), or how it starts without one."""

    seq: int = 0
    epoch: int = 0
    cursor: str = ""
    open: str = "[]"
    settled_at_us: int | None = None
    suspects: str | None = None


_LAST = (
    settlement.c.seq,
    settlement.c.epoch,
    settlement.c.cursor,
    settlement.c.open,
    settlement.c.settled_at_us,
    settlement.c.suspects,
)


def journal(connection: Connection, name: str, shard_id: int) -> Journal:
    """The last settlement of one (group, shard), or how it starts: one row by its key."""
    row = connection.execute(_last(name, shard_id)).first()
    return Journal() if row is None else Journal(*row)


def journals(connection: Connection, shard_id: int | None = None) -> dict[tuple[str, int], Journal]:
    """The last settlement of each (group, shard) that was ever owned, or of those of one shard."""
    wanted = [] if shard_id is None else [lease.c.shard_id == shard_id]
    rows = connection.execute(select(lease.c.consumer_group, lease.c.shard_id).where(*wanted))
    places = [(row.consumer_group, row.shard_id) for row in rows]
    # By way of the leases, one step down the index each. A `group by` would read the journal; a
    # join with the highest number of each makes Spanner's emulator read it once per row of it.
    found = lateral_rows(connection, _last, places)
    return {
        places[row.leg]: Journal(
            row.seq, row.epoch, row.cursor, row.open, row.settled_at_us, row.suspects
        )
        for row in found
    }


def _last(group: Value, shard_id: Value) -> Select[Any]:
    return (
        select(*_LAST)
        .where(settlement.c.consumer_group == group, settlement.c.shard_id == shard_id)
        .order_by(settlement.c.seq.desc())
        .limit(1)
    )
