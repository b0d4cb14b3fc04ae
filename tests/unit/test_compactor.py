"""Rounds of compaction over a journal in memory: what goes, what stays, and what is asked again."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from late.errors import TransactionAborted
from late.model.task import Usage
from late.store.common.compaction import ROW_MIN, Compacted, JournalRow, Stretch, plan_sums
from late.store.compactor import Compactor

S = 1_000_000
NOW_US = 1_000_000 * S
USAGE = msgspec.json.encode([Usage("q", "n", "local", "done", 1)]).decode()


class Journal:
    """The journal of one shard, a row every `every_us`."""

    def __init__(self, count: int, every_us: int) -> None:
        rows = (JournalRow(n, None, 1, "me", USAGE, n * every_us) for n in range(1, count + 1))
        self.rows = {row.seq: row for row in rows}
        self.last = count
        self.steps = 0
        self.aborts: set[int] = set()
        """The steps that another process makes impossible."""

    async def step(self, stretch: Stretch, limit: int) -> Compacted:
        self.steps += 1
        if self.steps in self.aborts:
            raise TransactionAborted("somebody else does it")
        found = [row for n, row in self.rows.items() if stretch.start <= n < stretch.last]
        plan = plan_sums(found[:limit], stretch, limit)
        for each in plan.sums:
            for seq in range(each.low, each.seq):
                self.rows.pop(seq, None)
            changed = msgspec.structs.replace(
                self.rows[each.seq], first_seq=each.first_seq, usage=each.usage
            )
            self.rows[each.seq] = changed
        return plan

    async def round(
        self, compactor: Compactor, now_us: int = NOW_US, minute_s: float = 3600
    ) -> int:
        """Run one round, judge what it has left, and return how many rows went by its own word."""
        before = len(self.rows)
        journals = [("g", 0, self.last)]
        ages = {"detail_s": 60, "minute_s": minute_s}
        told = await compactor.run(journals, self.step, now_us=now_us, **ages)
        assert told == before - len(self.rows)
        rows = list(self.rows.values())
        ends = [0, *(row.seq for row in rows)]
        assert [row.first for row in rows] == [end + 1 for end in ends[:-1]], "there is a hole"
        usage = [msgspec.json.decode(row.usage or "[]", type=list[Usage]) for row in rows]
        assert sum(each.count for of_row in usage for each in of_row) == self.last
        return told


@pytest.mark.parametrize(
    ("count", "every_us", "left"),
    [(1, S, 1), (2, S, 2), (3, S, 3), (700, S // 100, 3), (500, 10 * S, 4), (300, 1200 * S, 102)],
)
async def test_old_rows_become_one_for_each_hour(count: int, every_us: int, left: int) -> None:
    journal, compactor = Journal(count, every_us), Compactor()
    assert await journal.round(compactor) == count - left
    steps = journal.steps
    assert await journal.round(compactor) == 0
    assert journal.steps == steps, "nothing has come since"
    assert await journal.round(Compactor()) == 0, "nor does anybody else find anything"


@pytest.mark.parametrize("every_s", [0.1, 0.5, 8, 70, 600, 1800])
async def test_a_row_goes_on_within_its_hour_until_it_stands_for_enough(every_s: float) -> None:
    """Round by round, as settlements become old, long before an hour of them is one row."""
    every_us, minute_us, hour_us = round(every_s * S), 60 * S, 3600 * S
    journal, compactor = Journal(0, every_us), Compactor()
    for now_us in range(0, min(6 * hour_us, 6_000 * every_us), 30 * S):
        while (at_us := (journal.last + 1) * every_us) <= now_us:
            journal.last += 1
            journal.rows[journal.last] = JournalRow(journal.last, None, 1, "me", USAGE, at_us)
        await journal.round(compactor, now_us, minute_s=10**6)
    assert await journal.round(Compactor(), now_us, minute_s=10**6) == 0, "nor has anybody else"

    before_us = (now_us - minute_us) // minute_us * minute_us
    old = [row for row in journal.rows.values() if row.settled_at_us < before_us][1:]
    for row in old:
        assert row.first * every_us // hour_us == row.settled_at_us // hour_us
    for row, behind in pairwise(old):
        enough = row.seq - row.first + 1 >= ROW_MIN
        minutes = [each.settled_at_us // minute_us for each in (row, behind)]
        same_hour = row.settled_at_us // hour_us == behind.settled_at_us // hour_us
        assert minutes[0] < minutes[1]
        assert enough or not same_hour or behind.seq == journal.last


@pytest.mark.parametrize("aborted", [1, 2, 3, 4])
async def test_what_another_process_prevents_is_done_in_the_next_round(aborted: int) -> None:
    journal, compactor = Journal(500, 10 * S), Compactor()
    journal.aborts = {aborted}
    first = await journal.round(compactor)
    assert first + await journal.round(compactor) == 496
