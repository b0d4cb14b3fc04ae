"""Read the logs of all shards that want to be read, at the pace they need.

It owns no position. Before every read it asks `wanted()` who wants to read and from where, and
after every read it asks again: a page is handed over only if its shard **still wants to read from
the cursor that the page was read from**. So a shard that was released, fenced, acquired anew or
reset while a read was under way can never get a page that leaves a gap, and after an error there is
nothing to forget.

Pace, for the whole worker:

- records come: every `poll_min_s` of the store's features, counted from the start of a read, and
  after `poll_stream_s` where a few came, also after a gap shorter than `poll_min_s`;
- nothing comes: a 32nd of the silence so far, up to `poll_max_s` (`backoff.poll_after_s`);
- a page was full: at once, for that shard alone, while the others keep their pace;
- `wake()`: at once;
- `hint()`: as soon as `read_hints.py` lets it;
- nothing comes, and the database can tell of commits: the tail announces that it sleeps, looks once
  more and sleeps for longer (`announcement.py`);
- a transient error: full jitter from 0.1 to 30 s, and of all these nothing shortens it but
  `resume()`, when the worker's heartbeats come through again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from late import events
from late.errors import PlaceInDoubt, StoreError
from late.events import Emitter
from late.model.backoff import JITTER, Backoff, poll_after_s
from late.model.task import Cursor, ShardId
from late.store.base import Features, Page, WakeUps
from late.tailer.announcement import Announcement
from late.tailer.ownership import Key
from late.tailer.read_hints import Hints

logger = logging.getLogger("late.tailer")

PAGE_BYTES = 8 * 1024 * 1024
REST_SHARE = 0.2
"""The share of the time between two reads that is a pause, at least."""
FEW = 16
"""So many records of one look may be a stream whose next one comes sooner than the next poll."""
FIRST_LIMIT = 125
"""Records of the first read, when nothing is known of their size: 125 MiB at the very worst."""


class LogReader(Protocol):
    """The part of a `Store` that the tailer needs."""

    @property
    def features(self) -> Features: ...

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]: ...


class Tailer:
    """Reads logs until it is stopped. All methods belong to the event loop that `run` is in.

    Args:
        store: open.
        wanted: (group, shard) -> cursor to read from, for every shard that has room. Called
            often: it must be quick and free of side effects.
        on_pages: takes the pages of one group, which come in no order; must not raise.
        page_size: most records per shard and read.
        poll_max_s: longest wait between two reads when nothing happens, and nobody would tell.
        rng: the source of jitter.
        wake_ups: what tells of commits while the tail sleeps; None: nothing does.
        on_doubt: the database has crashed: throw away what is in memory of all shards.
    """

    def __init__(
        self,
        store: LogReader,
        *,
        wanted: Callable[[], Mapping[Key, Cursor]],
        on_pages: Callable[[str, list[Page]], None],
        page_size: int = 1000,
        poll_max_s: float = 1.0,
        rng: random.Random | None = None,
        emitter: Emitter = events.default,
        wake_ups: WakeUps | None = None,
        on_doubt: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._wanted = wanted
        self._on_pages = on_pages
        self._page_size = page_size
        self._limit = min(page_size, FIRST_LIMIT)
        self._poll_max_s = poll_max_s
        self._poll_min_s = min(store.features.poll_min_s, poll_max_s)
        self._rng = rng or random.Random()
        self._emitter = emitter
        self._backoff = Backoff(self._rng)
        self._stream_s = min(store.features.poll_stream_s or self._poll_min_s, poll_max_s)
        self._hints = Hints(self._poll_min_s)
        self._wake_ups = wake_ups
        self._on_doubt = on_doubt
        self._announcement = Announcement(self._poll_min_s)
        self._told = False
        """True if the next look is made because a commit was told of."""
        self._woken = False
        self._stirred = asyncio.Event()
        """Set when the wait for the next read may be over early."""
        self._stopped = asyncio.Event()
        self._resumed = asyncio.Event()
        """Set when the wait after an error is over early."""
        self.reading = False
        """True while a read is under way, or is to be tried again after an error."""
        self.reads = 0
        """Number of reads that were answered."""
        self._behind: set[Key] = set()
        """Shards whose last page was full."""
        self._read_at: dict[Key, float] = {}
        """The time at which each shard was last read, by the loop's clock."""
        self._edges: dict[Key, int] = {}
        """The insert time of the last record of that page, by shard; microseconds."""
        self._due_s = 0.0
        """The time at which all wanted shards are read next, by the loop's clock."""
        self._quiet_since_s = 0.0
        """The time at which records or a wake-up last came."""

    async def run(self) -> None:
        """Read until `stop`. Cancelling it at any moment is safe: nothing is held.

        Raises:
            StoreError: one that is not transient, such as a store that was closed.
        """
        self._quiet_since_s = _now_s()
        while not self._stopped.is_set():
            wanted = self._wanted()
            behind = {key: cursor for key, cursor in wanted.items() if key in self._behind}
            began_s = _now_s()
            wait_s = min(self._due_s, self._hints.due_s) - began_s
            everything = wait_s <= 0 or self._woken
            if not (everything or behind):
                self._stirred.clear()
                await _wait(self._stirred, wait_s)
                continue
            if everything:
                # Taken before the read: a wake-up or a hint during it may mean a commit that the
                # read did not see, and must lead to another one.
                self._wake_taken()
                self._hints.begin(began_s)
            self.reading = bool(wanted)
            try:
                records = await self._read_all(wanted if everything else behind)
            except StoreError as error:
                if isinstance(error, PlaceInDoubt):
                    # The event may be left out of the log, as one of many while it was away.
                    logger.warning("%s", error)
                    self._on_doubt()
                await self._rest(error)
                continue
            self.reads += 1
            self.reading = False
            self._backoff.reset()
            self._pace(records, began_s, everything)
            if everything and wanted and self._wake_ups is not None:
                await self._announce(self._wake_ups)
            # Stores may answer without waiting, and a long backlog must not starve the loop.
            await asyncio.sleep(0)
        self.reading = False

    def lag_s(self, key: Key, now_us: int) -> float | None:
        """Return how old, by commit, the first record of a shard may be that has not been read;
        None before the first read. `now_us`: the database's clock."""
        edge = self._edges.get(key)
        if edge is not None:
            return max(0.0, (now_us - edge) / 1_000_000)
        read_at = self._read_at.get(key)
        return None if read_at is None else max(0.0, _now_s() - read_at)

    def wake(self) -> None:
        """There may be something to read: look at once. A hint that can be given too often or
        never; a lost one costs at most `poll_max_s`."""
        self._woken = True
        self._stirred.set()

    def resume(self) -> None:
        """Read at once after an error: the database answers others. Workers do not come all at
        once, for each has its own heartbeats."""
        self._resumed.set()

    def hint(self, shards: Collection[int]) -> None:
        """Take in a hint that there may be something to read in `shards` (empty: in any). Its
        sender is not trusted: see `late/tailer/read_hints.py`."""
        if self._hints.waits:
            return  # first, so that a flood of them costs next to nothing
        if not shards or any(shard_id in shards for _, shard_id in self._wanted()):
            self._hints.heard(_now_s())
            self._stirred.set()

    @property
    def told_of_fleet(self) -> bool:
        """True while this tail sleeps and is told of changes of the fleet. From any thread."""
        wake_ups = self._wake_ups
        return (
            wake_ups is not None
            and wake_ups.tells_of_fleet
            and wake_ups.ready
            and self._announcement.stands
        )

    @property
    def deaf(self) -> str:
        """Why `wake_ups` cannot tell of commits; empty if they can, or if there are none."""
        return "" if self._wake_ups is None else self._wake_ups.unable

    async def listen(self, changed: Callable[[], None] = lambda: None) -> None:
        """Take the notices of `wake_ups` until cancelled. `changed` is called for changes of the
        fleet."""
        if self._wake_ups is not None:
            await self._wake_ups.run(self.told, self.lapsed, changed)

    def told(self) -> None:
        """Take in a notice of `wake_ups`: there was a commit."""
        now_s = _now_s()
        if self._announcement.heard(now_s):
            self._told = True
            self._hints.told(now_s)
            self._stirred.set()
        else:
            self.hint(())

    def lapsed(self) -> None:
        """Take in that the announcement does not stand any more: another worker has taken it back,
        or nobody listens. Look, and announce anew. Anybody can say so, so it counts as a notice;
        one too many is treated as too many commits are: the tail polls for a while."""
        now_s, announcement = _now_s(), self._announcement
        if not announcement.stands:
            return
        if announcement.heard(now_s):
            announcement.lost()
            self._due_s = 0.0
        else:
            announcement.withdrawn(now_s)
            self._due_s = min(self._due_s, now_s + self._poll_min_s)
        self._stirred.set()

    def stop(self) -> None:
        """Let `run` return. Pages of a read that is under way are dropped. Calling it twice, or
        before `run`, is fine."""
        self._stopped.set()
        self._stirred.set()
        self._resumed.set()

    def _wake_taken(self) -> None:
        if self._woken:
            self._woken = False
            self._quiet_since_s = _now_s()

    def _pace(self, records: int, began_s: float, everything: bool) -> None:
        now_s = _now_s()
        if records:
            self._quiet_since_s = now_s
        if everything:
            self._hints.end(now_s, records > 0)
            wait_s = self._wait_s(records, now_s)
            # A slow read is not followed by the next one at once: others want the database too.
            self._due_s = max(began_s + wait_s, now_s + wait_s * REST_SHARE)

    def _wait_s(self, records: int, now_s: float) -> float:
        quiet_s = now_s - self._quiet_since_s
        told, self._told = self._told, self._hints.waits and self._told
        if records and self._wake_ups is not None:
            self._announcement.found(now_s, records, told=told)
        if self._announcement.stands:
            most_s = self._announcement.look_after_s(now_s, quiet_s, self._poll_max_s)
            return most_s * self._rng.uniform(1 - JITTER, 1)
        # One look without a record is no end of a stream: at 1,000 records/s one of eight is so.
        streams = records < FEW and quiet_s < self._poll_min_s
        least_s = self._stream_s if streams else self._poll_min_s
        return poll_after_s(quiet_s, least_s, self._poll_max_s, self._rng)

    async def _announce(self, wake_ups: WakeUps) -> None:
        """Announce that this tail is about to sleep, or that it sleeps on; or take it back."""
        announcement, now_s = self._announcement, _now_s()
        if not wake_ups.ready:
            announcement.lost()
        elif announcement.overrun:
            announcement.withdrawn(now_s)
            await wake_ups.withdraw()
            self._due_s = min(self._due_s, _now_s() + self._poll_min_s)
        elif announcement.due(now_s, now_s - self._quiet_since_s) and not self._behind:
            if await wake_ups.announce():
                # What was committed before the announcement, nobody tells of: look once more.
                self._due_s = 0.0
            if wake_ups.ready:
                announcement.made(now_s)

    async def _read_all(self, cursors: Mapping[Key, Cursor]) -> int:
        """Read each group's shards in one statement; returns how many records came."""
        groups: dict[str, dict[ShardId, Cursor]] = {}
        for (group, shard_id), cursor in cursors.items():
            groups.setdefault(group, {})[shard_id] = cursor
        self._behind -= cursors.keys()
        return sum([await self._read_group(group, shards) for group, shards in groups.items()])

    async def _read_group(self, group: str, cursors: dict[ShardId, Cursor]) -> int:
        started_s = _now_s()
        pages = await self._store.read(cursors, self._limit)
        if self._stopped.is_set():
            return 0
        records = sum([len(page.records) for page in pages])
        self._emitter.emit(
            events.PAGE_READ,
            group=group,
            pages=len(pages),
            records=records,
            bytes=self._size_next(pages),
            duration_s=_now_s() - started_s,
        )
        self._behind.update((group, page.shard_id) for page in pages if page.more)
        for key in [(group, shard_id) for shard_id in cursors]:
            self._read_at[key] = started_s
            self._edges.pop(key, None)
        for page in pages:
            if page.more and page.records:
                self._edges[group, page.shard_id] = page.records[-1].created_at_us
        current = self._wanted()
        valid = [
            page for page in pages if current.get((group, page.shard_id)) == cursors[page.shard_id]
        ]
        if valid:
            self._on_pages(group, valid)
        return records

    def _size_next(self, pages: list[Page]) -> int:
        """Set how many records the next read may take, by the payloads of this one, so that a page
        of large ones is a few megabytes too. The number shrinks at once and doubles at most.
        Returns the bytes of this one's payloads."""
        total = 0
        for page in pages:
            if page.records:
                whole = sum([len(record.payload) for record in page.records])
                total += whole
                size = whole // len(page.records)
                fits = max(1, PAGE_BYTES // max(1, size))
                self._limit = min(self._page_size, fits, self._limit * 2)
        return total

    async def _rest(self, error: StoreError) -> None:
        if not error.transient:
            raise error
        retry_in_s = self._backoff.next_s()
        self._due_s = 0.0  # read everything first thing afterwards
        self._emitter.emit(
            events.STORE_ERROR,
            component="tailer",
            transient=True,
            retry_in_s=retry_in_s,
            error=error,
        )
        self._resumed.clear()
        if not self._stopped.is_set():
            await _wait(self._resumed, retry_in_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for `event`, or until `timeout_s` is over."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
