"""The part of a worker that knows whether it serves shadows: see `docs/shadow.md`. It also paces
the replays of real groups: see `docs/groups.md`.

A worker serves real groups or shadows, never both. A group of the other kind is to it as one that
is paused: a group may be made anew under its name while it runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from late.concurrency import in_thread
from late.model.replay import Replay
from late.model.shadow import Shadow
from late.model.task import Cursor, Reads, Record, ShardId
from late.scheduler.limits.limiter import TokenBucket
from late.store.base import Lease, Membership, Page, cursor_within

if TYPE_CHECKING:
    from late.control import Control
    from late.worker.worker import Worker

logger = logging.getLogger("late.worker")

Key = tuple[str, ShardId]
SHORTEST_US, LONGEST_US = 20_000, 1_000_000
"""A shard whose next task is not due yet is read again after so long, at least and at most."""
BURST_S = 0.1
"""A rate may be used up for so much time at once."""
UNKNOWN_US = 100_000
"""A replay whose pace is not known yet is read again after so long."""


class ShadowMode:
    """Tells whether a worker serves shadows, and paces these. Before `begin` it serves none.

    Args:
        owned: the number of a group's shards that this worker has.
        reads: what the group of a shard reads; None if the shard is not held.
        now_us: the database's clock.
        wake: called when a shard may be read again.
    """

    def __init__(
        self,
        groups: Sequence[str],
        *,
        owned: Callable[[str], int],
        reads: Callable[[Key], Reads | None],
        now_us: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._groups = groups
        self._owned = owned
        self._shards = 1
        """The number of a group's shards."""
        self._reads = reads
        self._now_us = now_us
        self._wake = wake
        self._replays: Mapping[str, Replay] = {}
        self._resets: dict[str, int] = {}
        """By group: the time of its last reset, where its replay is not known yet."""
        self.shadows: Mapping[str, Shadow] = {}
        self._buckets: dict[str, TokenBucket] = {}
        self._waits: dict[Key, int] = {}
        """The time until which a shard is not read."""
        self._timer: asyncio.TimerHandle | None = None
        self._strangers: frozenset[str] = frozenset()

    @property
    def on(self) -> bool:
        """True if this worker serves shadows."""
        return bool(self.shadows)

    async def begin(self, control: Callable[[], Control]) -> bool:
        """Read which of the groups are shadows, and return `on`.

        Raises:
            ConfigError: some are and some are not, or one is not registered.
        """
        self.shadows = await in_thread(lambda: control().groups.begin_shadows(self._groups))
        return self.on

    # -- groups of the other kind ----------------------------------------------------------------

    def view(self, membership: Membership) -> Membership:
        """Return the fleet in which only groups of this worker's kind may be worked.

        Limits are shared among those too: a shadow takes no part of a real group's rate.
        """
        groups, shadows = membership.groups, membership.shadows
        if groups is None:
            return membership
        mine = groups & shadows if self.on else groups - shadows
        strangers = groups.intersection(self._groups) - mine
        for name in sorted(strangers - self._strangers):
            now = "no shadow any more" if self.on else "a shadow now"
            logger.error(
                "group %s is %s: this worker leaves it alone, start another one", name, now
            )
        self._strangers, self._shards = strangers, len(membership.shards)
        return msgspec.structs.replace(membership, groups=mine)

    def fitting(self, leases: Iterable[Lease]) -> list[Lease]:
        """Return the leases of groups of this worker's kind. The next view releases the others."""
        mine = [lease for lease in leases if lease.reads.shadow == self.on]
        for lease in mine:
            reset_us = lease.reads.replay_us
            if reset_us and not self._is_known(lease.group, reset_us):
                self._resets[lease.group] = reset_us
        return mine

    # -- replays -----------------------------------------------------------------------------------

    @property
    def lacks_replays(self) -> bool:
        """True while a group was reset and the pace of its replay is not known: it waits."""
        return bool(self._resets)

    def follow_replays(self, replays: Mapping[str, Replay]) -> None:
        """Take in the replays of all groups. A group that is not among them is gone."""
        self._replays = replays
        self._resets = {
            group: reset_us
            for group, reset_us in self._resets.items()
            if group in replays and replays[group].replay_us < reset_us
        }

    def _is_known(self, group: str, reset_us: int) -> bool:
        replay = self._replays.get(group)
        return replay is not None and replay.replay_us == reset_us

    # -- pace --------------------------------------------------------------------------------------

    def wanted(self, cursors: Mapping[Key, Cursor]) -> Mapping[Key, Cursor]:
        """Leave out the shards whose next task is not due yet."""
        if not self._waits:
            return cursors
        now_us = self._now_us()
        self._waits = {key: until for key, until in self._waits.items() if until > now_us}
        return {key: cursor for key, cursor in cursors.items() if key not in self._waits}

    def paced(self, group: str, pages: list[Page]) -> list[Page]:
        """Return of each page the part that is due."""
        shadow, now_us = self.shadows.get(group), self._now_us()
        if shadow is None:
            found = [self._replayed(group, page, now_us) for page in pages]
        elif shadow.rate is None and shadow.speed is None:
            return pages
        else:
            bucket = None if shadow.rate is None else self._bucket(group, shadow.rate, now_us)

            def due_us(record: Record) -> int:
                return shadow.due_us(record.created_at_us)

            found = [self._part(group, page, due_us, bucket, now_us) for page in pages]
        return [page for page in found if page is not None]

    def _replayed(self, group: str, page: Page, now_us: int) -> Page | None:
        """Return the part of a page of a real group that is due: a replay may have a rate."""
        reset_us = (self._reads((group, page.shard_id)) or Reads()).replay_us
        if not reset_us:
            return page
        bucket, replay_due_us = None, 0
        if not self._is_known(group, reset_us):
            replay_due_us = now_us + UNKNOWN_US
        elif (rate := self._replays[group].rate) is None:
            return page
        else:
            bucket = self._bucket(group, rate, now_us)

        def due_us(record: Record) -> int | None:
            return replay_due_us if record.created_at_us < reset_us else None

        return self._part(group, page, due_us, bucket, now_us)

    def _bucket(self, group: str, of_all: float, now_us: int) -> TokenBucket:
        """Return the bucket of this worker's part of a group's rate, by its part of the shards."""
        rate = of_all * max(1, self._owned(group)) / max(1, self._shards)
        bucket = self._buckets.get(group)
        if bucket is None:
            bucket = self._buckets[group] = TokenBucket(rate, rate * BURST_S, now_us)
        elif bucket.rate != rate:
            bucket.resize(rate, rate * BURST_S, now_us)
        return bucket

    def _part(
        self,
        group: str,
        page: Page,
        due_of: Callable[[Record], int | None],
        bucket: TokenBucket | None,
        now_us: int,
    ) -> Page | None:
        """Return the records up to the first that is not due; None for none.

        Args:
            due_of: returns when a record is to be taken; None for one that has no pace.
        """
        key = (group, page.shard_id)
        reads = self._reads(key) or Reads()
        for count, record in enumerate(page.records):
            due_us = due_of(record) if reads.takes(record) else None
            if due_us is None:
                continue
            if due_us <= now_us and bucket is not None:
                due_us = bucket.next_at_us(now_us)
                if due_us > now_us:  # for as many as may start at once: each look reads a page
                    due_us = bucket.next_at_us(now_us, max(0, int(bucket.burst) - 1))
            if due_us > now_us:
                self._waits[key] = min(max(due_us, now_us + SHORTEST_US), now_us + LONGEST_US)
                self._wake_later(now_us)
                return _first(page, count)
            if bucket is not None:
                bucket.take()
        return page

    def _wake_later(self, now_us: int) -> None:
        """Wake when the first of the shards that wait may be read."""
        if self._timer is not None:
            self._timer.cancel()
        wait_us = max(SHORTEST_US, min(self._waits.values()) - now_us)
        self._timer = asyncio.get_running_loop().call_later(wait_us / 1_000_000, self._again)

    def _again(self) -> None:
        self._timer = None
        self.wanted({})  # Forgets those whose time has come.
        self._wake()
        if self._waits:
            self._wake_later(self._now_us())

    def close(self) -> None:
        """Wake nobody any more."""
        if self._timer is not None:
            self._timer.cancel()


def shadow_mode_of(worker: Worker) -> ShadowMode:
    """Make the mode of a worker whose other parts are not made yet."""

    def reads(shard: Key) -> Reads | None:
        core = worker.scheduler.cores.get(shard)
        return None if core is None else core.state.lease.reads

    return ShadowMode(
        worker.groups,
        owned=lambda group: sum(of == group for of, _ in worker.scheduler.cores),
        reads=reads,
        now_us=worker.clock.now_us,
        wake=lambda: worker.tailer.wake(),
    )


def _first(page: Page, count: int) -> Page | None:
    """Return a page of the first `count` records; None for none."""
    if count == 0:
        return None
    cursor = cursor_within(page.window, page.records[count - 1])
    return msgspec.structs.replace(page, records=page.records[:count], cursor=cursor, more=False)
