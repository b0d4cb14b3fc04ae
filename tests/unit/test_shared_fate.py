"""Transactions that carry settlements: what their shards do next, by how they ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from late.model.task import Cursor, Epoch, Outcome, ShardId
from late.scheduler.scheduler import Scheduler
from late.scheduler.shared_settlements import SharedSettlements
from late.store.base import Fate, Lease, Page, Settlement, SettleResult
from tests.conformance.kit import record
from tests.unit.test_passes import Slots, made

SHARD = ShardId(0)
SETTLED, FENCED = SettleResult.SETTLED, SettleResult.FENCED


class Journal:
    """A settler whose answers the test gives, one for each settlement."""

    def __init__(self, *answers: SettleResult) -> None:
        self.answers = list(answers)
        self.written: list[Settlement] = []

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        yield

    async def write(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        self.written += settlements
        return [self.answers.pop(0) for _ in settlements]


class Shared:
    """A worker with one task that runs, and the transaction in which it ends."""

    def __init__(self, fate: Fate, *answers: SettleResult, lost: bool = False) -> None:
        self.slots, self.journal, self.fate, self.lost = Slots(), Journal(*answers), fate, lost
        self.scheduler: Scheduler = made(self.slots, [SHARD])
        one = record(shard_id=SHARD, name="n", created_at_us=1)
        self.scheduler.pages("g", [Page(SHARD, [one], Cursor("a"), "w", more=False, now_us=1)])
        self.scheduler._pass()
        [attempt] = self.slots.got
        self.outcome = Outcome(attempt, "done", 1, 1)
        self.carried: list[Settlement] = []

    async def write(self, settlements: Sequence[Settlement]) -> Fate:
        self.carried += settlements
        if self.lost:
            lease = Lease("g", SHARD, "me", Epoch(2), 5, Cursor(""), (), {})
            self.scheduler.acquired([lease])
        return self.fate

    async def commit(self) -> Fate:
        settler: Any = self.journal
        shared = SharedSettlements(
            self.scheduler,
            settler,
            holders=lambda: (self.slots,),
            on_error=lambda settlements, error: None,
            now_us=lambda: 1,
        )
        async with shared.alone([self.outcome.attempt]) as commit:
            assert commit is not None
            return await commit([self.outcome], self.write)

    def ends(self) -> list[str]:
        """What the next settlements of the worker itself say of the task."""
        self.scheduler.finished([self.outcome])
        return [usage.outcome for each in self.scheduler.collect() for usage in each.usage]


async def test_after_a_commit_the_end_is_in_the_journal_and_is_not_told_twice() -> None:
    shared = Shared(Fate.COMMITTED)
    assert await shared.commit() is Fate.COMMITTED
    assert [usage.outcome for usage in shared.carried[0].usage] == ["enqueued", "done"]
    assert shared.ends() == []


async def test_after_a_rollback_the_shard_settles_on_its_own_again() -> None:
    shared = Shared(Fate.ROLLED_BACK)
    assert await shared.commit() is Fate.ROLLED_BACK
    assert shared.ends() == ["enqueued", "done"]


@pytest.mark.parametrize("fate", [Fate.UNKNOWN, Fate.REFUSED])
async def test_a_substitute_that_got_the_place_ends_nothing(fate: Fate) -> None:
    shared = Shared(fate, SETTLED)
    assert await shared.commit() is Fate.ROLLED_BACK
    [substitute] = shared.journal.written
    assert [usage.outcome for usage in substitute.usage] == ["enqueued"]
    assert shared.ends() == ["done"]


async def test_a_lost_answer_is_a_commit_if_the_place_is_its_own() -> None:
    shared = Shared(Fate.UNKNOWN, FENCED, SETTLED)
    assert await shared.commit() is Fate.COMMITTED
    assert shared.journal.written[1] == shared.carried[0]
    assert shared.ends() == []


async def test_a_shard_whose_place_another_owner_has_taken_is_given_up() -> None:
    shared = Shared(Fate.UNKNOWN, FENCED, FENCED)
    assert await shared.commit() is Fate.ROLLED_BACK
    assert shared.scheduler.cores == {}


@pytest.mark.parametrize("fate", [Fate.UNKNOWN, Fate.REFUSED, Fate.ROLLED_BACK])
async def test_a_shard_that_came_back_meanwhile_is_left_as_it_is(fate: Fate) -> None:
    shared = Shared(fate, SETTLED, lost=True)
    assert await shared.commit() is Fate.ROLLED_BACK
    state = shared.scheduler.cores["g", SHARD].state
    assert (state.lease.epoch, state.pending.seq) == (2, 5)
    assert shared.ends() == []
