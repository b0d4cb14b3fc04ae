"""A pulled queue: who gets what, and what becomes of it when nobody answers."""

from __future__ import annotations

import asyncio

import pytest

from late.dispatcher.pull.pool import SILENT, SILENT_S
from late.dispatcher.pull.pools import receive
from late.dispatcher.pull.queue import identity
from late.handler.classify import DONE, INTERRUPTED, Verdict
from tests.unit.dispatcher_kit import NOW_US, attempt
from tests.unit.pull_kit import pulled

FOREVER = NOW_US * 2


async def test_there_is_room_only_for_what_consumers_wait_for() -> None:
    async with pulled() as rig:
        assert rig.pool.room == 0
        taking = await rig.taking(3)
        assert (rig.pool.room, rig.wakes) == (3, 1)
        rig.pool.submit([attempt(), attempt()])
        assert rig.pool.room == 1
        holds = await taking
        assert len(holds) == 2
        # They were answered by a batch, and wait no longer.
        assert (rig.pool.room, rig.pool.out, rig.pool.waiting) == (0, 2, 0)
        assert rig.outcomes == []


async def test_an_answer_ends_the_attempt_once() -> None:
    async with pulled() as rig:
        taking = await rig.taking()
        asked = attempt()
        rig.pool.submit([asked])
        (hold,) = await taking
        assert rig.pool.answer(hold, DONE)
        assert not rig.pool.answer(hold, DONE)
        (outcome,) = await rig.ended(1)
        assert (outcome.attempt, outcome.kind, outcome.target) == (asked, "done", "pull:payments")
        assert rig.pool.find(hold.serial, identity(asked), until_us=FOREVER) is None


async def test_without_an_answer_it_is_a_failed_attempt_that_may_start_again_at_once() -> None:
    async with pulled() as rig:
        taking = await rig.taking(visibility_s=30.0, consumer="billing-7")
        rig.pool.submit([attempt()])
        (hold,) = await taking
        rig.now += 29.9
        assert rig.pool.find(hold.serial, identity(hold.attempt), until_us=FOREVER) is hold
        rig.now += 0.2
        # Also before the next sweep: an answer is late from this moment on.
        assert rig.pool.find(hold.serial, identity(hold.attempt), until_us=FOREVER) is None
        (outcome,) = await rig.ended(1)
        assert (outcome.kind, outcome.after_us, outcome.retryable) == ("failed", 0, True)
        assert outcome.error == "no answer from billing-7 within 30 s"


async def test_a_consumer_that_lets_times_pass_is_silent_until_it_answers_again() -> None:
    async with pulled() as rig:
        for number in range(1, SILENT + 1):
            taking = await rig.taking(visibility_s=30.0, consumer="billing-7")
            rig.pool.submit([attempt()])
            await taking
            rig.now += 30.1
            await rig.ended(number)
            assert rig.pool.silent == ({"billing-7": SILENT} if number == SILENT else {})
        assert rig.pool.unanswered == SILENT
        rig.now += SILENT_S + 1
        assert rig.pool.silent == {}, "it is gone"
        rig.now -= SILENT_S
        taking = await rig.taking(visibility_s=30.0, consumer="billing-7")
        rig.pool.submit([attempt()])
        (hold,) = await taking
        assert rig.pool.silent == {"billing-7": SILENT}
        assert rig.pool.answer(hold, DONE)
        assert rig.pool.silent == {}


async def test_whoever_extends_keeps_its_task() -> None:
    async with pulled() as rig:
        taking = await rig.taking(visibility_s=30.0)
        rig.pool.submit([attempt()])
        (hold,) = await taking
        rig.now += 29.0
        rig.pool.extend(hold, 60.0)
        assert hold.until_us == NOW_US + 89_000_000
        rig.now += 59.0
        await asyncio.sleep(0.25)  # two sweeps
        assert rig.outcomes == []
        assert rig.pool.answer(hold, DONE)


async def test_a_receipt_is_of_one_hand_out_only() -> None:
    async with pulled() as rig:
        taking = await rig.taking()
        asked = attempt()
        rig.pool.submit([asked])
        (first,) = await taking
        rig.pool.drop("c1")
        assert rig.kinds == [] or rig.kinds == ["interrupted"]
        await rig.ended(1)
        taking = await rig.taking(consumer="c2")
        rig.pool.submit([asked])  # an interrupted attempt comes again under the same number
        (second,) = await taking
        pool = rig.pool
        assert pool.find(first.serial, identity(asked), until_us=FOREVER) is None
        assert pool.find(second.serial, identity(asked), until_us=FOREVER) is second
        assert pool.find(second.serial, identity(asked), until_us=NOW_US) is None
        assert pool.find(second.serial, identity(attempt()), until_us=FOREVER) is None


async def test_what_nobody_takes_goes_back() -> None:
    async with pulled() as rig:
        taking = await rig.taking(wait_s=0.01)
        assert await taking == []
        rig.pool.submit([attempt()])
        rig.now += 2.0
        (outcome,) = await rig.ended(1)
        assert (outcome.kind, outcome.begun, rig.pool.load) == ("interrupted", False, 0)


async def test_a_task_that_no_waiting_consumer_can_do_is_not_sent_round_in_circles() -> None:
    async with pulled() as rig:
        taking = await rig.taking(names=frozenset({"mail"}))
        rig.pool.submit([attempt("charge"), attempt("mail")])
        (hold,) = await taking
        assert hold.attempt.record.name == "mail"
        other = await rig.taking(names=frozenset({"mail"}))
        rig.now += 2.0
        (outcome,) = await rig.ended(1)
        assert (outcome.kind, outcome.reason) == ("not_capable", "no_capable_consumer")
        other.cancel()


