"""The tail that announces its sleep, under a virtual clock."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable

import pytest

from late.tailer import announcement, read_hints
from late.testing.clock import VirtualClock
from tests.unit.tailer_kit import POLL_MIN_S, Log, Reader, running

ASLEEP_S = 20.0


class Told:
    """A stand-in for a database that tells of commits: only of those after an announcement."""

    def __init__(self, reader: Reader) -> None:
        self.ready = True
        self.notices = self.asked = self.withdrawals = 0
        self.standing = False
        self.before_it_stands: Callable[[], None] = lambda: None
        self._reader = reader
        reader.tailer._wake_ups = self

    async def run(self, heard: Callable[[], None], lapsed: Callable[[], None]) -> None:
        await asyncio.Event().wait()

    async def announce(self) -> bool:
        self.asked += 1
        self.before_it_stands()
        lapsed, self.standing = not self.standing, True
        return lapsed

    async def withdraw(self) -> None:
        self.withdrawals += 1
        self.standing = False

    def taken_back(self) -> None:
        """Another worker takes the announcement back, which all hear."""
        self.standing = False
        self._reader.tailer.lapsed()

    def commit(self) -> None:
        told = self.standing
        self._reader.log.commit(1)
        if told:
            self.notices += 1
            self._reader.tailer.told()


async def test_what_a_sleeper_is_told_of_starts_at_once() -> None:
    with VirtualClock() as clock:
        reader = Reader(Log(clock), 1)
        told = Told(reader)
        async with running(reader):
            for _ in range(5):
                await asyncio.sleep(ASLEEP_S)
                told.commit()
            await asyncio.sleep(0.1)
        assert reader.lateness_s == [0.0] * 5


async def test_it_looks_once_more_after_it_has_announced() -> None:
    """A commit that comes right before the announcement, of which nobody tells."""
    with VirtualClock() as clock:
        reader = Reader(Log(clock), 1)
        told = Told(reader)
        told.before_it_stands = lambda: None if told.standing else told.commit()
        async with running(reader):
            await asyncio.sleep(ASLEEP_S)
        assert told.notices == 0
        assert reader.lateness_s == [0.0]


async def test_after_records_of_which_nobody_told_the_next_looks_come_as_if_unannounced() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        log.commit(1)
        reader = Reader(log, 1)
        told = Told(reader)
        reads_at_announcement: list[int] = []
        told.before_it_stands = lambda: reads_at_announcement.append(len(log.reads))
        async with running(reader):
            await asyncio.sleep(ASLEEP_S)
        # The look once more, and the first one after it.
        (once_more_s, _, _), (next_s, _, _) = log.reads[reads_at_announcement[0] :][:2]
        assert next_s - once_more_s <= POLL_MIN_S


async def test_a_lost_notice_costs_what_a_poll_costs() -> None:
    with VirtualClock() as clock:
        reader = Reader(Log(clock), 1)
        Told(reader)
        async with running(reader):
            for _ in range(20):
                await asyncio.sleep(ASLEEP_S)
                reader.log.commit(1)
            await asyncio.sleep(2)
        assert len(reader.lateness_s) == 20
        assert max(reader.lateness_s) <= announcement.LOOK_MAX_S


async def test_an_announcement_that_another_worker_takes_back_is_made_again() -> None:
    with VirtualClock() as clock:
        reader = Reader(Log(clock), 1)
        told = Told(reader)
        async with running(reader):
            for _ in range(20):
                await asyncio.sleep(ASLEEP_S)
                told.taken_back()
                await asyncio.sleep(0.01)
                assert told.standing
                told.commit()
            await asyncio.sleep(0.1)
        assert reader.lateness_s == [0.0] * 20
        assert told.withdrawals == 0


async def test_a_withdrawal_of_ones_own_is_no_news() -> None:
    with VirtualClock() as clock:
        reader = Reader(Log(clock), 1)
        told = Told(reader)
        async with running(reader):
            await asyncio.sleep(ASLEEP_S)
            reader.tailer._announcement.withdrawn(asyncio.get_running_loop().time())
            reads = len(reader.log.reads)
            for _ in range(100):
                told.taken_back()
                await asyncio.sleep(0)
            assert len(reader.log.reads) == reads


async def test_an_idle_sleeper_looks_every_few_seconds_and_says_so_again_before_it_lapses() -> None:
    with VirtualClock() as clock:
        reader = Reader(Log(clock), 1)
        told = Told(reader)
        async with running(reader):
            await asyncio.sleep(60)
            reads, asked = len(reader.log.reads), told.asked
            await asyncio.sleep(600)
        looks = len(reader.log.reads) - reads
        assert 600 / announcement.LOOK_MAX_S <= looks <= 600 / announcement.LOOK_MAX_S * 1.25
        assert told.asked - asked <= looks


async def test_a_busy_stream_is_told_of_some_commits_and_then_of_none() -> None:
    rng = random.Random(3)
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1, page_size=1000)
        told = Told(reader)
        async with running(reader):
            await asyncio.sleep(ASLEEP_S)
            for _ in range(20_000):
                await asyncio.sleep(rng.expovariate(1_000))
                told.commit()
            await asyncio.sleep(1)
        assert told.withdrawals == 1
        assert told.notices <= 2 * announcement.NOTICES
        assert max(reader.lateness_s) <= POLL_MIN_S * 1.3


async def test_without_a_connection_it_keeps_the_pace_of_polls() -> None:
    with VirtualClock() as clock:
        reader, plain = Reader(Log(clock), 1), Reader(Log(clock), 1)
        told = Told(reader)
        told.ready = False
        async with running(reader), running(plain):
            await asyncio.sleep(ASLEEP_S)
        assert told.asked == 0
        assert len(reader.log.reads) == len(plain.log.reads)


async def test_a_sleeper_reads_less_than_one_that_polls() -> None:
    with VirtualClock() as clock:
        reader, plain = Reader(Log(clock), 1), Reader(Log(clock), 1)
        Told(reader)
        async with running(reader), running(plain):
            await asyncio.sleep(ASLEEP_S)
        assert len(reader.log.reads) * 3 < len(plain.log.reads)


async def test_one_that_has_no_shard_announces_nothing() -> None:
    with VirtualClock() as clock:
        reader = Reader(Log(clock))
        told = Told(reader)
        async with running(reader):
            await asyncio.sleep(ASLEEP_S)
        assert told.asked == 0


@pytest.mark.parametrize("notices", [0, announcement.NOTICES - 1])
async def test_one_whose_announcement_another_took_back_looks_soon(notices: int) -> None:
    """Also after so many notices that it is about to take it back itself."""
    with VirtualClock() as clock:
        reader = Reader(Log(clock), 1)
        told = Told(reader)
        async with running(reader):
            await asyncio.sleep(ASLEEP_S)
            for _ in range(int(notices)):
                reader.tailer.told()
            told.taken_back()
            reader.log.commit(1)  # nobody tells of it
            await asyncio.sleep(2)
        assert max(reader.lateness_s) <= 2 * POLL_MIN_S


@pytest.mark.parametrize("notice", ["told", "lapsed"])
async def test_a_storm_of_notices_of_nothing_is_bounded(notice: str) -> None:
    """From whoever may NOTIFY: nothing was committed, and it comes ten thousand times a second."""
    storm_s = 10
    with VirtualClock() as clock:
        reader, plain = Reader(Log(clock), 1), Reader(Log(clock), 1)
        told = Told(reader)
        async with running(reader), running(plain):
            await asyncio.sleep(ASLEEP_S)
            before, unasked = len(reader.log.reads), len(plain.log.reads)
            for _ in range(storm_s * 10_000):
                getattr(reader.tailer, notice)()
                await asyncio.sleep(0.0001)
            looks, polls = len(reader.log.reads) - before, len(plain.log.reads) - unasked
            reader.log.commit(1)
            await asyncio.sleep(2)
        # Each time that it announces: notices that are taken for true, until it takes that back.
        times = told.withdrawals
        assert times <= 2 + storm_s / announcement.HOLD_MAX_S + math.log2(
            announcement.HOLD_MAX_S / announcement.HOLD_S
        )
        hints = read_hints.CREDIT + storm_s * read_hints.CREDIT_PER_S
        assert looks <= times * 2 * announcement.NOTICES + hints + storm_s / POLL_MIN_S
        assert polls < looks < storm_s * 60
        assert reader.lateness_s == [pytest.approx(0, abs=announcement.LOOK_MAX_S)]
