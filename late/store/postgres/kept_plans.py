"""The plan of a look, kept for a stream of them.

To plan a look takes the server two thirds of its time for it. A direct connection can keep the
plan; then it holds for any values, and the partitions that the values rule out are left out at each
execution. A kept plan may be older than the rows that it reads. Made on an empty log it could scan
whole partitions, which cost nothing then. So it is made with scans along indexes alone.

Such a plan also locks all partitions before it leaves any out, so it waits for whoever has locked
one: the pruner for a moment, an operator's `VACUUM FULL` for long. It waits for `LOCK_MS`; then
looks are planned for their values for `REST_S`, which lock the partitions that they read.

The settings that ask for such a plan hold for the session, and would hold for every other read,
whose plans are better made for their values. So they are there only while looks follow each other.
"""

from __future__ import annotations

from time import monotonic

from late.store.postgres.connection import Connection

AFTER = 4
"""So many looks in a row are a stream. Settings cost a message when it begins and when it ends."""
LOCK_MS = 20
REST_S = 5.0
_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "lock_timeout": str(LOCK_MS),
}
KEEP = "; ".join(f"set {name} = {value}" for name, value in _SETTINGS.items())
RESET = "; ".join(f"reset {name}" for name in _SETTINGS)


class KeptPlans:
    """The plans of the one connection that reads the log."""

    def __init__(self) -> None:
        self._looks = 0
        """Looks in a row so far."""
        self._keeping: Connection | None = None
        self._rests_until_s = 0.0

    async def look(self, connection: Connection) -> bool:
        """Prepare a look; True: it may be a prepared statement."""
        self._looks += 1
        if self._looks <= AFTER or connection.prepare_threshold is None:  # It is no direct one.
            return False
        if monotonic() < self._rests_until_s:
            return False
        if self._keeping is not connection:
            await connection.execute(KEEP)
            self._keeping = connection
        return True

    def locked(self) -> None:
        """Take in that a kept plan had to wait for a lock for too long."""
        self._rests_until_s = monotonic() + REST_S

    async def read(self, connection: Connection) -> None:
        """Prepare a read of another kind."""
        self._looks = 0
        if self._keeping is connection:
            await connection.execute(RESET)
        self._keeping = None
