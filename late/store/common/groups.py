"""Consumer groups, as every store reads them, and how long the log is kept for their replays.

Pruning is decided by the journal, never by the age of a row. To keep rows for some time, it is
decided by the journal **as it was** that long ago and also as it is now: all that a checkpoint of
that age covers was settled at least that long ago. Both must agree, as a group may have been reset
in the meantime.
"""

from __future__ import annotations

import msgspec

from late.model.task import CONTROL_QUEUE, Reads

ACTIVE = "select name from late_group where paused = 0"
"""The groups that are not paused, for `Membership.groups`."""

RETENTION_KEY = "retention_us"
"""The key in `late_meta` of the time for which rows that every group has settled stay."""
RETENTION = f"select value from late_meta where key = '{RETENTION_KEY}'"

_queues_of = msgspec.json.Decoder(frozenset[str]).decode


def reads_of(queues: str | None, from_us: int | None, replay_us: int | None) -> Reads:
    """Build `Reads` from the columns `queues`, `from_us` and `replay_us` of `late_group`."""
    named = None if queues is None else _queues_of(queues) | {CONTROL_QUEUE}
    return Reads(named, from_us or 0, replay_us or 0)
