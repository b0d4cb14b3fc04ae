"""Tell of leases: an event for each shard, and one line of the log for all of a hand-over."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from late import events
from late.events import Emitter, Event
from late.store.base import Lease

SUSPECTS_TOLD = 5
"""Ids of suspects in one event at most, those with most deaths first."""
SHARDS_TOLD = 5
"""Shards that a line names; of the others it has the number, and the level DEBUG each of them."""

logger = logging.getLogger("late.tailer")


def tell(emitter: Emitter, event: Event, lease: Lease) -> None:
    """Emit the event of one lease."""
    emitter.emit(event, group=lease.group, shard=lease.shard_id, epoch=lease.epoch)


def tell_suspects(emitter: Emitter, lease: Lease) -> None:
    """Emit the suspects of a lease: else nothing names them before they are dead letters."""
    suspects = sorted((-each.deaths, each.task_id) for each in lease.suspects if each.deaths)
    if suspects:
        emitter.emit(
            events.SUSPECTS_FOUND,
            suspects=len(suspects),
            group=lease.group,
            shard=lease.shard_id,
            tasks=" ".join(task_id for _, task_id in suspects[:SUSPECTS_TOLD]),
        )


def log(word: str, leases: Sequence[Lease]) -> None:
    """Write what has become of these leases, such as `released`: one line, none without leases."""
    if leases:
        names = [f"{lease.group}/{lease.shard_id}" for lease in leases[:SHARDS_TOLD]]
        more = len(leases) - len(names)
        shards = "shard" if len(leases) == 1 else "shards"
        others = f" and {more} more" if more else ""
        logger.info("%d %s %s: %s%s", len(leases), shards, word, ", ".join(names), others)
