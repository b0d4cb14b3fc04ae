"""What waits, what runs, who owns it: one look over the whole database, bounded on any size.

Counts come from four places that do not overlap: the log beyond each group's cursor, the `open`
of the last settlement, the timers, and the dead letters. Each is counted up to a limit per group
and shard, all in one transaction that sees one moment of the database.

How fresh a group is comes from the oldest of what is not done: the first record beyond a cursor,
the open tasks, the first timer that is overdue. A task that was put off (a delay, a retry, its key,
a knob) counts again from its new due time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Row,
    Table,
    and_,
    func,
    select,
)

from late.control import backlog
from late.control.positions import registered, taken
from late.control.rows import log_of, now_us, open_of, seconds
from late.control.views import Count, QueueStatus, ShardStatus, Status, WorkerStatus
from late.errors import ConfigError
from late.schema.engine import reading
from late.schema.tables import dead, group, lane, lease, meta, settlement, timer, worker
from late.schema.version import SCHEMA_VERSION
from late.task import Reads

LIMIT = 10_000
"""Rows that one count of one group and shard looks at."""


class Journal(msgspec.Struct, frozen=True):
    """The last settlement of one (group, shard), or how it starts without one."""

    seq: int = 0
    epoch: int = 0
    cursor: str = ""
    open: str = "[]"
    settled_at_us: int | None = None


class _Tally:
    """Counts per (group, queue), added up over the shards."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.counts: dict[tuple[str, str], dict[str, Count]] = defaultdict(dict)
        self.oldest: dict[tuple[str, str], int] = {}

    def add(self, key: tuple[str, str], field: str, n: int, *, capped: bool = False) -> None:
        fields = self.counts[key]
        fields[field] = fields.get(field, Count()) + Count(n, capped)

    def seen(self, key: tuple[str, str], created_at_us: int) -> None:
        self.oldest[key] = min(self.oldest.get(key, created_at_us), created_at_us)

    def queues(self) -> tuple[QueueStatus, ...]:
        return tuple(
            QueueStatus(
                group=key[0],
                queue=key[1],
                oldest_age_s=seconds(self.now - self.oldest[key]) if key in self.oldest else None,
                **self.counts[key],
            )
            for key in sorted(self.counts)
        )


def status(engine: Engine, *, queue: str | None = None, limit: int = LIMIT) -> Status:
    """Queues, shards and workers, each ascending by its key.

    Args:
        queue: show only this queue.
        limit: where a count of one group and shard stops.
    """
    if limit < 1:
        raise ConfigError(f"limit {limit}: at least 1")
    with reading(engine) as connection:
        return seen(connection, queue=queue, limit=limit)


def seen(connection: Connection, *, queue: str | None = None, limit: int = LIMIT) -> Status:
    """The same within a transaction, for who asks for more of the same moment."""
    now = now_us(connection)
    facts = {row.key: row.value for row in connection.execute(select(meta.c.key, meta.c.value))}
    tally = _Tally(now)
    workers = _workers(connection, now)
    due = dict(firsts(connection, timer.c.due_at_us))
    shards = _shards(connection, tally, {w.worker_id for w in workers}, due, limit)
    _elsewhere(connection, tally, timer, "parked", limit)
    _elsewhere(connection, tally, dead, "dead", limit)
    for name, shard_id in due:
        rows = backlog.held(connection, name, shard_id, limit)
        capped = sum(row[1] for row in rows) >= limit
        for held_queue, n in rows:
            tally.add((name, held_queue), "held", n, capped=capped)
    holds: dict[str | None, int] = defaultdict(int)
    for shard in shards:
        holds[shard.owner] += 1
    return Status(
        now_us=now,
        schema_version=facts.get("schema_version", SCHEMA_VERSION),
        deployment=facts.get("deployment", ""),
        queues=tuple(q for q in tally.queues() if queue in (None, q.queue)),
        shards=tuple(shards),
        workers=tuple(
            msgspec.structs.replace(w, shards=holds.get(w.worker_id, 0)) for w in workers
        ),
    )


def groups_of(connection: Connection) -> list[str]:
    """Every consumer group that is registered or has ever owned a shard, ascending."""
    named = connection.execute(select(group.c.name)).scalars()
    owning = connection.execute(select(lease.c.consumer_group).distinct()).scalars()
    return sorted({*named, *owning})


def shard_ids(connection: Connection) -> list[int]:
    """Shards of the lanes, those that were ever owned, and those that hold rows; ascending."""
    found: set[int] = set(connection.execute(select(lease.c.shard_id).distinct()).scalars())
    return sorted(found | used_shards(connection))


def used_shards(connection: Connection) -> set[int]:
    """Shards of the lanes, and those that hold rows: not what a lane once had and is empty."""
    found = logged_shards(connection)
    for first, count in connection.execute(select(lane.c.first_shard, lane.c.shards)):
        found.update(range(first, first + count))
    return found


def logged_shards(connection: Connection) -> set[int]:
    """Shards that hold rows of the log."""
    # One step down the index per shard: `select distinct` would walk the whole log.
    log = log_of(connection)
    found: set[int] = set()
    last: int | None = -1
    while last is not None:
        statement = select(func.min(log.c.shard_id)).where(log.c.shard_id > last)
        last = connection.execute(statement).scalar_one()
        if last is not None:
            found.add(last)
    return found


