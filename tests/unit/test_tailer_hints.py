"""The tail loop when it is told of commits, under a virtual clock."""

from __future__ import annotations

import asyncio
import random

from late.model.task import ShardId
from late.tailer import read_hints as hints
from late.testing.clock import VirtualClock
from tests.unit.tailer_kit import POLL_MIN_S, Log, Reader, running


async def test_a_hint_reads_at_once_and_leaves_the_pace_as_it_was() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        async with running(reader):
            await asyncio.sleep(100.3)
            reads = len(log.reads)
            reader.tailer.hint({1})
            await asyncio.sleep(POLL_MIN_S * 10)
            assert len(log.reads) - reads == 1 + len(hints.QUICK), "nothing came: a few looks"
            await asyncio.sleep(0.5)
            assert len(log.reads) - reads == 1 + len(hints.QUICK), "the idle pace goes on"
            log.commit(1)
            reader.tailer.hint(())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert reader.lateness_s == [0]


async def test_where_each_commit_is_told_nothing_waits_for_a_poll() -> None:
    """40 records/s, at random moments, reads that take a tenth of the shortest poll."""
    rng = random.Random(7)
    with VirtualClock() as clock:
        log = Log(clock)
        log.read_takes_s = POLL_MIN_S / 10
        reader = Reader(log, 1, page_size=1000)
        async with running(reader):
            for _ in range(200):
                await asyncio.sleep(rng.expovariate(1 / POLL_MIN_S))
                log.commit(1)
                reader.tailer.hint({1})
            await asyncio.sleep(1)
        late_s = sorted(reader.lateness_s)
        assert len(late_s) == 200
        assert late_s[100] <= 2 * log.read_takes_s, "its own read, and at times the one before"
        # Two that come at once: the second waits for the first one's read and the spacing.
        assert late_s[-1] <= POLL_MIN_S * hints.SPACING_SHARE + log.read_takes_s + 1e-6


async def test_a_hint_for_shards_of_others_is_none_of_ours() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1, 2)
        async with running(reader):
            await asyncio.sleep(100.3)
            reads = len(log.reads)
            reader.paused.add(("g", ShardId(2)))
            reader.tailer.hint({2, 3})
            await asyncio.sleep(POLL_MIN_S)
            assert len(log.reads) == reads


async def test_a_flood_of_hints_is_no_flood_of_reads() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        async with running(reader):
            await asyncio.sleep(100.3)
            reads = len(log.reads)
            for _ in range(50_000):
                reader.tailer.hint({1})
                await asyncio.sleep(0.0002)
        # And at the pace of an idle log, less than once a second.
        assert len(log.reads) - reads <= hints.CREDIT + 10 * (hints.CREDIT_PER_S + 1.25)
