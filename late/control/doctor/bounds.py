"""Find bounds of queues that do not bind, for `late doctor`: nobody counts the tasks.

A worker that maintains counts for all groups that have a live worker, so tasks of a group without
one are not counted, and no enqueue is refused for them (`late.app.backpressure`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from sqlalchemy import Connection, select

from late.control.sql.rows import now_us
from late.control.sql.shards import survey
from late.control.views import Check
from late.errors import InvalidPolicy
from late.model import queue_settings
from late.model.task import DEFAULT_GROUP
from late.schema.tables import group, lease, queue, worker
from late.store.common.groups import PAUSED, is_shadow, reads_of
from late.tailer.placement import lanes_of

SHOWN = 5
KNOBS = ("max_backlog", "key_backlog")


def check(connection: Connection) -> Check:
    """Compare the bounds of queues with the groups whose tasks somebody counts."""
    bounds = dict(_bounds(connection))
    if not bounds:
        return Check("bounds", "ok", "no queue has one")
    counted, found, paused = _counted(connection), [], {}
    for row in connection.execute(select(group).order_by(group.c.name)):
        if row.name in counted or is_shadow(row.paused):
            continue
        only = reads_of(row.queues, None, None).queues
        read = [name for name in bounds if only is None or name in only]
        found += [f"{bounds[name]} of queue {name} in group {row.name}" for name in read]
        if read:
            paused[row.name] = bool(row.paused & PAUSED)
    if not found:
        return Check("bounds", "ok", f"of {len(bounds)} queues, and a worker counts for each")
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    helps = "; ".join(_command(*each) for each in list(paused.items())[:SHOWN])
    return Check(
        "bounds", "warning",
        f"no live worker counts for {', '.join(found[:SHOWN])}{more}: what waits there is not "
        f"counted, and more tasks come in than the bound lets. Run: {helps}",
    )  # fmt: skip


def _bounds(connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield each queue that has a bound, with its knobs. The check `knobs` tells of unreadable
    ones."""
    for row in connection.execute(select(queue).order_by(queue.c.name)):
        try:
            knobs = queue_settings.decode(row.knobs)
        except InvalidPolicy:
            continue
        words = [word for word in KNOBS if getattr(knobs, word) is not None]
        if words:
            yield row.name, " and ".join(words)


def _counted(connection: Connection) -> set[str]:
    """Return the groups of live workers, if one of these counts: the owner of the lowest shard of
    one of its groups; where workers serve some lanes only, of the lowest one that is owned."""
    used = survey(connection).used
    leases = select(lease.c.shard_id, lease.c.owner, lease.c.consumer_group)
    live = select(worker.c.worker_id, worker.c.consumer_groups, worker.c.version).where(
        worker.c.expires_at_us > now_us(connection)
    )
    groups_of, by_lanes = dict[str, list[str]](), set[str]()
    for worker_id, text, version in connection.execute(live):
        groups_of[worker_id] = msgspec.json.decode(text, type=list[str])
        by_lanes.update(groups_of[worker_id] if lanes_of(version) else ())
    lowest: dict[str, tuple[int, str]] = {}
    for shard_id, owner, name in connection.execute(leases):
        if shard_id in used and name in groups_of.get(owner, ()):
            lowest[name] = min((shard_id, owner), lowest.get(name, (shard_id, owner)))
    first = min(used, default=None)
    if any(shard == first or name in by_lanes for name, (shard, _) in lowest.items()):
        return {name for names in groups_of.values() for name in names}
    return set()


def _command(name: str, paused: bool) -> str:
    if paused:
        return f"late group resume {name}"
    return "late worker MODULE:APP" + ("" if name == DEFAULT_GROUP else f" --group {name}")
