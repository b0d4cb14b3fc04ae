"""Changes since a moment: actions of operators, and workers that joined or died.

Actions are in the audit. A worker that goes by itself removes its row; that of one that died stays
for an hour, so its death is known for so long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec
from sqlalchemy import Connection, Engine, or_, select

from late.control.audit import SESSION_END, Entry
from late.control.sql.rows import now_us
from late.schema.engine import reading
from late.schema.tables import audit, worker

LIMIT = 200
"""The most rows of either table, the latest."""
CLOCKS_US = 300_000_000
"""The most by which clocks of operators differ from the database's: ids of the audit are made by
theirs."""
Kind = Literal["change", "join", "death"]


class Change(msgspec.Struct, frozen=True):
    """One thing that changed."""

    at_us: int
    kind: Kind
    subject: str
    """The thing, such as `queue:payments`; the worker."""
    what: str
    """The action, such as `queue.set`; the version of a worker."""
    by: str = ""
    """The operator; of a worker, its address."""
    before: str | None = None
    after: str | None = None


def changes_since(engine: Engine, since_us: int) -> tuple[Change, ...]:
    """List what has changed at or after `since_us`, the latest first."""
    with reading(engine) as connection:
        now = now_us(connection)
        found = [*_acts(connection, since_us), *_workers(connection, since_us, now)]
    return tuple(sorted(found, key=lambda each: -each.at_us))


def _acts(connection: Connection, since_us: int) -> Iterator[Change]:
    since_ms = max(0, since_us - CLOCKS_US) // 1_000
    query = (
        select(audit)
        .where(
            # A range of the primary key, as ids ascend with time.
            audit.c.audit_id >= f"{since_ms >> 16:08x}-{since_ms & 0xFFFF:04x}",
            audit.c.at_us >= since_us,
            audit.c.action != SESSION_END,
        )
        .order_by(audit.c.audit_id.desc())
        .limit(LIMIT)
    )
    for row in connection.execute(query):
        entry = Entry(**row._mapping)
        yield Change(
            entry.at_us, "change", entry.subject, entry.action, entry.actor, entry.before,
            entry.after,
        )  # fmt: skip


def _workers(connection: Connection, since_us: int, now: int) -> Iterator[Change]:
    died = (worker.c.expires_at_us >= since_us) & (worker.c.expires_at_us <= now)
    names = ("worker_id", "started_at_us", "expires_at_us", "version", "address")
    columns = (worker.c[name] for name in names)
    query = select(*columns).where(or_(worker.c.started_at_us >= since_us, died))
    for row in connection.execute(query.order_by(worker.c.started_at_us.desc()).limit(LIMIT)):
        if row.started_at_us >= since_us:
            yield Change(row.started_at_us, "join", row.worker_id, row.version, row.address)
        if since_us <= row.expires_at_us <= now:
            yield Change(row.expires_at_us, "death", row.worker_id, row.version, row.address)
