"""The row of a consumer group, as every store reads it."""

from __future__ import annotations

import msgspec

from late.task import Reads

ACTIVE = "select name from late_group where paused = 0"
"""Those that may be worked: for `Membership.groups`."""

_queues_of = msgspec.json.Decoder(frozenset[str]).decode


def reads_of(queues: str | None, from_us: int | None, replay_us: int | None) -> Reads:
    """The columns `queues`, `from_us` and `replay_us` of `late_group`."""
    return Reads(None if queues is None else _queues_of(queues), from_us or 0, replay_us or 0)
