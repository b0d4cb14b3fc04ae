"""Consumer groups, as every store reads them, and how long the log is kept for their replays.

Pruning is decided by the journal, never by the age of a row. To keep rows for some time, it is
decided by the journal **as it was** that long ago and also as it is now: all that a checkpoint of
that age covers was settled at least that long ago. Both must agree, as a group may have been reset
in the meantime.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from late.model.task import CONTROL_QUEUE, Reads

PAUSED, SHADOW = 1, 2
"""The bits of the column `paused`. Older versions take only 0 for a group that may be worked, so
that to them a shadow is a paused group, which they never run."""
SHADOW_MARK = "~"
"""It stands before the name of a shadow in `ACTIVE`. No name begins with it."""
ACTIVE = (
    f"select case paused when {SHADOW} then '{SHADOW_MARK}' || name else name end as name"
    f" from late_group where paused in (0, {SHADOW})"
)
"""The groups that are not paused, for `active_of`."""

RETENTION_KEY = "retention_us"
"""The key in `late_meta` of the time for which rows that every group has settled stay."""
RETENTION = f"select value from late_meta where key = '{RETENTION_KEY}'"

_queues_of = msgspec.json.Decoder(frozenset[str]).decode


def reads_of(
    queues: str | None, from_us: int | None, replay_us: int | None, paused: int = 0
) -> Reads:
    """Build `Reads` from the columns `queues`, `from_us`, `replay_us` and `paused` of
    `late_group`."""
    named = None if queues is None else _queues_of(queues) | {CONTROL_QUEUE}
    return Reads(named, from_us or 0, replay_us or 0, is_shadow(paused))


def is_shadow(paused: int) -> bool:
    """Return whether the column `paused` is that of a shadow."""
    return bool(paused & SHADOW)


def active_of(names: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the groups that may be worked, and those of them that are shadows, from `ACTIVE`."""
    found = list(names)
    shadows = [name.removeprefix(SHADOW_MARK) for name in found if name.startswith(SHADOW_MARK)]
    return frozenset(name.removeprefix(SHADOW_MARK) for name in found), frozenset(shadows)
