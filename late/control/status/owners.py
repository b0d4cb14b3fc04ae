"""The owner of each shard, its former owners, and how often a former owner was refused.

Owners and epochs are in the journal, which only grows: each term begins with the settlement of its
takeover. What was *refused* leaves no row there, so workers add it up in `late_meta`, one small row
per (group, shard) that ever had any: it happens after pauses and cut networks only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, func, insert, select, update

from late.control.sql.last_settlement import journals
from late.control.sql.rows import now_us
from late.control.sql.shards import groups_of, survey
from late.control.views import Owners, OwnerView, Tenure
from late.errors import ConfigError
from late.schema.engine import reading, write
from late.schema.tables import lease, meta, settlement, worker

LIMIT = 10_000
"""Settlements of one group and shard that are looked at, the latest."""
_KEY, _BEYOND = "refused/", "refused0"


# A row may carry the usage of those before it: then it stands for them all.
_begins = func.coalesce(settlement.c.first_seq, settlement.c.seq)


class Refused(msgspec.Struct, frozen=True):
    """Work that former owners of one (group, shard) did in vain."""

    fenced: int = 0
    """Settlements that the journal refused."""
    late: int = 0
    """Results of attempts that were not recorded, because their shard had gone."""

    def __add__(self, other: Refused) -> Refused:
        return Refused(self.fenced + other.fenced, self.late + other.late)


def owners(engine: Engine, *, limit: int = LIMIT, only: tuple[str, int] | None = None) -> Owners:
    """Every shard of every group with its terms, ascending; the latest term first.

    Args:
        limit: how many settlements of one group and shard are looked at. A term that began before
            them is marked as `cut`.
        only: this (group, shard) and no other.
    """
    if limit < 1:
        raise ConfigError(f"limit {limit}: at least 1")
    with reading(engine) as connection:
        now = now_us(connection)
        live = set(
            connection.execute(select(worker.c.worker_id).where(worker.c.expires_at_us > now))
            .scalars()
        )  # fmt: skip
        leases = {
            (row.consumer_group, row.shard_id): row for row in connection.execute(select(lease))
        }
        last = journals(connection, None if only is None else only[1])
        there = survey(connection)
        refused = _refused(connection)
        found = []
        for name in groups_of(connection):
            for shard_id in there.every:
                key = (name, shard_id)
                if only not in (None, key):
                    continue
                held = leases.get(key)
                tenures = _tenures(connection, *key, last[key].seq, limit) if key in last else ()
                owner, epoch = (held.owner, held.epoch) if held else (None, 0)
                present = next((t for t in tenures if t.epoch == epoch and owner == t.owner), None)
                counts = refused.get(f"{name}/{shard_id}", Refused())
                found.append(
                    OwnerView(
                        group=name,
                        shard_id=shard_id,
                        owner=owner,
                        owner_live=owner in live,
                        epoch=epoch,
                        since_us=present.first_us if present and not present.cut else None,
                        fenced=counts.fenced,
                        late=counts.late,
                        history=tenures,
                        lane=there.layout.lane_of(shard_id),
                    )
                )
    return Owners(
        now_us=now,
        fenced_total=sum(each.fenced for each in refused.values()),
        late_total=sum(each.late for each in refused.values()),
        shards=tuple(found),
    )


def add_refused(engine: Engine, counts: Mapping[tuple[str, int], Refused]) -> None:
    """Add what a worker has counted, per (group, shard).

    Raises:
        StoreError: nothing was added.
    """

    def add(connection: Connection) -> None:
        before = _refused(connection)
        for (name, shard_id), more in counts.items():
            where = f"{name}/{shard_id}"
            total = before.get(where, Refused()) + more
            values: dict[str, Any] = {"value": msgspec.json.encode(total).decode()}
            if where in before:
                key = meta.c.key == _KEY + where
                connection.execute(update(meta).where(key).values(**values))
            else:
                connection.execute(insert(meta).values(key=_KEY + where, **values))

    write(engine, add)


def _refused(connection: Connection) -> dict[str, Refused]:
    rows = connection.execute(
        # A range of the key and no LIKE, which would be no look-up on some of the stores.
        select(meta.c.key, meta.c.value).where(meta.c.key >= _KEY, meta.c.key < _BEYOND)
    )
    return {key[len(_KEY) :]: msgspec.json.decode(text, type=Refused) for key, text in rows}


def _tenures(
    connection: Connection, name: str, shard_id: int, last_seq: int, limit: int
) -> tuple[Tenure, ...]:
    """The terms within the last `limit` settlements, the latest first."""
    # A range of the primary key; the journal has no index by epoch, and needs none: within a shard
    # epochs never fall.
    rows = connection.execute(
        select(
            settlement.c.epoch,
            settlement.c.owner,
            func.min(_begins).label("first_seq"),
            func.sum(1 + settlement.c.seq - _begins).label("n"),
            func.min(settlement.c.settled_at_us).label("first_us"),
            func.max(settlement.c.settled_at_us).label("last_us"),
        )
        .where(
            settlement.c.consumer_group == name,
            settlement.c.shard_id == shard_id,
            settlement.c.seq > last_seq - limit,
        )
        .group_by(settlement.c.epoch, settlement.c.owner)
        .order_by(settlement.c.epoch.desc())
    ).all()
    return tuple(
        Tenure(
            epoch=row.epoch,
            owner=row.owner,
            settlements=int(row.n),
            first_us=row.first_us,
            last_us=row.last_us,
            # What maintenance has removed cannot be told from what lies before the limit.
            cut=row.first_seq > 1 and row is rows[-1],
        )
        for row in rows
    )
