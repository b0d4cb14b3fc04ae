"""Signals by which an orchestrator scales workers: backlog, its age, the pace of the last minute.

The backlog is that of `late status`; the pace comes from the last settlements of each shard, which
count attempts and the time that they took.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Engine, Row, Select, select

from late.autoscaler.keda.demand import Signals, TenantPace
from late.control.lanes.layout import layout
from late.control.reports import reports
from late.control.sql.knob_rows import of_queues
from late.control.sql.per_shard import Value, lateral_rows
from late.control.status.held_back import Pace, held_in_memory, helped
from late.control.status.status import status
from late.control.views import QueueStatus, Reported, Status
from late.errors import ConfigError, InvalidPolicy
from late.model.queue_settings import QueueSettings
from late.model.task import ENQUEUED, Usage
from late.schema.engine import reading
from late.schema.tables import settlement

PACE_US = 60_000_000
"""The time over which the pace is measured."""
ROWS = 50
"""Settlements of a shard that are read; a busy shard writes as many in a second."""
TENANTS = 3
"""The most tenants of one queue that signals name."""
LIMITS = 10
"""The most limits that signals name."""
FAILED = frozenset({"retried", "stalled", "dead"})
"""Outcomes of attempts that failed; `stalled` are those of an outage."""
_usage = msgspec.json.Decoder(tuple[Usage, ...])


def signals(engine: Engine, pairs: Sequence[tuple[str, str | None]]) -> list[Signals]:
    """Return the signals of each (group, queue); None as a queue is all of the group's.

    Raises:
        ConfigError: there is no such group. A zero would let an orchestrator stop its workers for a
            name that was written wrongly. A queue that nobody has heard of may yet come.
    """
    found = status(engine)
    _require(found, [name for name, _ in pairs])
    with reading(engine) as connection:
        paces = _paces(connection, found, sorted({name for name, _ in pairs}))
        limits = _limits(connection, found, paces)
    return [_of(found, paces[name], name, queue, limits) for name, queue in pairs]


def _require(found: Status, groups: Sequence[str]) -> None:
    known = {shard.group for shard in found.shards}
    for name in groups:
        if name not in known:
            raise ConfigError(
                f"no group {name[:128]!r}; there are {', '.join(sorted(known))[:400] or 'none'}"
            )


def of_lane(engine: Engine, groups: Sequence[str], name: str) -> list[Signals]:
    """Return the signals of each group, by the shards of one lane. Where there is only one, they
    are those of the group.

    Raises:
        ConfigError: there is no such group.
    """
    lanes = layout(engine)
    if len(lanes.lanes) == 1:
        return signals(engine, [(each, None) for each in groups])
    found = status(engine)
    _require(found, groups)
    ours = tuple(each for each in found.shards if lanes.lane_of(each.shard_id) == name)
    found = msgspec.structs.replace(found, shards=ours, queues=())
    with reading(engine) as connection:
        paces = _paces(connection, found, groups)
        limits = _limits(connection, found, paces)
    return [
        msgspec.structs.replace(
            _of(found, paces[each], each, None, limits),
            backlog=sum(s.lag.n + s.in_flight for s in ours if s.group == each),
            age_s=max([s.lag_s or 0.0 for s in ours if s.group == each], default=0.0),
        )
        for each in groups
    ]


def detailed(
    engine: Engine,
    *,
    limit: int,
    settings: Mapping[str, QueueSettings] | None = None,
    told: Iterable[Reported] | None = None,
) -> tuple[Status, dict[str, Signals], dict[tuple[str, str], Signals]]:
    """One look at the whole database, the signals of every group by it, and those of every
    (group, queue) that has tasks or workers.

    Args:
        settings: of the queues, and the workers' reports (`told`), from a caller who has read them.
    """
    found = status(engine, limit=limit, told=told)
    names = sorted({shard.group for shard in found.shards})
    with reading(engine) as connection:
        paces = _paces(connection, found, names)
        limits = _limits(connection, found, paces, settings, told)
    keyed = {(queue.group, queue.queue): queue for queue in found.queues}
    queues = {
        key: _of(found, limits.paces.get(key, ()), *key, limits, [own])
        for key, own in keyed.items()
    }
    return found, {name: _of(found, paces[name], name, None, limits) for name in names}, queues


class _Limits(NamedTuple):
    """The limits that may hold tasks back; all but the settings by group and queue."""

    settings: Mapping[str, QueueSettings]
    circuits: Mapping[tuple[str, str], Mapping[str, int]]
    parked: Mapping[tuple[str, str], int]
    """Tasks that a limit has parked."""
    paces: Mapping[tuple[str, str], Sequence[tuple[Usage, float]]]


def _limits(
    connection: Connection,
    found: Status,
    paces: Mapping[str, Sequence[tuple[Usage, float]]],
    settings: Mapping[str, QueueSettings] | None = None,
    told: Iterable[Reported] | None = None,
) -> _Limits:
    # Each queue looks through its own counts alone, and at no other queue: a thousand of them would
    # otherwise look at a million.
    apart: dict[tuple[str, str], list[tuple[Usage, float]]] = defaultdict(list)
    for name, pace in paces.items():
        for each in pace:
            apart[name, each[0].queue].append(each)
    parked: Counter[tuple[str, str]] = Counter()
    for limited in found.limited:
        parked[limited.group, limited.queue] += limited.waiting.n
    if settings is None:
        settings = _settings(connection)
    circuits = held_in_memory(reports(connection) if told is None else told)
    return _Limits(settings, circuits, parked, apart)


def _settings(connection: Connection) -> dict[str, QueueSettings]:
    """Return the settings of the queues; none while a row is of a later version: the load is told
    without them all the same, for an autoscaler that knows of no load would take workers away."""
    try:
        return of_queues(connection)
    except InvalidPolicy:
        return {}


def _of(
    found: Status,
    pace: Sequence[tuple[Usage, float]],
    name: str,
    queue: str | None,
    limits: _Limits,
    queues: Sequence[QueueStatus] | None = None,
) -> Signals:
    if queues is None:
        queues = [q for q in found.queues if q.group == name and queue in (None, q.queue)]
    rate = busy_s = failed = expired = 0.0
    for usage, span_s in pace:
        if queue in (None, usage.queue):
            rate += usage.attempts / span_s
            busy_s += usage.busy_us / 1e6 / span_s
            failed += usage.attempts / span_s if usage.outcome in FAILED else 0.0
            expired += usage.count / span_s if usage.outcome == "expired" else 0.0
    parts = [_helped(each, limits) for each in queues]
    tenants = _tenants([each for each in pace if each[0].queue == queue])
    return Signals(
        backlog=sum(q.waiting for q in queues),
        age_s=max((q.oldest_age_s or 0.0 for q in queues), default=0.0),
        rate=rate,
        busy_s=busy_s / rate if rate else 0.0,
        workers=sum(name in each.groups for each in found.workers),
        # Old ones that are empty stay owned, and are work for nobody.
        shards=sum(
            each.group == name and (not each.old or each.in_flight > 0 or each.lag.n > 0)
            for each in found.shards
        ),
        failed=failed,
        tenants=tenants[:TENANTS],
        tenants_seen=len(tenants),
        helped=sum(tasks for tasks, _ in parts),
        limits=tuple(why for _, why in parts if why)[:LIMITS],
        expired=expired,
    )


def _helped(queue: QueueStatus, limits: _Limits) -> tuple[int, str]:
    key = queue.group, queue.queue
    parked = limits.parked.get(key, 0)
    if not queue.waiting and not parked:
        return 0, ""
    ours = limits.paces.get(key, ())
    pace = Pace(
        rate=sum(usage.attempts / span_s for usage, span_s in ours),
        slots=sum(usage.busy_us / 1e6 / span_s for usage, span_s in ours),
    )
    settings = limits.settings.get(queue.queue, QueueSettings())
    return helped(queue, settings, pace, limits.circuits.get(key, {}), parked)


def _tenants(pace: Sequence[tuple[Usage, float]]) -> tuple[TenantPace, ...]:
    """The tenants of one queue, those first that send most or have most slots."""
    arrivals: dict[str, float] = defaultdict(float)
    slots: dict[str, float] = defaultdict(float)
    ends = 0.0
    for usage, span_s in pace:
        if usage.tenant is not None:
            slots[usage.tenant] += usage.busy_us / 1e6 / span_s
            arrivals[usage.tenant] += usage.count / span_s if usage.outcome == ENQUEUED else 0.0
            ends += usage.count / span_s if usage.outcome == "done" else 0.0
    all_arrivals = max(sum(arrivals.values()), ends) or 1.0
    all_slots = sum(slots.values()) or 1.0
    found = [
        TenantPace(name, rate, rate / all_arrivals, slots[name], slots[name] / all_slots)
        for name, rate in arrivals.items()
    ]
    return tuple(sorted(found, key=lambda each: (-max(each.share, each.slot_share), each.tenant)))


def _paces(
    connection: Connection, found: Status, names: Sequence[str]
) -> dict[str, list[tuple[Usage, float]]]:
    """By group: counts of the last settlements, each with the seconds that it is a share of."""
    paces: dict[str, list[tuple[Usage, float]]] = {name: [] for name in names}
    shards = [shard for shard in found.shards if shard.group in paces and shard.seq]
    last: dict[int, list[Row[Any]]] = defaultdict(list)
    for row in lateral_rows(
        connection, _recent, [(s.group, s.shard_id) for s in shards], rows=ROWS
    ):
        last[row.leg].append(row)
    for leg, rows in last.items():
        recent = [row for row in rows if row.settled_at_us > found.now_us - PACE_US]
        whole = len(recent) < ROWS
        span_us = PACE_US
        if not whole:
            oldest_us = min(row.settled_at_us for row in recent)
            span_us = max(1_000_000, found.now_us - oldest_us)
        for row in recent:
            try:
                counts = _usage.decode(row.usage or "[]")
            except msgspec.MsgspecError:
                continue  # `late verify` says so; a pace that is a little low does no harm
            paces[shards[leg].group].extend((usage, span_us / 1e6) for usage in counts)
    return paces


def _recent(name: Value, shard_id: Value) -> Select[Any]:
    """The last settlements of one group and shard."""
    return (
        select(settlement.c.usage, settlement.c.settled_at_us)
        .where(settlement.c.consumer_group == name, settlement.c.shard_id == shard_id)
        .order_by(settlement.c.seq.desc())
        .limit(ROWS)
    )