def journals(connection: Connection, shard_id: int | None = None) -> dict[tuple[str, int], Journal]:
    """The last settlement of each (group, shard) that was ever owned, or of those of one shard."""
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
    wanted = [] if shard_id is None else [lease.c.shard_id == shard_id]
    rows = connection.execute(
        select(
            lease.c.consumer_group,
            lease.c.shard_id,
            settlement.c.seq,
            settlement.c.epoch,
            settlement.c.cursor,
            settlement.c.open,
            settlement.c.settled_at_us,
        )
        .join_from(
            lease,
            settlement,
            and_(
                settlement.c.consumer_group == lease.c.consumer_group,
                settlement.c.shard_id == lease.c.shard_id,
                settlement.c.seq == newest,
            ),
        )
        .where(*wanted)
    )
    return {(row.consumer_group, row.shard_id): Journal(*row[2:]) for row in rows}


def _workers(connection: Connection, now: int) -> list[WorkerStatus]:
    rows = connection.execute(
        select(worker).where(worker.c.expires_at_us > now).order_by(worker.c.worker_id)
    )
    return [
        WorkerStatus(
            worker_id=row.worker_id,
            address=row.address,
            groups=tuple(msgspec.json.decode(row.consumer_groups)),
            capacity=row.capacity,
            version=row.version,
            started_at_us=row.started_at_us,
            expires_in_s=seconds(row.expires_at_us - now),
            shards=0,
        )
        for row in rows
    ]


def _shards(
    connection: Connection,
    tally: _Tally,
    live: set[str],
    due: dict[tuple[str, int], int],
    limit: int,
) -> list[ShardStatus]:
    leases = {(row.consumer_group, row.shard_id): row for row in connection.execute(select(lease))}
    last = journals(connection)
    found = []
    shards, logged, used = (read(connection) for read in (shard_ids, logged_shards, used_shards))
    reads = registered(connection)
    for name in groups_of(connection):
        among = taken(connection, reads.get(name, Reads()))
        for shard_id in shards:
            journal = last.get((name, shard_id), Journal())
            held = leases.get((name, shard_id))
            owner = held.owner if held else None
            opened = open_of(journal.open)
            if shard_id not in used and owner is None and not opened:
                continue  # its lane was made smaller, and it is empty
            lag, oldest = Count(), None
            if shard_id in logged:
                rows = backlog.per_queue(connection, shard_id, journal.cursor, limit, among)
                lag, oldest = _log(tally, name, rows, limit)
            undone = [due.get((name, shard_id)), oldest]
            for row in backlog.by_keys(connection, shard_id, opened):
                undone.append(row.created_at_us)
                tally.add((name, row.queue), "in_flight", 1)
                tally.seen((name, row.queue), row.created_at_us)
            found.append(
                ShardStatus(
                    group=name,
                    shard_id=shard_id,
                    owner=owner,
                    owner_live=owner in live,
                    epoch=held.epoch if held else 0,
                    seq=journal.seq,
                    lag=lag,
                    lag_s=None if oldest is None else seconds(tally.now - oldest),
                    in_flight=len(opened),
                    settled_at_us=journal.settled_at_us,
                    stale_s=max(seconds(tally.now - us) for us in (*undone, tally.now) if us),
                )
            )
    return found


def _log(
    tally: _Tally, name: str, rows: Sequence[Row[tuple[str, int, int]]], limit: int
) -> tuple[Count, int | None]:
    """Count the log beyond one cursor; returns how many rows and the oldest `created_at_us`."""
    total = sum(row[1] for row in rows)
    capped = total >= limit
    for queue, n, created_at_us in rows:
        tally.add((name, queue), "depth", n, capped=capped)
        tally.seen((name, queue), created_at_us)
    return Count(total, capped), min((row[2] for row in rows), default=None)


def _elsewhere(connection: Connection, tally: _Tally, table: Table, field: str, limit: int) -> None:
    """Count the rows of the timers or the dead letters."""
    time = timer.c.due_at_us if table is timer else dead.c.dead_at_us
    for (name, shard_id), _ in firsts(connection, time):
        first = (
            select(table.c.queue)
            .where(table.c.consumer_group == name, table.c.shard_id == shard_id)
            # Along the key: a planner that expects them everywhere would read the table for them.
            .order_by(time)
            .limit(limit)
            .subquery()
        )
        rows = connection.execute(select(first.c.queue, func.count()).group_by(first.c.queue)).all()
        capped = sum(row[1] for row in rows) >= limit
        for queue, n in rows:
            tally.add((name, queue), field, n, capped=capped)


def firsts(connection: Connection, time: Column[int]) -> Iterator[tuple[tuple[str, int], int]]:
    """Each (group, shard) that has rows in the timers or the dead letters, with the least time
    among them: one step along the primary key for each.

    The group is compared by itself: of a comparison of the pair PostgreSQL's planner expects next
    to nothing where there is one group, and may then read all of it by another index and sort it.
    """
    of, shard = time.table.c.consumer_group, time.table.c.shard_id
    names = select(of).order_by(of).limit(1)
    name = connection.execute(names).scalar()
    last = -1
    while name is not None:
        following = connection.execute(
            select(shard, time).where(of == name, shard > last).order_by(shard, time).limit(1)
        ).first()
        if following is None:
            name, last = connection.execute(names.where(of > name)).scalar(), -1
            continue
        last = following[0]
        yield (name, last), following[1]
