"""Find the workers that died lately: they had work, and their heartbeats ended without a farewell.

A worker that goes by itself removes its row, and one that is about to go takes no more work.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import Engine, select

from late.control.sql.rows import now_us
from late.schema.engine import reading
from late.schema.tables import worker

SHOWN_US = 600_000_000
"""A death is told for so long."""
LIMIT = 200


class Death(msgspec.Struct, frozen=True):
    """A worker that died: its process is gone, stands still, or is cut off from the database."""

    worker_id: str
    address: str
    at_us: int
    """The time at which its last heartbeat ceased to count."""


def deaths(engine: Engine) -> tuple[Death, ...]:
    """Return the deaths of the last ten minutes, the latest first."""
    with reading(engine) as connection:
        now = now_us(connection)
        rows = connection.execute(
            select(worker.c.worker_id, worker.c.address, worker.c.expires_at_us)
            .where(
                worker.c.expires_at_us > now - SHOWN_US,
                worker.c.expires_at_us <= now,
                worker.c.capacity > 0,
            )
            .order_by(worker.c.expires_at_us.desc())
            .limit(LIMIT)
        )
        return tuple(Death(*row) for row in rows)
