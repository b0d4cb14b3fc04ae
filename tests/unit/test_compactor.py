"""Rounds of compaction over a journal in memory: what goes, what stays, and what is asked again."""

from __future__ import annotations

import msgspec
import pytest

from late.errors import TransactionAborted
from late.model.task import Usage
from late.store.common.compaction import Compacted, JournalRow, Stretch, plan_sums
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

    async def round(self, compactor: Compactor) -> int:
        """Run one round, judge what it has left, and return how many rows went by its own word."""
        before = len(self.rows)
        journals = [("g", 0, self.last)]
        told = await compactor.run(journals, self.step, now_us=NOW_US, detail_s=60, minute_s=3600)
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


@pytest.mark.parametrize("aborted", [1, 2, 3, 4])
async def test_what_another_process_prevents_is_done_in_the_next_round(aborted: int) -> None:
    journal, compactor = Journal(500, 10 * S), Compactor()
    journal.aborts = {aborted}
    first = await journal.round(compactor)
    assert first + await journal.round(compactor) == 496
