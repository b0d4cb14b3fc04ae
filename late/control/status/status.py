"""Tasks that wait and run, and who owns them: one bounded read over a database of any size.

Counts come from four places that do not overlap: the log beyond each group's cursor, the `open`
of the last settlement, the timers, and the dead letters. Each is counted up to a limit per group
and shard, all in one transaction that sees one moment of the database.

How fresh a group is comes from the oldest of what is not done: the first record beyond a cursor,
the open tasks, the first timer that is overdue. A task that was put off (a delay, a retry, its key,
a setting) counts again from its new due time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Row, select

from late.control.reports import reports
from late.control.sql.deleted_queues import marked
from late.control.sql.last_settlement import Journal, journals
from late.control.sql.positions import registered, taken
from late.control.sql.rows import now_us, open_of, seconds
from late.control.sql.shards import Shard, Shards, groups_of, parked, survey
from late.control.status import backlog
from late.control.status.counts import Tally
from late.control.views import (
    LimitedTasks,
    Reported,
    ShardStatus,
    Status,
    SuspectTask,
    UnhandledTasks,
    WorkerStatus,
)
from late.control.workers import count, declared
from late.errors import ConfigError
from late.model.task import OpenTask, Reads
from late.model.worker_report import LimitedKey
from late.schema.engine import reading
from late.schema.tables import dead, lease, meta, timer, worker
from late.schema.version import SCHEMA_VERSION
from late.store.common.suspects import suspects_of

SUSPECTS = 100
"""Tasks that a look names because workers died under them."""
LIMIT = 10_000
"""Rows that one count of one group and shard looks at."""


def status(
    engine: Engine,
    *,
    queue: str | None = None,
    limit: int = LIMIT,
    told: Iterable[Reported] | None = None,
) -> Status:
    """Queues, shards and workers, each ascending by its key.

    Args:
        queue: show only this queue.
        limit: where a count of one group and shard stops.
        told: the reports of workers, from a caller who has read them.
    """
    if limit < 1:
        raise ConfigError(f"limit {limit}: at least 1")
    with reading(engine) as connection:
        return seen(connection, queue=queue, limit=limit, told=told)


def seen(
    connection: Connection,
    *,
    queue: str | None = None,
    limit: int = LIMIT,
    told: Iterable[Reported] | None = None,
) -> Status:
    """The same within a transaction, for who asks for more of the same moment."""
    now = now_us(connection)
    facts = {row.key: row.value for row in connection.execute(select(meta.c.key, meta.c.value))}
    tally = Tally(now)
    workers = _workers(connection, now)
    there = survey(connection)
    due = dict(parked(connection, timer.c.due_at_us, there.known))
    died = dict(parked(connection, dead.c.dead_at_us, there.known))
    places = list(_places(connection, there, due))
    live = {each.worker_id for each in workers}
    reads = registered(connection)
    shards = _shards(connection, tally, there, places, live, limit, reads)
    tally.parked(connection, due, limit)
    tally.dead(connection, died, limit)
    tally.held(connection, due, limit)
    told = reports(connection) if told is None else tuple(told)
    for key in _served(reads, told):
        tally.counts.setdefault(key, {})
    holds: dict[str | None, int] = defaultdict(int)
    for shard in shards:
        holds[shard.owner] += 1
    return Status(
        now_us=now,
        schema_version=facts.get("schema_version", SCHEMA_VERSION),
        deployment=facts.get("deployment", ""),
        # One that is asked for by its name is shown with its dead letters.
        queues=tuple(
            q for q in tally.queues({} if queue else marked(facts)) if queue in (None, q.queue)
        ),
        shards=tuple(shards),
        workers=tuple(
            msgspec.structs.replace(w, shards=holds.get(w.worker_id, 0)) for w in workers
        ),
        unhandled=_unhandled(connection, tally, queue),
        limited=tuple(
            LimitedTasks(*key, n)
            for key, n in sorted(tally.limited.items())
            if queue in (None, key[1])
        ),
        limited_keys=_limited_keys(told, queue),
        suspects=suspects_in(((e.group, e.shard_id), e.journal) for e in places)
        if queue is None
        else (),
    )


def _served(reads: Mapping[str, Reads], told: Iterable[Reported]) -> set[tuple[str, str]]:
    """Return each (group, queue) whose tasks a worker runs, as far as workers report that: an idle
    queue is to be seen, and not to come and go with its tasks."""
    return {
        (name, queue)
        for each in told
        for name in each.report.groups
        for queue in each.report.queues
        if (only := reads.get(name, Reads()).queues) is None or queue in only
    }


def suspects_in(last: Iterable[tuple[Shard, Journal]]) -> tuple[SuspectTask, ...]:
    """Return the tasks that these last settlements mark because a worker died under them."""
    found = [
        SuspectTask(*key, each.task_id, each.deaths)
        for key, journal in last
        for each in suspects_of(journal.suspects)
        if each.deaths
    ]
    return tuple(sorted(found, key=lambda each: -each.deaths)[:SUSPECTS])


def _unhandled(
    connection: Connection, tally: Tally, queue: str | None
) -> tuple[UnhandledTasks, ...]:
    found = [each for _, each in sorted(tally.unhandled.items()) if queue in (None, each.queue)]
    fleet = declared(connection) if found else []
    return tuple(
        msgspec.structs.replace(each, handlers=count(fleet, each.group, each.queue, each.task))
        for each in found
    )


def _limited_keys(told: Iterable[Reported], queue: str | None) -> tuple[LimitedKey, ...]:
    found = [
        key
        for each in told
        for key in (each.report.limited_keys if each.working else ())
        if queue in (None, key.queue)
    ]
    return tuple(sorted(found, key=lambda each: (-each.waiting, each.key)))


def _workers(connection: Connection, now: int) -> list[WorkerStatus]:
    # Without what they handle, which is long.
    columns = [column for column in worker.c if column is not worker.c.handlers]
    rows = connection.execute(
        select(*columns).where(worker.c.expires_at_us > now).order_by(worker.c.worker_id)
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


class _Place(msgspec.Struct, frozen=True):
    """One (group, shard) that is told of."""

    group: str
    shard_id: int
    journal: Journal
    held: Row[Any] | None
    """Its lease."""
    opened: tuple[OpenTask, ...]
    due_us: int | None
    """Due time of its first timer."""


def _places(connection: Connection, there: Shards, due: Mapping[Shard, int]) -> Iterator[_Place]:
    leases = {(row.consumer_group, row.shard_id): row for row in connection.execute(select(lease))}
    last = journals(connection)
    for name in groups_of(connection):
        for shard_id in there.every:
            key = (name, shard_id)
            journal, held = last.get(key, Journal()), leases.get(key)
            opened = open_of(journal.open)
            if shard_id in there.used or (held and held.owner) or opened:
                yield _Place(name, shard_id, journal, held, opened, due.get(key))
            # else its lane was made smaller, and it is empty


def _shards(
    connection: Connection, tally: Tally, there: Shards, places: list[_Place], live: set[str],
    limit: int, reads: Mapping[str, Reads],
) -> list[ShardStatus]:  # fmt: skip
    among = {each.group: taken(connection, reads.get(each.group, Reads())) for each in places}
    logged = [each for each in places if each.shard_id in there.logged]
    asked = [backlog.Ahead(e.shard_id, e.journal.cursor, among[e.group]) for e in logged]
    waiting = dict(zip(
        ((each.group, each.shard_id) for each in logged),
        backlog.per_queue(connection, asked, limit), strict=True,
    ))  # fmt: skip
    started = backlog.by_keys(connection, [(each.shard_id, each.opened) for each in places])
    found = []
    for place, open_rows in zip(places, started, strict=True):
        name, held, journal = place.group, place.held, place.journal
        owner = held.owner if held else None
        lag, oldest = tally.logged(name, waiting.get((name, place.shard_id), ()), limit)
        undone = [place.due_us, oldest]
        for row in open_rows:
            undone.append(row.created_at_us)
            tally.add((name, row.queue), "in_flight", 1)
            tally.seen((name, row.queue), row.created_at_us)
        found.append(
            ShardStatus(
                group=name,
                shard_id=place.shard_id,
                owner=owner,
                owner_live=owner in live,
                epoch=held.epoch if held else 0,
                seq=journal.seq,
                lag=lag,
                lag_s=None if oldest is None else seconds(tally.now - oldest),
                in_flight=len(place.opened),
                settled_at_us=journal.settled_at_us,
                stale_s=max(seconds(tally.now - us) for us in (*undone, tally.now) if us),
                old=place.shard_id not in there.laned,
                lane=there.layout.lane_of(place.shard_id),
            )
        )
    return found
