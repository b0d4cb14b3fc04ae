"""The bounds of one core."""

from __future__ import annotations

import msgspec

NEVER_US = 2**63 - 1
"""A time that does not come."""


class CoreSettings(msgspec.Struct, frozen=True):
    """Bounds of one core. Defaults: `docs/design`."""

    window: int = 2_000
    """Records read and not settled; at the bound the tail stops, nothing is forgotten."""
    window_bytes: int = 64 * 1024 * 1024
    """Their payloads; exceeded by one page at most, which the tailer keeps small."""
    settle_bytes: int = 32 * 1024 * 1024
    """Payloads that one settlement parks; the rest waits for the next one. Spanner takes 100 MiB
    in one transaction, and what ends goes along."""
    page_size: int = 1_000
    horizon_us: int = 10_000_000
    timers_max: int = 10_000
    near_us: int = 200_000
    """Due within this: kept in memory instead of parked. Each settlement repeats the key of what
    is kept; parking writes a row and deletes it: about even at a fifth of a second."""
    park_after_us: int = 1_000_000
    """A task that waits behind its ordering key for longer is parked."""
    soon_us: int = 600_000
    """A task that is parked and due within this is settled at once: as long as a settlement waits
    for company and takes, for it must be in its table before it may start."""
    idle_settle_us: int = 60_000_000
    """A cursor that moved with nothing to settle is written this often: pruning follows it."""
    unknown_max_us: int = 86_400_000_000
    """A task without a handler may wait so long before it goes to the dead letters."""
    offers: bool = False
    """There is a pool `ELSEWHERE`, which offers such tasks to other workers."""
    held_look_us: int = 100_000
    """Pause between two looks for tasks that wait for long: each look goes over all keys."""

    @property
    def limited_max(self) -> int:
        """Tasks that wait for a limit in memory; more are parked. Less than where the tail stops,
        which would stand still for their neighbours until they are in the table."""
        return max(self.window - self.page_size, self.window // 2) // 2
