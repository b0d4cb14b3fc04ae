"""The lag of each group: the records that it has not read, and the age of the oldest.

A record stays in the log until every group has settled it, so a group without workers lets the log
grow for ever. The alarm is early and is repeated. It goes by age and not by a count, because the
right count differs from system to system.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine, Row, func, select

from late.control.groups.groups import WINDOW_KEY, serving, shown, unknown
from late.control.groups.shadow import shadows_in
from late.control.groups.window_state import under_way
from late.control.sql import positions
from late.control.sql.last_settlement import Journal, journals
from late.control.sql.rows import now_us, seconds
from late.control.sql.shards import groups_of, survey
from late.control.status import backlog
from late.control.status.counts import summed
from late.control.views import Count, GroupView, Status
from late.errors import ConfigError
from late.model.group_settings import KEY, GroupSettings, of_meta
from late.model.task import Reads
from late.schema.engine import reading
from late.schema.tables import group, lease, meta, worker
from late.store.common.groups import PAUSED, is_shadow, reads_of

LIMIT = 10_000
"""The largest number of records of one shard that are counted."""
Lag = tuple[Count, float | None]
"""The number of records that a group has not read, and the age of the oldest in seconds."""
ALARM_S = 600.0
"""The age in seconds that the oldest unread record of a group may reach before the alarm."""


def groups(
    engine: Engine,
    *,
    name: str | None = None,
    limit: int = LIMIT,
    alarm_s: float = ALARM_S,
    seen: Status | None = None,
) -> list[GroupView]:
    """Return all consumer groups, ascending by name, with their lag.

    Args:
        name: return this group only.
        limit: counting stops at so many records of one shard.
        seen: a status that was just read. Its counts are used, and nothing is counted again.
        alarm_s: a group whose oldest unread record is older is `lagging`.

    Raises:
        ConfigError: there is no group `name`.
    """
    with reading(engine) as connection:
        now = now_us(connection)
        rows = {row.name: row for row in connection.execute(select(group))}
        names = [each for each in groups_of(connection) if name in (None, each)]
        if name is not None and not names:
            raise ConfigError(unknown(name, set(rows)))
        served = serving(connection)
        facts = _facts(connection)
        shadows, settings, replays = shadows_in(facts), of_meta(facts), under_way(facts)
        if seen is None:
            reads_by = {each: _reads(rows.get(each)) for each in names}
            lags = _lags(connection, reads_by, now, limit)
        else:
            lags = _of(seen)
        live = select(worker.c.worker_id).where(worker.c.expires_at_us > now)
        held = select(lease.c.consumer_group, func.count()).where(lease.c.owner.in_(live))
        counted = connection.execute(held.group_by(lease.c.consumer_group))
        owned: dict[str, int] = {row[0]: row[1] for row in counted}
        found = []
        for each in names:
            row = rows.get(each)
            reads = _reads(row)
            lag, lag_s = lags.get(each, (Count(), None))
            state = "unregistered" if row is None else "paused" if row.paused & PAUSED else None
            chosen = settings.get(each, GroupSettings())
            shadow = shadows.get(each) if row is not None and is_shadow(row.paused) else None
            found.append(
                GroupView(
                    name=each,
                    created_at_us=row.created_at_us if row else None,
                    state=state or ("working" if served.get(each) else "idle"),  # type: ignore[arg-type]
                    queues=shown(reads),
                    from_us=reads.from_us or None,
                    replay_us=reads.replay_us or None,
                    workers=served.get(each, 0),
                    owned=owned.get(each, 0),
                    lag=lag,
                    lag_s=lag_s,
                    lagging=lag_s is not None and lag_s > alarm_s,
                    shadow_of=shadow.of if shadow else None,
                    until_us=shadow.until_us if shadow else None,
                    objective_s=chosen.objective_s,
                    max_age_s=chosen.max_age_s,
                    replay=replays.get(each),
                )
            )
        return found


def _facts(connection: Connection) -> dict[str, str]:
    """Read the rows of `late_meta` about groups, and what few are between them, in one range."""
    end = WINDOW_KEY[:-1] + chr(ord(WINDOW_KEY[-1]) + 1)
    rows = select(meta.c.key, meta.c.value).where(meta.c.key >= KEY, meta.c.key < end)
    return {row.key: row.value for row in connection.execute(rows)}


def _reads(row: Row[Any] | None) -> Reads:
    return reads_of(row.queues, row.from_us, row.replay_us) if row else Reads()


def _lags(
    connection: Connection, reads: Mapping[str, Reads], now: int, limit: int
) -> dict[str, Lag]:
    last, there = journals(connection), survey(connection)
    found = {}
    for name, each in reads.items():
        cursors = {n: last.get((name, n), Journal()).cursor for n in sorted(there.logged)}
        lag, oldest = unread(connection, cursors, each, limit)
        found[name] = lag, None if oldest is None else seconds(now - oldest)
    return found


def _of(seen: Status) -> dict[str, Lag]:
    found: dict[str, Lag] = {}
    for shard in seen.shards:
        lag, lag_s = found.get(shard.group, (Count(), None))
        ages = [each for each in (lag_s, shard.lag_s) if each is not None]
        found[shard.group] = lag + shard.lag, max(ages, default=None)
    return found


def unread(
    connection: Connection, cursors: Mapping[int, str], reads: Reads, limit: int
) -> tuple[Count, int | None]:
    """Count the records that a group has not read, up to `limit` in each shard.

    Args:
        cursors: the group's cursor in each shard.

    Returns:
        The count, and `created_at_us` of the oldest record (None if there is none).
    """
    among = positions.taken(connection, reads)
    asked = [backlog.Ahead(shard_id, cursor, among) for shard_id, cursor in cursors.items()]
    found = [summed(rows, limit) for rows in backlog.per_queue(connection, asked, limit)]
    oldest = min((first for _, first in found if first is not None), default=None)
    return sum((count for count, _ in found), start=Count()), oldest
