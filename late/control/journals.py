"""The last settlement of a (group, shard): how far it has come, and what it has open."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, and_, func, select

from late.schema.tables import lease, settlement


class Journal(msgspec.Struct, frozen=True):
    """The last settlement of one (group, shard), or how it starts without one."""

    seq: int = 0
    epoch: int = 0
    cursor: str = ""
    open: str = "[]"
    settled_at_us: int | None = None


_LAST = (
    settlement.c.seq,
    settlement.c.epoch,
    settlement.c.cursor,
    settlement.c.open,
    settlement.c.settled_at_us,
)


def journal(connection: Connection, name: str, shard_id: int) -> Journal:
    """The last settlement of one (group, shard), or how it starts: one row by its key."""
    row = connection.execute(
        select(*_LAST)
        .where(settlement.c.consumer_group == name, settlement.c.shard_id == shard_id)
        .order_by(settlement.c.seq.desc())
        .limit(1)
    ).first()
    return Journal() if row is None else Journal(*row)


def journals(connection: Connection) -> dict[tuple[str, int], Journal]:
    """The last settlement of each (group, shard) that was ever owned."""
    # By way of the leases, one step down the index each: a `group by` would read the journal.
    newest = (
        select(func.max(settlement.c.seq))
        .where(
            settlement.c.consumer_group == lease.c.consumer_group,
            settlement.c.shard_id == lease.c.shard_id,
        )
        .correlate(lease)
        .scalar_subquery()
    )
    rows = connection.execute(
        select(lease.c.consumer_group, lease.c.shard_id, *_LAST).join_from(
            lease,
            settlement,
            and_(
                settlement.c.consumer_group == lease.c.consumer_group,
                settlement.c.shard_id == lease.c.shard_id,
                settlement.c.seq == newest,
            ),
        )
    )
    return {(row.consumer_group, row.shard_id): Journal(*row[2:]) for row in rows}
