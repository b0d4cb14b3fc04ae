"""`late status` of a past moment, from the journal and from what the tables still hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, select

from late.control.past.as_of import NotKnown
from late.control.past.books import Unfinished
from late.control.past.journal import Past, past_of
from late.control.past.moment import Moment
from late.control.past.shards import ShardThen, shards_then
from late.control.sql.rows import seconds
from late.control.sql.shards import groups_of, named
from late.control.status.status import suspects_in
from late.control.views import Count, GroupView, QueueStatus, ShardStatus, Status
from late.errors import ConfigError
from late.schema.engine import reading
from late.schema.tables import group, meta
from late.schema.version import SCHEMA_VERSION

UNKNOWN = Count(0, capped=True)
PRESENT = (
    *("workers", "unhandled", "limited", "queues.held", "shards.owner_live", "shards.stale_s"),
    *("shards.old", "groups.state", "groups.workers", "groups.owned", "groups.lagging"),
    *("groups.stale_s", "groups.replay"),
)
"""Parts of which only the present is kept."""
_GONE = "some of the records of then have left the log"


def status(moment: Moment, *, queue: str | None, limit: int) -> Status:
    """Return the status of a moment of which the journal tells. What is not known is named in it.

    Raises:
        ConfigError: the detail of the journal does not reach back so far.
    """
    if limit < 1:
        raise ConfigError(f"limit {limit}: at least 1")
    at_us = moment.at_us
    with reading(moment.engine) as connection:
        past = past_of(connection, at_us)
        facts = {row.key: row.value for row in connection.execute(select(meta.c.key, meta.c.value))}
        groups, gone = _groups(connection, past)
        found = list(shards_then(connection, past, list(groups), limit))
        lanes = named(connection).layout
    missing = _missing(past, found)
    not_known = [NotKnown(field, "only its present is kept") for field in PRESENT]
    not_known += [NotKnown(field, why) for field, why in missing.items()]
    not_known += [NotKnown(f"group {name}", "it was removed since") for name in gone]
    queues = [
        _without(each, missing) for each in _queues(found, at_us) if queue in (None, each.queue)
    ]
    suspects = suspects_in((each.key, each.stood.then) for each in found)
    return Status(
        now_us=at_us,
        schema_version=facts.get("schema_version", SCHEMA_VERSION),
        deployment=facts.get("deployment", ""),
        queues=tuple(queues),
        shards=tuple(
            msgspec.structs.replace(_shard_status(each, at_us), lane=lanes.lane_of(each.key[1]))
            for each in found
        ),
        workers=(),
        groups=tuple(_group_view(row, name, found, at_us) for name, row in groups.items()),
        suspects=suspects if queue is None else (),
        as_of=moment.as_of(*not_known),
    )


# --- what is read --------------------------------------------------------------------------------


def _groups(
    connection: Connection, past: Past
) -> tuple[dict[str, Row[Any] | None], tuple[str, ...]]:
    """Return the groups of then with their rows, and the names of those that were removed since."""
    rows = {row.name: row for row in connection.execute(select(group))}
    found: dict[str, Row[Any] | None] = {}
    for name in groups_of(connection):
        row = rows.get(name)
        owned = any(key[0] == name and each.then.seq for key, each in past.stood.items())
        if owned or (row is not None and row.created_at_us <= past.at_us):
            found[name] = row
    return found, past.removed_groups


# --- what follows --------------------------------------------------------------------------------


def _missing(past: Past, found: Sequence[ShardThen]) -> dict[str, str]:
    """Return the parts that are not known of this moment, and why."""
    missing = {}
    if not all(each.whole for each in found):
        missing = dict.fromkeys(("queues.oldest_age_s", "shards.lag_s", "groups.lag_s"), _GONE)
    elif any(each.began_us is None for each in found):
        missing["queues.oldest_age_s"] = _GONE
    moved = past.letters_moved or any(e.stood.since.redriven or e.stood.since.anew for e in found)
    counts = ("queues.in_flight", "queues.parked")
    if moved:
        why = "dead letters or records were redriven, purged or read again since"
        missing |= dict.fromkeys((*counts, "queues.dead"), why)
    elif any(each.unfinished is None for each in found):
        missing |= dict.fromkeys(counts, "the tasks of then are gone, or too many are parked now")
    return missing


def _queues(found: Sequence[ShardThen], at_us: int) -> Iterator[QueueStatus]:
    counts: dict[tuple[str, str], dict[str, Count]] = defaultdict(dict)
    oldest: dict[tuple[str, str], int] = {}
    for shard in found:
        parts: dict[str, Mapping[str, Count]] = {"depth": shard.depth, "dead": shard.dead}
        both = shard.unfinished or Unfinished({}, {})
        parts |= {"in_flight": both.in_flight, "parked": both.parked}
        for field, of in parts.items():
            for queue, count in of.items():
                fields = counts[shard.key[0], queue]
                fields[field] = fields.get(field, Count()) + count
        for times in (shard.oldest_us, shard.began_us or {}):
            for queue, us in times.items():
                key = (shard.key[0], queue)
                oldest[key] = min(oldest.get(key, us), us)
    for key, fields in sorted(counts.items()):
        if any(each.n or each.capped for each in fields.values()):
            age = seconds(at_us - oldest[key]) if key in oldest else None
            made = QueueStatus(*key, oldest_age_s=age)
            yield msgspec.structs.replace(made, **fields)


def _without(queue: QueueStatus, missing: Mapping[str, str]) -> QueueStatus:
    """Return the counts with `UNKNOWN` for those that are not known."""
    counts = ("in_flight", "parked", "dead")
    unknown: dict[str, Any] = {e: UNKNOWN for e in counts if f"queues.{e}" in missing}
    return msgspec.structs.replace(queue, **unknown)


def _shard_status(shard: ShardThen, at_us: int) -> ShardStatus:
    then, oldest = shard.stood.then, min(shard.oldest_us.values(), default=None)
    return ShardStatus(
        group=shard.key[0],
        shard_id=shard.key[1],
        owner=shard.stood.owner,
        owner_live=False,
        epoch=then.epoch,
        seq=then.seq,
        lag=sum(shard.depth.values(), start=Count(0, not shard.whole)),
        lag_s=None if oldest is None else seconds(at_us - oldest),
        in_flight=shard.in_flight,
        settled_at_us=then.settled_at_us,
    )


def _group_view(
    row: Row[Any] | None, name: str, found: Sequence[ShardThen], at_us: int
) -> GroupView:
    shards = [_shard_status(each, at_us) for each in found if each.key[0] == name]
    queues = None if row is None or row.queues is None else msgspec.json.decode(row.queues)
    return GroupView(
        name=name,
        created_at_us=row.created_at_us if row else None,
        queues=None if queues is None else tuple(sorted(queues)),
        lag=sum((each.lag for each in shards), start=Count()),
        lag_s=max((each.lag_s for each in shards if each.lag_s is not None), default=None),
    )
