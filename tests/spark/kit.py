"""Journals made by hand, so that what a read finds is known to the row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from late_spark import live, parts
from late_spark.bounds import Bounds
from late_spark.frames import TABLES
from sqlalchemy import delete, insert, select, update

from late.model.task import Usage
from late.model.usage_sums import summed
from late.schema.engine import make_engine, writing
from late.schema.tables import settlement

SECOND = 1_000_000
START_US = 1_790_000_000 * SECOND
"""2026-09-21T14:13:20Z: when the first settlement of each journal is made."""


def done(count: int, *, queue: str = "q", name: str = "n", **more: Any) -> Usage:
    """Usage of tasks that took 100 µs each, after 40 µs."""
    given = {"target": "local", "outcome": "done", "attempts": count, "busy_us": 100 * count,
             "waiting_us": 40 * count, "payload_bytes": 10 * count,
             "waiting": ((36, count),), "busy": ((57, count),)}  # fmt: skip
    return Usage(queue, name, count=count, **(given | more))


def settled(
    seq: int,
    usage: Sequence[Usage] | str | None = None,
    *,
    group: str = "default",
    shard: int = 0,
    at_us: int | None = None,
    owner: str = "w1",
) -> dict[str, Any]:
    """A row of the journal; each `seq` is settled a second after the one before."""
    text = usage if isinstance(usage, str) or usage is None else msgspec.json.encode(usage).decode()
    return {
        "consumer_group": group, "shard_id": shard, "seq": seq,
        "settlement_id": f"{owner}/{group}/{shard}/{seq}", "epoch": 1, "owner": owner,
        "cursor": "c",
        "open": "[]", "usage": text,
        "settled_at_us": START_US + (seq - 1) * SECOND if at_us is None else at_us,
    }  # fmt: skip


def write(url: str, rows: Iterable[dict[str, Any]]) -> None:
    engine = make_engine(url)
    with writing(engine) as connection:
        for row in rows:
            connection.execute(insert(settlement).values(row))
    engine.dispose()


def prune(url: str, through: int, *, shard: int = 0) -> None:
    """What retention does: the oldest settlements go."""
    engine = make_engine(url)
    with writing(engine) as connection:
        connection.execute(
            delete(settlement).where(settlement.c.shard_id == shard, settlement.c.seq <= through)
        )
    engine.dispose()


def put_together(url: str, first: int, last: int, *, shard: int = 0) -> None:
    """What compaction does: rows `first`..`last` become the last of them."""
    engine = make_engine(url)
    of = settlement.c
    chosen = (of.shard_id == shard, of.seq.between(first, last))
    with writing(engine) as connection:
        found = connection.execute(select(of.usage).where(*chosen)).scalars().all()
        usage = summed(each for text in found for each in msgspec.json.decode(
            text or "[]", type=tuple[Usage, ...]))  # fmt: skip
        connection.execute(delete(settlement).where(*chosen, of.seq < last))
        connection.execute(
            update(settlement)
            .where(*chosen)
            .values(first_seq=first, usage=msgspec.json.encode(usage).decode())
        )
    engine.dispose()


def read(url: str, table: str = "usage", bounds: Bounds | None = None, **more: Any) -> pa.Table:
    """All parts of a plan, one after the other, without Spark."""
    bounds = bounds or Bounds()
    names = TABLES[table].names
    plan = live.plan(url, table, bounds, columns=names, **more)
    found = [
        batch
        for part in plan.parts
        for batch in parts.read(url, table, part, names, bounds, plan.owners, moment=plan.moment)
    ]
    return pa.Table.from_batches(found) if found else pa.table({name: [] for name in names})
