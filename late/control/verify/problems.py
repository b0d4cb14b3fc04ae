"""Problems that `late verify` can find: one word per kind, with what an operator does about it.

None of these comes about by a worker's death or a cut connection, in whatever order: what belongs
together is written in one transaction. So a problem means that rows were written or removed by
something else than `late`, that the database has lost what it had committed, or a defect of `late`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

LISTED = 1_000
"""Problems that are kept by name; beyond, they are counted."""

REMEDIES: Mapping[str, str] = {
    "open_gone": "restore its row from a backup, or enqueue the task again",
    "open_twice": "it may run more than once at the next takeover; then the shard is sound",
    "two_places": "it will run more than once; `late show` names its rows: delete all but one",
    "ended_twice": "do not redrive it; `late dead purge --id` if it shall not run again",
    "logged_twice": "it may run once per row: a producer has used an id twice, or a row was copied",
    "held_forever": "enqueue the task again and delete its row of late_timer",
    "key_held": "nobody can enqueue with this key: delete its row of late_unique",
    "tick_held": "the schedule waits for it: set late_schedule.open_task_id to NULL",
    "uncounted": "tasks were lost or skipped: compare with a backup, then enqueue them again",
    "checkpoint": "restore the row from a backup; until then the shard cannot be taken over",
    "journal_hole": "rows were deleted by hand: nothing to do if the tasks add up",
    "counted_twice": "sums of usage are too high, tasks are not affected: report the defect",
    "epoch_back": "a fenced owner has settled: compare the tasks of that time with their effects",
    "two_owners": "two workers held one lease: compare the tasks of that time with their effects",
    "settlement_twice": "a settlement was written twice: compare the tasks of that time",
    "usage": "counts of this settlement are lost; tasks are not affected",
    "journal_gone": "restore the journal from a backup, or every task still in the log runs again",
    "lease": "restart the shard's owner: a takeover raises both above what they are",
    "group": "add the group to late_group, or start a worker with --group",
}


class Problem(msgspec.Struct, frozen=True):
    """One thing that is broken."""

    kind: str
    """A key of `REMEDIES`; stable."""
    group: str
    shard_id: int
    task_id: str | None
    """None where it is the shard's journal."""
    what: str

    @property
    def remedy(self) -> str:
        """Return the advice to the operator."""
        return REMEDIES[self.kind]


class Problems:
    """Problems as they are found: the first `LISTED` by name, all of them by number."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.total = 0
        self.notes: list[str] = []
        """Facts that are no fault and worth knowing, above all what could not be checked."""

    def add(
        self, kind: str, shard: tuple[str, int], what: str, *, task_id: str | None = None
    ) -> None:
        """Add a problem of a (group, shard)."""
        assert kind in REMEDIES
        self.total += 1
        if len(self.problems) < LISTED:
            self.problems.append(Problem(kind, *shard, task_id, what))
