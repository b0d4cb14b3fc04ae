"""Group commit: when it writes, and that no settlement is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, cast

import pytest

from late import events
from late.dispatcher import settler as settle
from late.dispatcher.settler import Settler
from late.errors import SchemaMismatch, StoreError, StoreUnavailable, TransactionAborted
from late.model.task import Cursor, Epoch, ShardId
from late.store.base import Settlement, SettleResult, Store

_ids = count()
FIRST = ("default", ShardId(0))


def settlement(shard_id: int = 0, seq: int = 1) -> Settlement:
    return Settlement(
        f"s{next(_ids)}", "default", ShardId(shard_id), seq, Epoch(1), "w1", Cursor(""), ()
    )


class Journal:
    """A store that does as it is told: `answers` are raised or awaited, one per call."""

    def __init__(self, *answers: StoreError | Callable[[], Any] | None) -> None:
        self.calls: list[list[Settlement]] = []
        self.answers = list(answers)
        self.called = asyncio.Event()

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        self.calls.append(list(settlements))
        self.called.set()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, StoreError):
            raise answer
        if answer is not None:
            await answer()
        return [SettleResult.SETTLED for _ in settlements]


class Rig:
    """A settler, what it is to collect, and what it told."""

    def __init__(self, journal: Journal, **options: Any) -> None:
        self.journal = journal
        self.pending: list[Settlement] = []
        self.awaited: set[int] = set()
        self.results: list[Settlement] = []
        self.errors: list[tuple[list[Settlement], StoreError]] = []
        self.slept: list[float] = []
        self.news = asyncio.Event()
        options.setdefault("delay_s", 0.001)
        options.setdefault("keep_s", 0.0)
        self.settler = Settler(
            cast(Store, journal),
            collect=self._collect,
            on_result=self._result,
            on_error=self._error,
            rng=random.Random(7),
            sleep=self._sleep,
            **options,
        )

    def _collect(self, urgent: bool) -> list[Settlement]:
        taken = [one for one in self.pending if not urgent or one.shard_id in self.awaited]
        self.pending = [one for one in self.pending if one not in taken]
        self.awaited.clear()
        return taken

    def _result(self, one: Settlement, result: SettleResult) -> None:
        self.results.append(one)
        self.news.set()

    def _error(self, refused: Sequence[Settlement], error: StoreError) -> None:
        self.errors.append((list(refused), error))
        self.news.set()

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    def add(self, *settlements: Settlement, outcomes: int = 1, urgent: bool = True) -> None:
        self.pending.extend(settlements)
        for one in settlements:
            if urgent:
                self.awaited.add(one.shard_id)
            self.settler.poke((one.group, one.shard_id), outcomes, urgent)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def running(settler: Settler) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(settler.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_outcomes_within_the_delay_travel_together() -> None:
    it = Rig(Journal(), delay_s=1.0)
    async with running(it.settler):
        it.add(settlement(0))
        await asyncio.sleep(0)
        it.add(settlement(1))
        await it.until(lambda: len(it.results) == 2)
    assert [len(call) for call in it.journal.calls] == [2]


async def test_a_full_batch_does_not_wait() -> None:
    it = Rig(Journal(), delay_s=3600, batch=10, monotonic=lambda: 0.0)
    async with running(it.settler):
        await asyncio.sleep(0)
        it.add(settlement(0), outcomes=4)
        await asyncio.sleep(0)
        it.settler.poke(FIRST, 5)
        for _ in range(5):
            await asyncio.sleep(0)
        assert it.journal.calls == []
        it.settler.poke(FIRST, 1)
        await it.until(lambda: len(it.results) == 1)
        it.add(settlement(0, 2), outcomes=10)  # All at once.
        await it.until(lambda: len(it.results) == 2)


async def test_a_poke_without_outcomes_settles_too() -> None:
    it = Rig(Journal())
    async with running(it.settler):
        it.add(settlement(), outcomes=0)
        await it.until(lambda: len(it.results) == 1)


async def test_what_nobody_waits_for_waits_for_company() -> None:
    it = Rig(Journal(), delay_s=3600)
    async with running(it.settler):
        it.add(settlement(0), urgent=False)
        for _ in range(5):
            await asyncio.sleep(0)
        assert it.journal.calls == []
        it.add(settlement(1))  # somebody waits for this one
        await it.until(lambda: len(it.results) == 1)
        assert [[one.shard_id for one in call] for call in it.journal.calls] == [[1]]


async def test_what_is_urgent_takes_along_what_waits_in_its_shard() -> None:
    it = Rig(Journal(), delay_s=3600)
    async with running(it.settler):
        it.add(settlement(0, 1), urgent=False)
        it.add(settlement(0, 2))
        await it.until(lambda: len(it.results) == 2)
    assert [len(call) for call in it.journal.calls] == [2]


@pytest.mark.parametrize(("every_s", "writes"), [(0.1, 4), (0.3, 2), (0.395, 1)])
async def test_what_is_urgent_puts_off_nothing_and_takes_what_is_due_anyway(
    every_s: float, writes: int
) -> None:
    """Given one shard whose outcome may wait until 0.4 s, and another one that is urgent again and
    again, when the time has come, then the first is written, with the other if that is near."""
    now = 0.0
    it = Rig(Journal(), delay_s=0.4, monotonic=lambda: now)
    it.add(settlement(0), urgent=False)
    number = 1
    while not any(one.shard_id == 0 for one in it.results):
        now = min(0.4, number * every_s)
        if now < 0.4:
            it.add(settlement(1, number))
        await it.settler._settle_once(whole=False)
        number += 1
    assert now == (0.4 if every_s < 0.395 else 0.395)
    assert len(it.journal.calls) == writes


async def test_after_an_urgent_one_the_others_wait_as_long_as_their_first_outcome_may() -> None:
    now = 0.0
    it = Rig(Journal(), delay_s=0.4, monotonic=lambda: now)
    it.add(settlement(0), urgent=False)
    now = 0.2
    it.add(settlement(1), urgent=False)
    it.add(settlement(0, 2))
    await it.settler._settle_once(whole=False)
    assert [one.shard_id for one in it.results] == [0, 0]
    assert it.settler._due == pytest.approx(0.6)
    assert it.settler._outcomes == 1


async def test_what_is_urgent_waits_for_nobody_when_enough_wait() -> None:
    it = Rig(Journal(), delay_s=3600, batch=40)
    async with running(it.settler):
        it.add(settlement(0), outcomes=9, urgent=False)
        it.add(settlement(1), outcomes=1)
        await it.until(lambda: len(it.results) == 2)
    assert [len(call) for call in it.journal.calls] == [2]


async def test_more_company_does_not_put_off_the_first_outcome() -> None:
    now = 0.0
    it = Rig(Journal(), delay_s=0.25, monotonic=lambda: now)
    for _ in range(3):
        it.add(settlement(0), urgent=False)
        now += 0.1
    async with running(it.settler):
        await it.until(lambda: len(it.results) == 3)


async def test_enough_company_waits_no_longer_than_what_is_urgent() -> None:
    it = Rig(Journal(), delay_s=3600, batch=100)
    async with running(it.settler):
        it.add(settlement(0), outcomes=24, urgent=False)
        for _ in range(5):
            await asyncio.sleep(0)
        assert it.journal.calls == []
        it.add(settlement(1), outcomes=1, urgent=False)
        await it.until(lambda: len(it.results) == 2)


@pytest.mark.parametrize(("rate", "wait_s"), [(100, 0.25), (1_000, 0.25), (5_000, 0.05)])
async def test_at_a_high_rate_enough_company_comes_in_less_time(rate: int, wait_s: float) -> None:
    now = 0.0
    it = Rig(Journal(), delay_s=0.25, monotonic=lambda: now)
    assert it.settler.wait_s(urgent=False) == 0.25
    now = 0.1
    it.add(settlement(0), outcomes=rate // 10, urgent=False)
    await it.settler.flush()
    assert it.settler.wait_s(urgent=False) == 0.25  # the flush found nothing more
    now = 0.2
    it.add(settlement(1), outcomes=rate // 10, urgent=False)
    await it.settler._settle_once()
    assert it.settler.wait_s(urgent=False) == pytest.approx(wait_s)
    assert it.settler.wait_s(urgent=True) == 0.01


async def test_only_one_call_is_under_way_and_what_ends_meanwhile_goes_next() -> None:
    gate = asyncio.Event()
    it = Rig(Journal(gate.wait))
    first, second, third = settlement(0, 1), settlement(0, 2), settlement(1, 1)
    async with running(it.settler):
        it.add(first)
        await it.journal.called.wait()
        it.add(second)
        it.add(third)
        flushing = asyncio.create_task(it.settler.flush())
        await asyncio.sleep(0.01)
        assert it.journal.calls == [[first]]
        gate.set()
        await flushing
    assert it.journal.calls == [[first], [second, third]]
    assert it.results == [first, second, third]


async def test_a_transient_error_repeats_the_very_same_settlements() -> None:
    it = Rig(Journal(StoreUnavailable("gone"), TransactionAborted("again"), StoreUnavailable("x")))
    told: list[dict[str, Any]] = []
    end = events.default.subscribe(lambda _, v: told.append(dict(v)), [events.STORE_ERROR])
    first, second, other = settlement(0, 1), settlement(1, 1), settlement(2, 1)
    async with running(it.settler):
        it.add(first, second)
        await it.journal.called.wait()
        it.add(other)
        await it.until(lambda: len(it.results) == 3)
    end()
    assert it.journal.calls == [[first, second]] * 4 + [[other]]
    assert it.errors == []
    # Full jitter: uniform below a bound that doubles.
    assert all(0 <= slept <= 0.05 * 2**n for n, slept in enumerate(it.slept))
    assert [values["retry_in_s"] for values in told] == it.slept
    assert len(set(it.slept)) == 3


async def test_the_wait_between_repeats_is_bounded() -> None:
    it = Rig(Journal(*[StoreUnavailable("down")] * 200))
    async with running(it.settler):
        it.add(settlement())
        await it.until(lambda: len(it.results) == 1)
    assert max(it.slept) <= settle.BACKOFF_S[1]
    assert max(it.slept) > settle.BACKOFF_S[1] / 2


async def test_a_refused_settlement_cannot_block_the_others() -> None:
    good, bad, also = settlement(0), settlement(1), settlement(2)
    no = SchemaMismatch("no")
    it = Rig(Journal(no, None, no, StoreUnavailable("and this"), None))
    async with running(it.settler):
        it.add(good, bad, also)
        await it.until(lambda: len(it.results) == 2)
        assert it.journal.calls == [[good, bad, also], [good], [bad], [also], [also]]
        assert it.results == [good, also]
        assert it.errors == [([bad], no)]
        # And the loop goes on.
        it.add(settlement(0, 2))
        await it.until(lambda: len(it.results) == 3)


async def test_cancelled_in_the_middle_nothing_is_lost() -> None:
    never = asyncio.Event()
    it = Rig(Journal(never.wait))
    first, second = settlement(0, 1), settlement(0, 2)
    async with running(it.settler):
        it.add(first)
        await it.journal.called.wait()
    # The outcome of that call is unknown: the same one again, before anything else.
    it.add(second)
    await it.settler.flush()
    assert it.journal.calls == [[first], [first], [second]]
    assert it.results == [first, second]


async def test_cancelled_while_one_is_settled_alone_nothing_is_lost() -> None:
    never = asyncio.Event()
    first, second = settlement(0), settlement(1)
    it = Rig(Journal(SchemaMismatch("no"), None, never.wait))
    async with running(it.settler):
        it.add(first, second)
        await it.until(lambda: len(it.results) == 1)
        await asyncio.sleep(0)
    await it.settler.flush()
    assert it.journal.calls == [[first, second], [first], [second], [second]]
    assert it.results == [first, second]


async def test_run_resumes_what_was_left_unresolved() -> None:
    never = asyncio.Event()
    it = Rig(Journal(never.wait))
    async with running(it.settler):
        it.add(settlement())
        await it.journal.called.wait()
    async with running(it.settler):
        await it.until(lambda: len(it.results) == 1)


async def test_flush_goes_on_until_nothing_is_left() -> None:
    it = Rig(Journal())
    chain = [settlement(0, seq) for seq in range(1, 5)]
    settle_next = iter(chain)

    def collect(urgent: bool) -> list[Settlement]:
        return [one for one in [next(settle_next, None)] if one is not None]

    it.settler._collect = collect
    await it.settler.flush()
    assert it.results == chain
    await it.settler.flush()  # Nothing to do is fine.


async def test_flush_ends_when_the_store_refuses() -> None:
    it = Rig(Journal(*[SchemaMismatch("no")] * 3))
    it.settler._collect = lambda urgent: [settlement()]
    await asyncio.wait_for(it.settler.flush(), 120)
    assert len(it.errors) == 1


async def test_the_time_of_a_commit_is_of_what_was_written_and_of_what_has_no_answer() -> None:
    now, latency_s = 0.0, 0.6

    async def take() -> None:
        nonlocal now
        now += latency_s

    it = Rig(Journal(*[take] * 40), monotonic=lambda: now)
    seen = []
    for seq in range(40):
        latency_s = 0.6 if seq < 20 else 0.01
        it.add(settlement(0, seq))
        await it.settler.flush()
        seen.append(it.settler.commit_s() > 0.5)
    assert seen == [True] * 27 + [False] * 13, "most of the last sixteen"

    async def wait() -> None:
        nonlocal now
        now += 0.4
        assert it.settler.commit_s() < 0.5
        now += 0.2
        assert it.settler.commit_s() > 0.5, "this one has no answer for so long"

    it.journal.answers = [wait]
    it.add(settlement(0, 40))
    await it.settler.flush()
    assert it.settler.commit_s() < 0.5


@pytest.mark.parametrize(("latency_s", "delay_s"), [(0.02, 0.01), (0.2, 0.05)])
async def test_the_delay_grows_when_commits_are_slow(latency_s: float, delay_s: float) -> None:
    now = 0.0

    async def take() -> None:
        nonlocal now
        now += latency_s

    it = Rig(Journal(*[take] * 20), delay_s=0.01, monotonic=lambda: now)
    for seq in range(20):
        it.add(settlement(0, seq))
        await it.settler.flush()
    assert it.settler.wait_s(urgent=True) == delay_s
    # And shrinks again with them.
    latency_s = 0.001
    it.journal.answers = [take] * 20
    for seq in range(20):
        it.add(settlement(0, seq))
        await it.settler.flush()
    assert it.settler.wait_s(urgent=True) == 0.01


@pytest.mark.parametrize("seed", range(20))
async def test_settlements_of_a_shard_arrive_in_order_whatever_happens(seed: int) -> None:
    """Random errors, cancellations and flushes against a core that hands out one settlement per
    shard at a time."""
    rng = random.Random(seed)
    settled: dict[int, list[int]] = {shard: [] for shard in range(3)}
    open_seq: dict[int, int | None] = dict.fromkeys(settled)
    news = asyncio.Event()

    class Flaky(Journal):
        async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
            for one in settlements:
                written = settled[one.shard_id]
                assert one.seq in (len(written), len(written) + 1), "reordered or lost"
            if rng.random() < 0.3:
                raise StoreUnavailable("before")
            for one in settlements:
                if one.seq > len(settled[one.shard_id]):
                    settled[one.shard_id].append(one.seq)
            if rng.random() < 0.3:
                raise StoreUnavailable("after: the answer is lost")
            await asyncio.sleep(0)
            return [SettleResult.SETTLED for _ in settlements]

    it = Rig(Flaky())

    def collect(urgent: bool) -> list[Settlement]:
        assert not any(open_seq.values()), "asked while one is unresolved"
        due = [s for s in settled if rng.random() < 0.7 and len(settled[s]) < 12]
        for shard in due:
            open_seq[shard] = len(settled[shard]) + 1
        return [settlement(shard, cast(int, open_seq[shard])) for shard in due]

    def result(one: Settlement, _: SettleResult) -> None:
        assert open_seq[one.shard_id] == one.seq
        open_seq[one.shard_id] = None
        news.set()

    it.settler._collect = collect
    it.settler._on_result = result
    async with asyncio.timeout(120):
        while any(len(written) < 12 for written in settled.values()):
            async with running(it.settler):
                for _ in range(rng.randrange(1, 20)):
                    it.settler.poke(("default", ShardId(rng.randrange(3))), rng.randrange(300))
                    await asyncio.sleep(0)
            await it.settler.flush()
    assert all(written == [*range(1, 13)] for written in settled.values())
