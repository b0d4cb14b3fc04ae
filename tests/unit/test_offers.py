"""Attempts that are offered to other workers, from both sides, over a table in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from late.dispatcher.offers import pool as pools
from late.dispatcher.offers import runner as runners
from late.dispatcher.offers.runner import OfferRunner
from late.model.offers import Answer, Offer, OfferKey, key_of, offered
from late.model.task import Attempt, Kind, Outcome, Record
from late.testing.clock import VirtualClock
from tests.unit.dispatcher_kit import NOW_US, attempt
from tests.unit.offers_kit import DONE, POLICY, Table, owning


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "LOOK_S", 0.002)
    monkeypatch.setattr(pools, "FAILED_MAX_S", 0.002)
    monkeypatch.setattr(runners, "FAILED_MAX_S", 0.002)
    monkeypatch.setattr(runners, "LOOK_S", 0.002)
    monkeypatch.setattr(runners, "BUSY_LOOK_S", 0.002)


async def test_the_answer_of_another_worker_ends_the_attempt_once() -> None:
    async with owning() as owner:
        asked = attempt()
        owner.pool.submit([asked])
        await owner.until(lambda: owner.table.rows)
        owner.table.change(owner.key(), runner="w2")
        await owner.looks()
        assert owner.outcomes == []
        owner.table.change(owner.key(), answer=DONE)
        outcome = await owner.ended("done")
        assert (outcome.attempt, outcome.busy_us, outcome.target) == (asked, 7, "local")
        assert owner.policies == [POLICY]


async def test_what_nobody_takes_could_not_run() -> None:
    async with owning() as owner:
        owner.pool.submit([attempt()])
        await owner.looks()
        assert owner.outcomes == []
        owner.now += pools.UNTAKEN_S
        outcome = await owner.ended("not_capable")
        assert (outcome.reason, outcome.error) == ("unknown_task", "no handler for 'work'")


async def test_a_name_that_nobody_takes_is_offered_one_at_a_time() -> None:
    async with owning() as owner:
        owner.pool.submit([attempt() for _ in range(3)])
        await owner.until(lambda: len(owner.table.rows) == 3)
        owner.now += pools.UNTAKEN_S
        await owner.ended(*["not_capable"] * 3)
        # One of it and one of another name go out, and the rest comes back at once
        owner.pool.submit([attempt(), attempt(), attempt("other")])
        await owner.until(lambda: len(owner.outcomes) == 4 and len(owner.table.rows) == 2)
        # Until somebody takes it
        for key in owner.table.rows:
            owner.table.change(key, runner="w2")
        await owner.looks()
        owner.pool.submit([attempt(), attempt()])
        await owner.until(lambda: len(owner.table.rows) == 4)


async def test_what_all_others_refuse_need_not_wait() -> None:
    async with owning() as owner:
        owner.others = frozenset({"w2", "w3"})
        nack = Outcome(attempt(), "not_capable", NOW_US, 1, error="no printer", reason="nacked")
        assert owner.pool.offer(nack)
        await owner.until(lambda: owner.table.rows)
        owner.table.change(owner.key(), refused_by=frozenset({"w2"}))
        await owner.looks()
        assert owner.outcomes == []
        owner.table.change(owner.key(), refused_by=frozenset({"w2", "w3"}))
        outcome = await owner.ended("not_capable")
        assert (outcome.reason, outcome.error) == ("nacked", "no printer")


async def test_without_another_worker_nothing_is_offered() -> None:
    async with owning() as owner:
        owner.others = frozenset()
        owner.pool.submit([attempt()])
        await owner.ended("not_capable")
        assert owner.table.calls == []


async def test_an_attempt_dies_with_the_worker_that_has_taken_it() -> None:
    async with owning() as owner:
        owner.pool.submit([attempt()])
        await owner.until(lambda: owner.table.rows)
        owner.table.change(owner.key(), runner="w2")
        await owner.looks()
        owner.others = frozenset()
        outcome = await owner.ended("died")
        assert outcome.error == "worker w2 is gone, it ran there"


async def test_a_worker_that_has_just_begun_is_not_gone() -> None:
    async with owning() as owner:
        owner.pool.submit([attempt()])
        await owner.until(lambda: owner.table.rows)
        owner.table.change(owner.key(), runner="w9")
        owner.now += pools.UNSEEN_S - 1
        await owner.looks()
        assert owner.outcomes == []
        owner.now += pools.UNSEEN_S
        await owner.ended("died")


async def test_a_shard_that_is_handed_over_takes_back_what_nobody_has() -> None:
    async with owning() as owner:
        taken, waits = attempt(), attempt(shard_id=3)
        owner.pool.submit([taken, waits])
        await owner.until(lambda: len(owner.table.rows) == 2)
        [key] = [key for key in owner.table.rows if key.task_id == taken.record.task_id]
        owner.table.change(key, runner="w2")
        await owner.looks()
        owner.pool.recall({("default", 0), ("default", 3)})
        await owner.until(lambda: len(owner.outcomes) == 1)
        assert (owner.outcomes[0].attempt, owner.outcomes[0].kind) == (waits, "interrupted")
        owner.table.change(key, answer=DONE)
        await owner.ended("interrupted", "done")


async def test_a_lost_shard_takes_its_offers_along() -> None:
    async with owning() as owner:
        owner.pool.submit([attempt(epoch=4)])
        await owner.until(lambda: owner.table.rows)
        owner.table.change(owner.key(), runner="w2", answer=DONE)
        owner.pool.abandon("default", 0, 4)
        await owner.until(lambda: not owner.table.rows)
        assert owner.outcomes == []
        # And the same task under the next lease is another attempt.
        owner.pool.submit([attempt(epoch=5)])
        await owner.until(lambda: owner.table.rows)
        assert owner.pool.out == 1


async def test_a_table_that_this_worker_may_not_use_is_as_if_nobody_were_there() -> None:
    async with owning() as owner:
        owner.table.refused = True
        owner.pool.submit([attempt(), attempt()])
        await owner.ended("not_capable", "not_capable")
        assert owner.pool._gone == []


async def test_a_database_that_is_away_delays_and_changes_nothing() -> None:
    async with owning() as owner:
        owner.table.away = 5
        owner.pool.submit([attempt()])
        await owner.until(lambda: owner.table.rows)
        owner.table.change(owner.key(), runner="w2", answer=DONE)
        await owner.ended("done")


async def test_a_stop_gives_everything_back_and_leaves_no_row() -> None:
    async with owning() as owner:
        owner.pool.submit([attempt(), attempt()])
        await owner.until(lambda: len(owner.table.rows) == 2)
        owner.table.change(next(iter(owner.table.rows)), runner="w2")
        await owner.pool.stop(0.01)
        assert [outcome.kind for outcome in owner.outcomes] == ["interrupted"] * 2
        assert owner.table.rows == {}
        owner.pool.submit([attempt()])
        await asyncio.sleep(0.01)
        assert owner.outcomes[-1].kind == "interrupted"


async def test_only_so_many_are_offered_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "OUT_MAX", 2)
    async with owning() as owner:
        owner.pool.submit([attempt() for _ in range(3)])
        await owner.until(lambda: owner.outcomes)
        assert [outcome.kind for outcome in owner.outcomes] == ["not_capable"]


# -- the worker that runs them ---------------------------------------------------------------------


class Runner:
    """A worker with slots, and the offers of another one."""

    def __init__(self) -> None:
        self.table = Table()
        self.free = 8
        self.began: list[Attempt] = []
        self.records: dict[str, Record] = {}
        self.known = {"work"}
        self.runner = OfferRunner(
            "w2",
            ["default"],
            table=lambda: self.table,
            others=lambda: True,
            free=lambda: self.free,
            policy_of=lambda queue, name: POLICY if name in self.known else None,
            read=self._read,
            attempt_of=lambda offer, record: self.made[offer.key.task_id],
            submit=self.began.extend,
        )
        self.made: dict[str, Attempt | None] = {}

    async def _read(self, offer: Offer) -> Record | None:
        return self.records.get(offer.key.task_id)

    def offer(self, asked: Attempt) -> OfferKey:
        record, key = asked.record, key_of(asked)
        self.table.put([Offer(key, "w1", asked.epoch, offered(asked))])
        self.records[record.task_id] = record
        self.made[record.task_id] = asked
        return key

    async def until(self, condition: object) -> None:
        assert callable(condition)
        async with asyncio.timeout(120):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def looks(self) -> None:
        seen = self.table.calls.count("find")
        await self.until(lambda: self.table.calls.count("find") >= seen + 2)

    def end(self, asked: Attempt, kind: Kind = "done") -> list[Outcome]:
        return self.runner.keep_taken([Outcome(asked, kind, NOW_US, 5)])


@asynccontextmanager
async def running() -> AsyncIterator[Runner]:
    made = Runner()
    await made.runner.start()
    yield made
    await made.runner.stop()


async def test_an_offer_runs_once_and_its_end_is_its_owners() -> None:
    async with running() as worker:
        asked = attempt()
        key = worker.offer(asked)
        await worker.until(lambda: worker.began == [asked])
        await worker.looks()
        assert worker.began == [asked], "it goes on, and is not taken again"
        assert worker.runner.runs(asked)
        other = Outcome(attempt(), "done", NOW_US, 5)
        assert worker.runner.keep_taken([other]) == [other]
        assert worker.end(asked) == []
        await worker.until(lambda: worker.table.rows[key].answer)
        assert worker.table.rows[key].answer == Answer("done", POLICY, "local", NOW_US, 5)


@pytest.fixture
async def at_once(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Time that jumps, at the usual pace, with no thread that it would have to wait for."""

    async def call_at_once(call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    monkeypatch.setattr(runners, "in_thread", call_at_once)
    monkeypatch.setattr(runners, "LOOK_S", 1.0)
    monkeypatch.setattr(runners, "FAILED_MAX_S", 30.0)
    with VirtualClock():
        yield


@pytest.mark.usefixtures("at_once")
async def test_while_heartbeats_tell_of_no_offers_nobody_looks() -> None:
    worker = Runner()
    worker.runner.told(False)
    await worker.runner.start()
    asked = attempt()
    worker.offer(asked)
    await asyncio.sleep(60)
    assert worker.table.calls.count("find") == 0
    worker.runner.told(True)
    await worker.until(lambda: worker.began == [asked])
    worker.runner.told(False)
    await asyncio.sleep(60)
    seen = worker.table.calls.count("find")
    assert seen <= 3
    worker.runner.told(None)
    worker.end(asked)
    await asyncio.sleep(10)
    assert worker.table.calls.count("find") >= seen + 8, "a store that does not tell is asked"
    await worker.runner.stop()


@pytest.mark.usefixtures("at_once")
async def test_heartbeats_that_tell_of_offers_do_not_shorten_the_pause_after_an_error() -> None:
    worker = Runner()
    worker.table.away = 1_000
    await worker.runner.start()
    for _ in range(600):
        worker.runner.told(True)
        await asyncio.sleep(0.5)
    assert worker.table.calls.count("find") < 60
    await worker.runner.stop()


async def test_an_offer_without_a_handler_here_is_left_to_others() -> None:
    async with running() as worker:
        key = worker.offer(attempt("unheard_of"))
        await worker.looks()
        assert (worker.began, worker.table.rows[key].runner) == ([], None)


async def test_no_more_is_taken_than_there_are_slots() -> None:
    async with running() as worker:
        worker.free = 0
        worker.offer(attempt())
        await worker.looks()
        assert (worker.began, "take" in worker.table.calls) == ([], False)


@pytest.mark.parametrize(("kind", "refused"), [("not_capable", True), ("interrupted", False)])
async def test_what_did_not_run_goes_back(kind: Kind, refused: bool) -> None:
    async with running() as worker:
        asked = attempt()
        key = worker.offer(asked)
        await worker.until(lambda: worker.began)
        worker.runner.drain()
        worker.end(asked, kind)
        await worker.until(lambda: worker.table.rows[key].runner is None)
        assert worker.table.rows[key].refused_by == (frozenset({"w2"}) if refused else frozenset())


async def test_a_record_that_is_gone_is_refused_and_one_that_was_not_read_is_not() -> None:
    async with running() as worker:
        asked = attempt()
        worker.made[asked.record.task_id] = None
        key = worker.offer(asked)
        del worker.records[asked.record.task_id]
        await worker.until(lambda: worker.table.rows[key].refused_by == {"w2"})
        assert worker.began == []


async def test_what_was_taken_unawares_runs_all_the_same() -> None:
    async with running() as worker:
        asked = attempt()
        worker.free = 0
        key = worker.offer(asked)
        worker.table.change(key, runner="w2")  # The reply to its call was lost.
        worker.free = 1
        await worker.until(lambda: worker.began == [asked])


async def test_an_answer_waits_for_a_database_that_is_away() -> None:
    async with running() as worker:
        asked = attempt()
        key = worker.offer(asked)
        await worker.until(lambda: worker.began)
        worker.table.away = 3
        worker.end(asked)
        await worker.until(lambda: worker.table.rows[key].answer)
        assert worker.began == [asked]


async def test_an_attempt_of_a_shard_with_a_newer_owner_is_forgotten() -> None:
    async with running() as worker:
        asked = attempt(epoch=3)
        worker.offer(asked)
        await worker.until(lambda: worker.began)
        worker.runner.abandon("default", 0, 2)
        assert worker.runner.runs(asked)
        worker.runner.abandon("default", 0, 3)
        assert not worker.runner.runs(asked)
        worker.table.rows.clear()


async def test_a_stop_in_the_middle_of_a_take_gives_it_back() -> None:
    async with running() as worker:
        taking, go_on = threading.Event(), threading.Event()
        take = worker.table.take

        def slow_take(me: str, offers: Sequence[Offer]) -> list[Offer]:
            found = take(me, offers)
            taking.set()
            go_on.wait(120)
            return found

        worker.table.take = slow_take  # type: ignore[method-assign]
        key = worker.offer(attempt())
        await worker.until(taking.is_set)
        worker.runner.drain()
        stopping = asyncio.ensure_future(worker.runner.stop())
        await asyncio.sleep(0.01)
        go_on.set()
        await stopping
        assert worker.began == []
        assert (worker.table.rows[key].runner, worker.table.rows[key].refused_by) == (None, set())


async def test_an_answer_that_comes_during_a_look_does_not_wait_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as worker:
        asked = attempt()
        key = worker.offer(asked)
        await worker.until(lambda: worker.began)
        monkeypatch.setattr(runners, "LOOK_S", 3_600.0)
        find = worker.table.find

        def slow_find(me: str, groups: Collection[str]) -> list[Offer]:
            if not ended.is_set():
                looking.set()
                ended.wait(120)
            return find(me, groups)

        looking, ended = threading.Event(), threading.Event()
        worker.table.find = slow_find  # type: ignore[method-assign]
        await worker.until(looking.is_set)
        worker.end(asked)
        ended.set()
        await worker.until(lambda: worker.table.rows[key].answer)
