"""Consumer groups, as every store reads them, and how long the log is kept for their replays.

House-keeping is judged by the journal, never by the age of a row. To keep rows for a while it is
judged by the journal **as it was** then, besides how it is now: what a checkpoint of that age
covers was settled at least so long ago. Both must agree, as a group may have been reset since.
"""

from __future__ import annotations

import msgspec

from late.model.task import CONTROL_QUEUE, Reads

ACTIVE = "select name from late_group where paused = 0"
"""Those that may be worked: for `Membership.groups`."""

RETENTION_KEY = "retention_us"
"""Of `late_meta`: how long what every group has settled stays in the log."""
RETENTION = f"select value from late_meta where key = '{RETENTION_KEY}'"

_queues_of = msgspec.json.Decoder(frozenset[str]).decode


def reads_of(queues: str | None, from_us: int | None, replay_us: int | None) -> Reads:
    """The columns `queues`, `from_us` and `replay_us` of `late_group`."""
    named = None if queues is None else _queues_of(queues) | {CONTROL_QUEUE}
    return Reads(named, from_us or 0, replay_us or 0)
