"""Workflows: what the end of one task starts, and that it starts once, whatever happens.

The rows of each store are compared with `late.model.workflow`, which is pure, after every
settlement.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from late.model.ids import new_id
from late.model.task import ShardId, TaskId
from late.model.workflow import CANCEL, STARTED, WAITING, Stage, StageEnd, changes
from late.outbox import connect as transaction
from late.outbox.execute import write_by
from late.outbox.stages import insert_stages
from late.payload.command import decode
from late.store.base import Revival, SettleResult, Store
from late.testing.workflows import StagesInMemory
from tests.conformance.backends import Backend, Raw
from tests.conformance.kit import BEGINNING, PATIENCE_S, dead, own, record, task

SETTLED = SettleResult.SETTLED
Ends = Iterable[tuple[Stage, str]]


def stages(
    *after: tuple[int, ...], collects: Iterable[int] = (), on_failure: int | None = None
) -> list[Stage]:
    """A workflow by the stages that each stage waits for."""
    ids = [new_id(n % 3) for n in range(len(after))]
    found = []
    for n, before in enumerate(after):
        mark = f'"mark-{n}"' if before or n == on_failure else None
        fails = n == on_failure
        found.append(
            Stage(
                ids[0], n, ids[n], n % 3, WAITING if before or fails else STARTED,
                1 if fails else len(before), before,
                tuple(m for m, earlier in enumerate(after) if n in earlier), n in collects,
                None if fails else on_failure, mark, "default", "count",
                b'{"n":%d,"given":%b}' % (n, (mark or "0").encode()), None, '{"stage":true}',
            )
        )  # fmt: skip
    return found


class Twin:
    """A store, and the pure model beside it."""

    def __init__(self, store: Store, raw: Raw, url: str) -> None:
        self.store, self.raw, self.url = store, raw, url
        self.model = StagesInMemory()
        self.log: dict[TaskId, bytes] = {}
        self.cancels: list[TaskId] = []

    async def put(self, rows: list[Stage]) -> None:
        with transaction(self.url) as tx:
            assert write_by(tx, lambda into: insert_stages(rows, into), autocommit=False) == [
                row.task_id for row in rows
            ]
        self.model.add(copy.deepcopy(rows))
        self.log |= {row.task_id: row.payload for row in rows if row.state == STARTED}

    def told(self, ends: Ends) -> tuple[StageEnd, ...]:
        return tuple(
            StageEnd(row.task_id, state, b'"r%d"' % row.stage if state == "done" else None)
            for row, state in ends
        )

    def expect(self, ends: tuple[StageEnd, ...]) -> None:
        found = changes(ends, self.model, 1)
        for each in found.started:
            assert each.task_id not in self.log, "a stage starts once"
            self.log[each.task_id] = each.payload
        self.cancels += found.stopping

    async def settle(self, ends: Ends, shard: int = 0, **more: Any) -> None:
        told = self.told(ends)
        owner = await own(self.store, shard)
        assert await owner.settle(ended_stages=told, **more) is SETTLED
        self.expect(told)

    def check(self) -> None:
        """The store has what the model has."""
        found = self.raw.execute(
            "select task_id, state, missing, result from late_stage order by workflow_id, stage"
        )
        assert {
            str(i): (state, missing, _bytes(result)) for i, state, missing, result in found
        } == {row.task_id: (row.state, row.missing, row.result) for row in self.model.rows.values()}
        rows = self.raw.execute("select task_id, name, payload from late_task")
        assert {str(i): _bytes(p) for i, name, p in rows if name == "count"} == self.log
        ordered = [
            decode(record(task_id=TaskId(str(i)), name=name, payload=_bytes(p) or b""))
            for i, name, p in rows
            if name == "late.cancel"
        ]
        assert sorted(each.task_id for each in ordered if each) == sorted(self.cancels)
        assert len({str(i) for i, _, _ in rows}) == len(rows)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


@pytest.fixture
def twin(store: Store, raw: Raw, url: str, backend: Backend) -> Twin:
    if backend.name == "cockroach":
        pytest.skip("workflows are refused on CockroachDB")
    return Twin(store, raw, url)


async def test_a_tail_at_the_end_finds_what_a_settlement_starts(twin: Twin) -> None:
    """In the store that settles, by which a worker reads: no other connection has written it."""
    chain = stages((), (0,), (1,))
    await twin.put(chain)
    cursors = {ShardId(n): BEGINNING for n in range(3)}

    async def reads(task: TaskId) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                pages = await twin.store.read(cursors, 100)
                cursors.update({page.shard_id: page.cursor for page in pages})
                if any(each.task_id == task for page in pages for each in page.records):
                    break
                await asyncio.sleep(0.005)
        for _ in range(2):  # To the ends, which it may remember.
            pages = await twin.store.read(cursors, 100)
            cursors.update({page.shard_id: page.cursor for page in pages})

    for stage in chain:
        await reads(stage.task_id)
        await twin.settle([(stage, "done")])
    twin.check()


async def test_a_chain_goes_on_with_the_result_of_the_task_before(twin: Twin) -> None:
    first, second, third = rows = stages((), (0,), (1,))
    await twin.put(rows)
    await twin.settle([(first, "done")])
    twin.check()
    assert twin.log[second.task_id] == b'{"n":1,"given":"r0"}'
    await twin.settle([(second, "done")])
    twin.check()
    assert twin.log[third.task_id] == b'{"n":2,"given":"r1"}'


async def test_a_join_waits_for_all_and_takes_their_results_in_order(twin: Twin) -> None:
    rows = stages((), (), (), (0, 1, 2), collects=[3])
    await twin.put(rows)
    await twin.settle([(rows[2], "done")], shard=2)
    await twin.settle([(rows[0], "done")])
    twin.check()
    assert rows[3].task_id not in twin.log
    await twin.settle([(rows[1], "done")], shard=1)
    twin.check()
    assert twin.log[rows[3].task_id] == b'{"n":3,"given":["r0","r1","r2"]}'


async def test_a_stage_that_ends_twice_counts_once(twin: Twin) -> None:
    rows = stages((), (), (0, 1), collects=[2])
    await twin.put(rows)
    await twin.settle([(rows[0], "done")])
    await twin.settle([(rows[0], "done")])
    twin.check()
    assert rows[2].task_id not in twin.log


async def test_branches_that_end_at_once_in_several_workers_start_the_join_once(
    twin: Twin, other_store: Store
) -> None:
    for _ in range(10):
        rows = stages((), (), (0, 1), collects=[2])
        await twin.put(rows)
        one, two = await own(twin.store, 0), await own(other_store, 1, name="w2")
        ends = [twin.told([(row, "done")]) for row in rows[:2]]
        assert await asyncio.gather(
            one.settle(ended_stages=ends[0]), two.settle(ended_stages=ends[1])
        ) == [SETTLED, SETTLED]
        for each in ends:
            twin.expect(each)
        twin.check()
        assert rows[2].task_id in twin.log


@pytest.mark.parametrize("state", ["dead", "expired", "discarded"])
async def test_a_failure_ends_the_workflow_and_is_told_once(twin: Twin, state: str) -> None:
    rows = stages((), (), (0, 1), (), on_failure=3)
    await twin.put(rows)
    await twin.settle([(rows[0], state), (rows[1], state)])
    twin.check()
    assert rows[2].task_id not in twin.log
    told = {b'{"n":3,"given":"%b"}' % row.task_id.encode() for row in rows[:2]}
    assert twin.log[rows[3].task_id] in told


async def test_a_redriven_stage_goes_on(twin: Twin) -> None:
    first, second = rows = stages((), (0,))
    await twin.put(rows)
    letter = dead(record(task_id=first.task_id))
    await twin.settle([(first, "dead")], dead=(letter,))
    await twin.settle([], revived=(Revival(first.task_id, 7),))
    twin.model.rows[first.workflow_id, 0].state = STARTED
    twin.check()
    await twin.settle([(first, "done")])
    twin.check()
    assert second.task_id in twin.log


async def test_a_cancel_takes_the_whole_workflow(twin: Twin) -> None:
    rows = stages((), (), (0,), (1, 2))
    await twin.put(rows)
    await twin.settle([(rows[0], "cancelled")])
    twin.check()
    assert twin.cancels == [rows[1].task_id]
    await twin.settle([(rows[1], "cancelled")], shard=1)
    await twin.settle([(rows[2], CANCEL)], shard=2)
    twin.check()
    assert twin.cancels == [rows[1].task_id], "each task is cancelled once"


async def test_a_cancel_of_a_stage_that_waits_or_has_ended_takes_the_rest(twin: Twin) -> None:
    first, second, third = rows = stages((), (0,), (1,))
    await twin.put(rows)
    await twin.settle([(first, "done")])
    await twin.settle([(third, CANCEL)])
    twin.check()
    assert twin.cancels == [second.task_id]
    await twin.settle([(second, "done"), (first, CANCEL)])
    twin.check()
    assert third.task_id not in twin.log


async def test_what_is_no_stage_changes_nothing(twin: Twin) -> None:
    rows = stages((), (0,))
    await twin.put(rows)
    owner = await own(twin.store)
    ends = tuple(StageEnd(task().task_id, state) for state in ("done", "cancelled", CANCEL))
    assert await owner.settle(ended_stages=ends) is SETTLED
    twin.check()


async def test_a_refused_settlement_starts_nothing(twin: Twin) -> None:
    rows = stages((), (0,))
    await twin.put(rows)
    zombie = await own(twin.store)
    await own(twin.store)
    assert await zombie.settle(ended_stages=twin.told([(rows[0], "done")])) is SettleResult.FENCED
    twin.check()


async def test_results_that_are_too_long_are_cut(twin: Twin) -> None:
    rows = stages((), (0,))
    await twin.put(rows)
    owner = await own(twin.store)
    long = StageEnd(rows[0].task_id, "done", msgspec.json.encode("x" * 1_100_000))
    assert await owner.settle(ended_stages=(long,)) is SETTLED
    twin.expect((long,))
    twin.check()
    assert len(twin.log[rows[1].task_id]) == 1_048_577


@pytest.mark.parametrize("seed", range(6))
async def test_any_workflow_goes_as_in_the_model(twin: Twin, seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(2, 9)
    after: list[tuple[int, ...]] = [
        tuple(sorted(rng.sample(range(n), rng.randrange(min(n, 3) + 1)))) for n in range(count)
    ]
    joins = [n for n in range(count) if len(after[n]) > 1]
    fails = None
    if rng.random() < 0.5:
        fails, after = count, [*after, ()]
    rows = stages(*after, collects=joins, on_failure=fails)
    await twin.put(rows)
    words = ["done"] * 6 + ["dead", "cancelled", "expired", CANCEL]
    for _ in range(count * 2):
        some = rng.sample(rows, rng.randrange(1, 4) if count > 3 else 1)
        ends = [(row, rng.choice(words)) for row in some if row.task_id in twin.log]
        if ends:
            await twin.settle(ends)
            twin.check()


async def test_old_workflows_go_when_no_task_of_them_can_end(
    twin: Twin, connect: Callable[[], Raw]
) -> None:
    over, runs, letter = stages((), (0,)), stages(()), stages(())
    for rows in (over, runs, letter):
        await twin.put(rows)
    owner = await own(twin.store)
    ended = twin.told([(over[0], "expired"), (letter[0], "dead")])
    buried = dead(record(task_id=letter[0].task_id))
    assert await owner.settle(ended_stages=ended, dead=(buried,)) is SETTLED

    def left() -> set[str]:
        found = twin.raw.execute("select distinct workflow_id from late_stage")
        return {str(each) for (each,) in found}

    await twin.store.prune(journal_keep_s=3_600)
    assert len(left()) == 3
    await twin.store.prune(journal_keep_s=-3_600)
    assert left() == {runs[0].workflow_id, letter[0].workflow_id}
    twin.raw.execute("delete from late_dead")
    await twin.store.prune(journal_keep_s=-3_600)
    assert left() == {runs[0].workflow_id}
