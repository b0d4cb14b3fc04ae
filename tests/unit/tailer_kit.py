"""A log and a reader for tests of the tail loop, under a virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from late.events import Emitter, Event
from late.model.task import Cursor, Record, ShardId, TaskId
from late.store.base import Features, Page
from late.tailer.ownership import Key
from late.tailer.tailer import Tailer
from late.testing.clock import VirtualClock

POLL_MIN_S = 0.025


class Log:
    """A stand-in for `Store.read` alone: numbered records per shard, and scripted faults."""

    def __init__(self, clock: VirtualClock) -> None:
        self.features = Features(True, "commit", 1e-6, POLL_MIN_S, True, 1000)
        self.clock = clock
        self.records: dict[int, list[float]] = {}
        """shard -> commit time of each record"""
        self.reads: list[tuple[float, list[int], int]] = []
        """(time, shards, limit) of each call"""
        self.faults: list[Exception] = []
        self.payload = b""
        self.read_takes_s = 0.0
        self.during_read: Callable[[], None] = lambda: None

    def commit(self, shard: int, count: int = 1) -> None:
        self.records.setdefault(shard, []).extend([self.clock.monotonic()] * count)

    async def read(self, cursors: Mapping[ShardId, Cursor], limit: int) -> list[Page]:
        self.reads.append((self.clock.monotonic(), sorted(cursors), limit))
        if self.faults:
            raise self.faults.pop(0)
        pages = []
        for shard, cursor in cursors.items():
            after = int(cursor or 0)
            batch = self.records.get(shard, [])[after : after + limit]
            if batch:
                rows = [
                    Record(
                        shard, after + n, TaskId(str(at)), "q", "n", self.payload, None, None, 0, 0
                    )
                    for n, at in enumerate(batch, 1)
                ]
                end = Cursor(str(after + len(batch)))
                pages.append(Page(shard, rows, end, "", len(batch) == limit, 0))
        if self.read_takes_s:
            await asyncio.sleep(self.read_takes_s)
        self.during_read()
        return pages


class Reader:
    """What a worker does with a tailer: keeps a cursor per shard and takes pages."""

    def __init__(self, log: Log, *shards: int, page_size: int = 10, groups: str = "g") -> None:
        self.log = log
        self.cursors: dict[Key, Cursor] = {
            (group, ShardId(shard)): Cursor("") for group in groups for shard in shards
        }
        self.paused: set[Key] = set()
        self.got: list[tuple[Key, int]] = []
        self.lateness_s: list[float] = []
        self.heard: list[tuple[str, dict[str, Any]]] = []
        emitter = Emitter()
        emitter.subscribe(self.listen)
        self.tailer = Tailer(
            log,
            wanted=lambda: {k: c for k, c in self.cursors.items() if k not in self.paused},
            on_pages=self.on_pages,
            page_size=page_size,
            rng=random.Random(1),
            emitter=emitter,
        )

    def listen(self, event: Event, values: Mapping[str, Any]) -> None:
        self.heard.append((event.name, dict(values)))

    def on_pages(self, group: str, pages: list[Page]) -> None:
        for page in pages:
            key = (group, page.shard_id)
            assert page.records[0].position == int(self.cursors[key] or 0) + 1, "a gap"
            self.cursors[key] = page.cursor
            for record in page.records:
                self.got.append((key, record.position))
                self.lateness_s.append(self.log.clock.monotonic() - float(record.task_id))


@asynccontextmanager
async def running(reader: Reader) -> AsyncIterator[None]:
    task = asyncio.create_task(reader.tailer.run())
    try:
        yield
    finally:
        reader.tailer.stop()
        await task