async def test_a_group_gets_its_own_tasks_only() -> None:
    async with pulled() as rig:
        taking = await rig.taking(group="audit")
        rig.pool.submit([attempt()])  # of the group `default`
        await asyncio.sleep(0.01)
        assert not taking.done()
        assert await rig.take() != []
        taking.cancel()


async def test_a_cancelled_consumer_loses_nothing() -> None:
    async with pulled() as rig:
        first = await rig.taking(consumer="gone")
        second = await rig.taking(consumer="there")
        rig.pool.submit([attempt()])
        await asyncio.sleep(0)  # matched with the first, which has not run since
        first.cancel()
        (hold,) = await second
        assert hold.consumer == "there"
        assert (rig.pool.out, rig.pool.waiting) == (1, 0)
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_one_consumer_of_two_queues_is_served_by_one_of_them() -> None:
    async with pulled("a") as one, pulled("b") as two:
        taking = asyncio.create_task(
            receive(
                [one.pool, two.pool], "default", limit=1, wait_s=5, visibility_s=9, consumer="c"
            )
        )
        await asyncio.sleep(0)
        assert (one.pool.room, two.pool.room) == (1, 1)
        one.pool.submit([attempt()])
        two.pool.submit([attempt()])
        ((pool, hold),) = await taking
        assert pool is one.pool
        assert (one.pool.out, two.pool.waiting) == (1, 1)
        assert (one.pool.room, two.pool.room) == (0, 0)
        two.now += 2.0
        await two.ended(1)
        assert two.kinds == ["interrupted"]
        assert pool.answer(hold, DONE)


async def test_expired_tasks_and_an_untrusted_worker_hand_nothing_out() -> None:
    async with pulled() as rig:
        taking = await rig.taking(2)
        rig.pool.submit([attempt(deadline_us=NOW_US)])
        (outcome,) = await rig.ended(1)
        assert outcome.kind == "expired"
        rig.trusted = False
        rig.pool.submit([attempt()])
        assert (await rig.ended(2))[1].kind == "interrupted"
        assert not taking.done()
        taking.cancel()


async def test_a_lost_shard_takes_its_attempts_along() -> None:
    async with pulled() as rig:
        taking = await rig.taking(2)
        rig.pool.submit([attempt(shard_id=1), attempt(shard_id=2)])
        holds = {hold.attempt.record.shard_id: hold for hold in await taking}
        rig.pool.abandon("default", 1, 1)
        assert not rig.pool.answer(holds[1], DONE)
        assert rig.pool.answer(holds[2], DONE)
        await rig.ended(1)
        assert (rig.kinds, rig.pool.load) == (["done"], 0)


async def test_a_hand_over_gives_back_what_nobody_has_begun() -> None:
    async with pulled() as rig:
        rig.pool.submit([attempt(shard_id=1), attempt(shard_id=2)])
        rig.pool.recall({("default", 1)})
        assert [o.attempt.record.shard_id for o in rig.outcomes] == [1]
        assert (rig.kinds, rig.pool.waiting) == (["interrupted"], 1)


async def test_a_stop_waits_for_answers_and_gives_the_rest_back() -> None:
    async with pulled() as rig:
        taking = await rig.taking(2)
        rig.pool.submit([attempt(), attempt()])
        first, _ = await taking
        idle = await rig.taking()
        stopping = asyncio.create_task(rig.pool.stop(0.2))
        assert await idle == []
        assert rig.pool.answer(first, Verdict("failed", error="no"))
        await stopping
        assert rig.kinds == ["failed", "interrupted"]
        rig.pool.submit([attempt()])
        assert (await rig.ended(3))[2].kind == INTERRUPTED.kind
        assert await rig.take() == []


NACK = Verdict("not_capable", "no GPU")


async def test_what_a_consumer_cannot_do_goes_to_another_and_not_to_it_again() -> None:
    async with pulled() as rig:
        taking = await rig.taking(consumer="shop/a")
        rig.pool.submit([attempt()])
        (hold,) = await taking
        again = await rig.taking(consumer="shop/a~7")
        assert rig.pool.answer(hold, NACK)
        await asyncio.sleep(0.01)
        assert not again.done()
        other = await rig.taking(consumer="shop/b")
        (second,) = await other
        assert second.attempt is hold.attempt
        assert rig.pool.answer(second, DONE)
        (outcome,) = await rig.ended(1)
        assert outcome.kind == "done"
        again.cancel()


async def test_what_no_consumer_can_do_says_why_the_last_could_not() -> None:
    async with pulled() as rig:
        taking = await rig.taking(consumer="shop/a")
        asked = attempt()
        rig.pool.submit([asked])
        (hold,) = await taking
        assert rig.pool.answer(hold, NACK)
        rig.now += 2.0
        (outcome,) = await rig.ended(1)
        assert (outcome.kind, outcome.error) == ("not_capable", "no GPU")
        # It is not asked again before a minute is over
        rig.pool.submit([asked])
        again = await rig.taking(consumer="shop/a", wait_s=0.05)
        assert await again == []
        rig.now += 60.0
        await rig.ended(2)
        again = await rig.taking(consumer="shop/a")
        rig.pool.submit([asked])
        (hold,) = await again
        assert hold.attempt is asked


async def test_a_refusal_without_a_name_or_with_a_time_is_the_end_of_the_attempt() -> None:
    async with pulled() as rig:
        for consumer, verdict in (
            ("anybody", NACK),
            ("shop/a", Verdict("not_capable", after_us=5_000_000)),
        ):
            taking = await rig.taking(consumer=consumer)
            rig.pool.submit([attempt()])
            (hold,) = await taking
            assert rig.pool.answer(hold, verdict)
            assert rig.pool.load == 0
