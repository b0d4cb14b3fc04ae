"""The tail loop under a virtual clock: pace, wake-ups, full pages, errors, and whose page it is."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from late.errors import StoreClosed, StoreUnavailable
from late.events import PAGE_READ, STORE_ERROR
from late.model.backoff import BACKOFF_MAX_S, BACKOFF_MIN_S, QUIET_SHARE, Backoff, poll_after_s
from late.model.task import Cursor, ShardId
from late.store.base import Page
from late.tailer.tailer import PAGE_BYTES, Tailer
from late.testing.clock import VirtualClock
from tests.unit.tailer_kit import POLL_MIN_S, Log, Reader, running


async def test_all_wanting_shards_of_a_group_share_one_read() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1, 2, 3, groups="gh")
        log.commit(1, 2)
        log.commit(3)
        async with running(reader):
            await asyncio.sleep(0.01)
        assert log.reads == [(0, [1, 2, 3], 10), (0, [1, 2, 3], 10)]
        assert reader.tailer.reads == 1, "the watchdog sees the progress by it"
        assert sorted(reader.got) == [
            ((group, shard), n) for group in "gh" for shard, n in [(1, 1), (1, 2), (3, 1)]
        ]


async def test_the_lag_of_a_shard_is_counted_from_its_last_read() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        key = ("g", ShardId(1))
        assert reader.tailer.lag_s(key, clock.now_us()) is None
        async with running(reader):
            await asyncio.sleep(5)
            last = log.reads[-1][0]
            assert reader.tailer.lag_s(key, clock.now_us()) == pytest.approx(5 - last, abs=0.01)


async def test_under_light_load_a_record_waits_for_half_a_poll() -> None:
    """100 records/s, at random moments: the loop stays at its shortest pause."""
    rng = random.Random(7)
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1, page_size=1000)
        async with running(reader):
            for _ in range(1000):
                await asyncio.sleep(rng.expovariate(100))
                log.commit(1)
            await asyncio.sleep(1)
        lateness_s = sorted(reader.lateness_s)
        assert len(lateness_s) == 1000
        assert lateness_s[500] <= POLL_MIN_S * 0.6
        assert lateness_s[-1] <= POLL_MIN_S * 1.2 + 1e-6


async def test_a_short_gap_does_not_end_a_stream() -> None:
    """1,000 records/s, at random moments: the pause stays short after looks that find none."""
    rng = random.Random(7)
    stream_s = 0.002
    with VirtualClock() as clock:
        log = Log(clock)
        log.features = msgspec.structs.replace(log.features, poll_stream_s=stream_s)
        reader = Reader(log, 1, page_size=1000)
        async with running(reader):
            for _ in range(2000):
                log.commit(1)
                await asyncio.sleep(min(rng.expovariate(1000), POLL_MIN_S - stream_s))
        assert len(reader.lateness_s) >= 1990
        assert max(reader.lateness_s) <= stream_s * 1.2 + 1e-6


@pytest.mark.parametrize(("takes", "share"), [(0.5, 1.0), (1.0, 1.2), (4.0, 4.2)])
async def test_the_pace_counts_from_the_start_of_a_read_and_leaves_a_pause(
    takes: float, share: float
) -> None:
    """In parts of the shortest pause: how long a read takes, and how far two starts are apart."""
    with VirtualClock() as clock:
        log = Log(clock)
        log.read_takes_s = POLL_MIN_S * takes
        reader = Reader(log, 1, page_size=1000)
        async with running(reader):
            for _ in range(200):
                log.commit(1)
                await asyncio.sleep(POLL_MIN_S)
        times = [at for at, _, _ in log.reads]
        apart = [after - before for before, after in itertools.pairwise(times)]
        assert sum(apart) / len(apart) == pytest.approx(POLL_MIN_S * share, rel=0.06)


async def test_a_record_is_late_by_a_share_of_the_silence_at_most() -> None:
    rng = random.Random(8)
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        async with running(reader):
            before_s = 0.0
            for pause_s in [0.0, 0.1, 0.5, 1, 2, 4, 8, 20, 100]:
                await asyncio.sleep(pause_s * rng.uniform(0.9, 1))
                log.commit(1)
                silence_s, before_s = clock.monotonic() - before_s, clock.monotonic()
                await asyncio.sleep(1.3)
                assert len(reader.lateness_s) == 1, "read by now"
                wait_s = max(POLL_MIN_S, min(1, silence_s * QUIET_SHARE))
                assert reader.lateness_s.pop() <= wait_s * 1.2 + 1e-6


async def test_an_idle_log_is_asked_ever_less_with_jitter() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        async with running(Reader(log, 1)):
            await asyncio.sleep(3600)
        times = [at for at, _, _ in log.reads]
        waits = [after - before for before, after in itertools.pairwise(times)]
        assert all(POLL_MIN_S * 0.8 <= wait <= POLL_MIN_S * 1.2 for wait in waits[:4])
        late = waits[250:]
        assert all(0.8 - 1e-6 <= wait <= 1.2 + 1e-6 for wait in late)
        assert max(late) > 1.15
        assert min(late) < 0.85
        assert sum(waits[:200]) > 32, "at the longest pause after some 150 polls"


async def test_a_wake_up_reads_at_once_and_quickens_the_pace() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        async with running(reader):
            await asyncio.sleep(100.3)
            log.commit(1)
            began, reads = clock.monotonic(), len(log.reads)
            reader.tailer.wake()
            await asyncio.sleep(POLL_MIN_S / 2)
            assert reader.lateness_s == [0]
            await asyncio.sleep(POLL_MIN_S * 4)
            assert len(log.reads) - reads >= 4, "idle pace forgotten"
            assert log.reads[reads][0] == pytest.approx(began)


@pytest.mark.parametrize("tell", [Tailer.wake, lambda it: it.hint({1})], ids=["wake", "hint"])
async def test_what_is_told_during_a_read_leads_to_another(tell: Callable[[Tailer], None]) -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        async with running(reader):
            await asyncio.sleep(100)

            def commit_after_the_snapshot() -> None:
                log.during_read = lambda: None
                log.commit(1)
                tell(reader.tailer)

            log.during_read = commit_after_the_snapshot
            await asyncio.sleep(2)
        assert reader.lateness_s == [0]


async def test_a_full_page_is_followed_at_once_by_the_next_of_that_shard() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1, 2)
        log.commit(1, 35)
        log.commit(2, 3)
        async with running(reader):
            await asyncio.sleep(POLL_MIN_S / 2)
            assert [shards for _, shards, _ in log.reads] == [[1, 2], [1], [1], [1]]
            assert len(reader.got) == 38
            assert max(reader.lateness_s) == 0


async def test_others_keep_their_pace_during_a_backlog() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        log.read_takes_s = 0.004
        reader = Reader(log, 1, 2)
        log.commit(1, 10_000)
        async with running(reader):
            await asyncio.sleep(1.5)
            log.commit(2)
            await asyncio.sleep(POLL_MIN_S * 1.2 + 0.010)
            assert (("g", 2), 1) in reader.got
            await asyncio.sleep(0.005)
            for n in range(2, 20):
                log.commit(2)
                reader.tailer.wake()
                await asyncio.sleep(0.009)  # the read under way, and the one after it
                assert (("g", 2), n) in reader.got, "a wake-up counts during a backlog too"
            assert len(reader.got) < 10_000


async def test_a_full_window_stops_the_reading_until_it_opens() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        log.commit(1, 30)

        def pause_after_one_page(group: str, pages: list[Page]) -> None:
            reader.on_pages(group, pages)
            reader.paused.add((group, ShardId(1)))

        reader.tailer._on_pages = pause_after_one_page
        async with running(reader):
            await asyncio.sleep(10)
            assert len(log.reads) == 1
            assert len(reader.got) == 10
            reader.paused.clear()
            reader.tailer.wake()
            await asyncio.sleep(0.001)
            assert len(reader.got) == 20


async def test_a_lost_wake_up_costs_only_time() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        reader.paused.add(("g", ShardId(1)))
        async with running(reader):
            await asyncio.sleep(100)
            assert log.reads == []
            log.commit(1)
            reader.paused.clear()
            await asyncio.sleep(1.2)
            assert reader.got


@pytest.mark.parametrize("change", ["released", "reset", "acquired_anew"])
async def test_a_page_read_from_an_old_cursor_is_dropped(change: str) -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        log.commit(1, 5)
        reader = Reader(log, 1)
        key = ("g", ShardId(1))
        pages: list[Page] = []
        reader.tailer._on_pages = lambda group, found: pages.extend(found)

        def happen() -> None:
            log.during_read = lambda: None
            if change == "released":
                del reader.cursors[key]
            else:
                reader.cursors[key] = Cursor("3" if change == "reset" else "5")

        log.during_read = happen
        async with running(reader):
            await asyncio.sleep(0.001)
            assert pages == []
            await asyncio.sleep(POLL_MIN_S * 1.2)
        positions = [record.position for page in pages for record in page.records]
        assert set(positions) == ({4, 5} if change == "reset" else set())


async def test_transient_errors_back_off_with_full_jitter_and_are_told() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        log.faults = [StoreUnavailable("no connection") for _ in range(40)]
        async with running(reader):
            while log.faults:
                await asyncio.sleep(1)
                reader.tailer.wake()  # neither must shorten the wait
                reader.tailer.hint({1})
            log.commit(1)
            await asyncio.sleep(BACKOFF_MAX_S)
            assert reader.got
        told = [values for name, values in reader.heard if name == STORE_ERROR.name]
        waits = [values["retry_in_s"] for values in told]
        assert len(waits) == 40
        times = [at for at, _, _ in log.reads]
        for n, wait_s in enumerate(waits):
            assert 0 <= wait_s <= min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2**n)
            assert times[n + 1] - times[n] == pytest.approx(wait_s, abs=1e-6)
        assert max(waits) > 20
        assert min(waits[10:]) < 5
        assert told[0]["component"] == "tailer"


async def test_once_the_database_is_back_a_long_wait_is_over() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        log.faults = [StoreUnavailable("x") for _ in range(40)]
        async with running(reader):
            while len(log.faults) > 1:
                reads = len(log.reads)
                await asyncio.sleep(0.001)
                reader.tailer.resume()
                await asyncio.sleep(0.001)
                assert len(log.reads) > reads
            log.faults.clear()
            log.commit(1)
            reader.tailer.resume()
            await asyncio.sleep(0.1)
            assert reader.got
            reader.tailer.resume()  # no error to wait after: nothing changes
            log.faults = [StoreUnavailable("x")]
            await asyncio.sleep(1)
        waits = [values["retry_in_s"] for name, values in reader.heard if "retry_in_s" in values]
        assert waits[-1] <= BACKOFF_MIN_S


async def test_a_success_ends_the_backoff() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        log.faults = [StoreUnavailable("x") for _ in range(20)]
        async with running(reader):
            await asyncio.sleep(21 * BACKOFF_MAX_S)
            assert not log.faults
            log.faults = [StoreUnavailable("x")]
            await asyncio.sleep(2)
        waits = [values["retry_in_s"] for name, values in reader.heard if "retry_in_s" in values]
        assert waits[-1] <= BACKOFF_MIN_S


async def test_after_an_error_the_cursors_are_asked_for_anew() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        log.commit(1, 5)
        reader = Reader(log, 1)
        log.faults = [StoreUnavailable("x")]
        async with running(reader):
            await asyncio.sleep(0)
            reader.cursors[("g", ShardId(1))] = Cursor("4")
            await asyncio.sleep(1)
        assert [position for _, position in reader.got] == [5]


async def test_an_error_that_is_not_transient_ends_the_run() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        log.faults = [StoreClosed("closed")]
        with pytest.raises(StoreClosed):
            await Reader(log, 1).tailer.run()


async def test_stopping_is_legal_at_any_time() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        reader.tailer.stop()
        reader.tailer.stop()
        await reader.tailer.run()
        assert log.reads == []

        for phase_s in [0, 0.1, 0.5]:  # during a read, in a pause, during a backoff
            log.read_takes_s = 0.05
            log.faults = [StoreUnavailable("x")] * 100 if phase_s == 0.5 else []
            reader = Reader(log, 1)
            task = asyncio.create_task(reader.tailer.run())
            await asyncio.sleep(phase_s)
            began = clock.monotonic()
            reader.tailer.stop()
            reader.tailer.stop()
            await task
            assert clock.monotonic() - began <= 0.05 + 1e-6


async def test_pages_that_arrive_after_a_stop_are_dropped() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        log.commit(1)
        reader = Reader(log, 1)
        log.during_read = reader.tailer.stop
        await reader.tailer.run()
        assert reader.got == []


@pytest.mark.parametrize("at_s", [0.02, 0.06, 5.0])
async def test_it_can_be_cancelled_at_any_time(at_s: float) -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        log.read_takes_s = 0.05
        task = asyncio.create_task(Reader(log, 1).tailer.run())
        await asyncio.sleep(at_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_reads_are_told() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        log.commit(1, 3)
        log.read_takes_s = 0.25
        reader = Reader(log, 1, 2)
        async with running(reader):
            await asyncio.sleep(0.3)
        name, values = reader.heard[0]
        assert name == PAGE_READ.name
        assert values == {
            "group": "g",
            "pages": 1,
            "records": 3,
            "bytes": 0,
            "duration_s": pytest.approx(0.25),
        }


@given(
    commits=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 3), st.integers(1, 40)), max_size=8),
    faults=st.integers(0, 3),
    page_size=st.integers(1, 12),
)
def test_every_record_comes_once_and_in_order(
    commits: list[tuple[float, int, int]], faults: int, page_size: int
) -> None:
    async def play() -> None:
        with VirtualClock() as clock:
            log = Log(clock)
            reader = Reader(log, 1, 2, 3, page_size=page_size)
            log.faults = [StoreUnavailable("x")] * faults
            async with running(reader):
                for pause_s, shard, count in commits:
                    await asyncio.sleep(pause_s)
                    log.commit(shard, count)
                await asyncio.sleep(10)
            for shard in (1, 2, 3):
                got = [position for key, position in reader.got if key == ("g", shard)]
                assert got == list(range(1, len(log.records.get(shard, [])) + 1))

    asyncio.run(play())


@given(st.floats(0, 1e6), st.integers(0, 2**32))
def test_a_poll_is_within_its_bounds(quiet_s: float, seed: int) -> None:
    wait_s = poll_after_s(quiet_s, 0.025, 1.0, random.Random(seed))
    assert 0.025 * 0.8 <= wait_s <= 1.2
    assert wait_s <= max(0.025, quiet_s / 8) * 1.2


async def test_pages_of_large_payloads_are_smaller_and_grow_again() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        log.payload = b"x" * (PAGE_BYTES // 4)
        log.commit(1, 100)
        reader = Reader(log, 1, page_size=32)
        async with running(reader):
            log.during_read = lambda: setattr(log, "payload", b"x")
            await asyncio.sleep(1)
        assert [limit for _, _, limit in log.reads][:5] == [32, 4, 8, 16, 32]


async def test_the_lag_is_the_age_of_what_comes_after_a_full_page_and_never_negative() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        log.commit(1, 3)
        reader = Reader(log, 1, page_size=2)
        key = ("g", ShardId(1))
        lags: list[float | None] = [reader.tailer.lag_s(key, 0)]

        def look() -> None:
            if len(log.reads) == 2:
                # Of a record that was created at 0; the database's clock can have been set back.
                lags.extend(reader.tailer.lag_s(key, now_us) for now_us in (2_500_000, 0, -5))

        log.during_read = look
        async with running(reader):
            await asyncio.sleep(1)
        assert lags == [None, 2.5, 0.0, 0.0]


def test_a_night_of_failures_does_not_overflow() -> None:
    backoff = Backoff(random.Random(0))
    assert all(0 <= backoff.next_s() <= BACKOFF_MAX_S for _ in range(5000))


async def test_it_is_reading_during_a_read_only() -> None:
    with VirtualClock() as clock:
        log = Log(clock)
        reader = Reader(log, 1)
        seen: list[bool] = []
        log.during_read = lambda: seen.append(reader.tailer.reading)
        async with running(reader):
            for _ in range(20):
                await asyncio.sleep(POLL_MIN_S)
                seen.append(reader.tailer.reading)
            reading = seen.count(True)
            assert reading == len(log.reads) > 2, "in a read"
            assert seen.count(False) == 20, "between reads"
