"""A settlement that commits in the transaction that has the effects of the tasks that it ends.

It carries the ends of these tasks and nothing else that waits for a settlement. So the core need
not take back anything when the transaction is rolled back: until the journal has the settlement,
all of them run.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import msgspec

from late.model.task import Outcome
from late.scheduler.core.settlements.pending_settlement import PendingSettlement
from late.scheduler.core.state import CoreState
from late.scheduler.core.window import NONE
from late.store.base import Settlement


class SharedSettlement(msgspec.Struct, frozen=True, eq=False):
    """The part of one shard in a shared transaction."""

    settlement: Settlement
    substitute: Settlement
    """It has the same `seq` and ends nothing. In the journal it proves that `settlement` will never
    be there, whatever became of its transaction."""
    outcomes: tuple[Outcome, ...]
    arrived: int
    """Records that the cursor of both covers for the first time."""


def build(
    core: CoreState, outcomes: Sequence[Outcome], now_us: int, waiting: AbstractSet[str] = NONE
) -> SharedSettlement | None:
    """Return the settlement of tasks that are done, or None if one of them does not run here any
    more, or another settlement is out.

    It counts as out from now on: nothing else of the shard is settled.

    Args:
        waiting: tasks whose attempt is handed over and has not begun.
    """
    core.now_us = max(core.now_us, now_us)
    pending, window = core.pending, core.window
    if pending.out is not None or not core.recovered:
        return None
    ends = PendingSettlement(core.lease, core.settings, core.limits.tenant)
    ends.seq = pending.seq
    for outcome in outcomes:
        attempt = outcome.attempt
        task_id = attempt.record.task_id
        entry = window.entries.get(task_id) or core.timers.parked.get(task_id)
        if (
            entry is None
            or entry.state != "running"
            or attempt.epoch != core.lease.epoch
            or attempt.number != entry.attempts + 1
        ):
            return None
        done = msgspec.structs.replace(entry, state="done")
        ends.note(done, "done", core.now_us, outcome)
        ends.end(done, outcome.result)
    arrived = window.uncounted()
    ends.usage.add_arrived(arrived, core.now_us)
    ends.usage.add_done(outcomes)
    # Names that no other settlement of this `seq` has: they tell which transaction has committed.
    core.shares += 1
    substitute = PendingSettlement(core.lease, core.settings, core.limits.tenant)
    substitute.seq = pending.seq
    substitute.usage.add_arrived(arrived, core.now_us)
    waiting = core.suspects.unstarted | waiting
    mine = frozenset([outcome.attempt.record.task_id for outcome in outcomes])
    cursor = window.cursor
    shared = SharedSettlement(
        substitute=substitute.compose(
            cursor,
            window.open(without=NONE, waiting=waiting),
            core.suspects.told(),
            mark=f"/-{core.shares}",
        ),
        settlement=ends.compose(
            cursor,
            window.open(without=mine, waiting=waiting),
            core.suspects.told(without=mine),
            mark=f"/{core.shares}",
        ),
        outcomes=tuple(outcomes),
        arrived=len(arrived),
    )
    core.shared, pending.out = shared, shared.settlement
    return shared


def replace(core: CoreState, shared: SharedSettlement) -> None:
    """Put the substitute in the place of the settlement, which will never be in the journal."""
    assert core.shared is shared
    core.pending.out = shared.substitute


def give_up(core: CoreState) -> None:
    """Take in that the transaction was rolled back: nothing is out."""
    assert core.shared is not None
    core.shared = core.pending.out = None
    core.long_run = True  # Starts that only this settlement would have told of are to be written.
