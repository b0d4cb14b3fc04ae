"""The state machine of one (consumer group, shard): events in, effects out, nothing else.

No clock, random, await, store or network. The loop in `scheduler.py` and the simulator drive the
same object. Exactly one worker holds it at a time; the settlement journal fences the others.

Rules, in the order in which they matter:

1. A task that was read is in `window` until its end, or its parking, is in the journal.
2. A task that is in the timer table and in memory is in `timers.parked` until the journal says
   that its row is gone.
3. One settlement is out at a time. Its content never changes, so it can be repeated while its
   outcome is unknown; what ends meanwhile goes into the next one.
4. Nothing starts before its due time by the database's clock, before the records of the
   checkpoint's `open` are back, or after `Stop`.
5. A retry is durable before it can start: it waits for the settlement that parks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from late.clock import SET_BACK_US, was_set_back
from late.model.lanes import Gate
from late.model.task import Attempt, Outcome, Policy, TaskId
from late.model.workflow import CANCEL, StageEnd
from late.scheduler import events_effects as m
from late.scheduler.core import ends, reads, starts, transitions
from late.scheduler.core.settlements import shared_settlement
from late.scheduler.core.settlements.shared_settlement import SharedSettlement
from late.scheduler.core.state import CoreState
from late.scheduler.core.window import NONE
from late.scheduler.limits.limits import LOCAL_POOL, Limits
from late.scheduler.settings import NEVER_US, CoreSettings
from late.scheduler.task_state import Entry
from late.store.base import WHOLE_WINDOW, Lease, Page, Settlement


class ShardCore:
    """Moves the state of one shard. `step` is not re-entrant; all calls come from one loop."""

    def __init__(
        self,
        lease: Lease,
        policies: Mapping[str, Policy],
        settings: CoreSettings | None = None,
        limits: Limits | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.state = CoreState(lease, policies, settings, limits, gate, actions=self)

    def step(self, event: m.Event) -> list[m.Effect]:
        """Take one event; return what is to be done, in order."""
        core = self.state
        effects: list[m.Effect] = []
        core.quiet_until_us = 0
        match event:
            case m.Grant():
                core.follow_clock(event.now_us)
                rooms = {**event.rooms, LOCAL_POOL: event.slots}
                starts.grant(core, rooms, event.background, event.care, effects)
            case m.Finished():
                core.now_us = event.now_us
                ends.finished(core, event.outcomes)
            case m.PageRead():
                reads.page_read(core, event.page)
            case m.Settled():
                core.now_us = event.now_us
                ends.settled(core, effects)
            case m.ParkedLoaded():
                core.now_us = event.now_us
                reads.parked_loaded(core, event.request, event.parked)
            case m.OpenFetched():
                core.now_us = event.now_us
                reads.open_fetched(core, event.records)
            case m.LoadFailed():
                reads.load_failed(core, event.request)
            case m.SchedulesRead():
                core.schedules.replace(event.schedules)
            case m.Hold():
                core.stopped = True
            case m.Stop():
                core.leaves = core.stopped = True
        if core.replays.refused:
            effects.append(m.Replayed(core.replays.take()))
        if core.commands.waiting:
            core.commands.run(core.now_us, full=core.full)
        if core.pending.out is None and core.recovered:
            self._tell(effects)
        if not core.stopped:
            reads.ask(core, effects)
        ready, suspects = core.ready_queues, core.suspects
        core.waits = bool(ready.main.size or ready.limited or suspects.crowd or suspects.queue)
        if isinstance(event, m.Grant):
            core.wake_us = core.wake_at_us() or NEVER_US
            if not effects:
                core.quiet_from_us, core.quiet_until_us = core.now_us - SET_BACK_US, core.quiet_us()
        return effects

    def _tell(self, effects: list[m.Effect]) -> None:
        """Say that there is something to settle, if there is, and more than was said."""
        core = self.state
        outcomes = len(core.pending) + len(core.suspects.asked)
        if not (outcomes or core.tick_due or core.write_due()):
            return
        known, urgent = core.told or (0, False)
        # It stays urgent until the settlement is asked for.
        told = (outcomes, urgent or core.awaited)
        if told != core.told:
            effects.append(m.SettleSoon(max(0, outcomes - known), told[1]))
            core.told = told

    def skip_page(self, page: Page) -> bool:
        """Take in an empty page of a quiet shard, which moves the cursor and nothing else.

        Returns False, and does nothing, where the page needs `step`. After True the next page is
        asked for, from the cursor of this one.
        """
        core = self.state
        now_us = max(core.now_us, page.now_us)
        if page.records or page.more or core.commands.waiting or core.keys.unread:
            return False
        if now_us >= core.quiet_until_us:
            return False
        due_us = core.pending.due_at_us(page.cursor)
        if now_us >= due_us:
            return False
        core.now_us = now_us
        core.window.append((), page)
        core.keys.read_below = WHOLE_WINDOW
        core.commands.page_read(more=False)
        core.quiet_until_us = min(core.quiet_until_us, due_us)
        return True

    def skip_grant(self, now_us: int, room: int, rooms: Mapping[str, int]) -> bool:
        """Take in the time, where no task that is ready fits in and nothing is due.

        Returns False, and does nothing, where a `Grant` may find something to do.

        Args:
            room: attempts that fit into the worker's own slots; `rooms`: into the other pools.
        """
        core = self.state
        if core.commands.waiting or core.ready_queues.fits(room, rooms):
            return False
        if was_set_back(now_us, core.latest_us):
            return False
        core.wake_us = core.wake_at_us() or NEVER_US
        undue_us = core.undue_us()
        if now_us >= undue_us:
            return False
        core.now_us, core.latest_us = now_us, max(core.latest_us, now_us)
        core.quiet_from_us, core.quiet_until_us = now_us - SET_BACK_US, core.quiet_us()
        return True

    def settlement(
        self, now_us: int, waiting: AbstractSet[str] = NONE, *, due: bool = False
    ) -> Settlement | None:
        """Build the next settlement, or return None if nothing is to be settled or one is out.

        The caller writes it until it knows the outcome, and says `Settled`; fenced, it throws the
        core away.

        Args:
            now_us: the database's time. One that it has confirmed lately: schedules fire by it.
            waiting: tasks whose attempt is handed over and has not begun.
            due: settle in any case.
        """
        core = self.state
        core.now_us = max(core.now_us, now_us)
        if core.pending.out is not None or not core.recovered:
            return None
        core.told = None
        ticks = core.schedules.take_due(core.now_us) if core.tick_due else ()
        if not (ticks or due or core.write_due()):
            return None
        results = core.drain.take_results()
        built = core.pending.build(core.window, ticks, core.suspects, core.now_us, results, waiting)
        core.long_run, core.ran_on = False, set()
        core.commands.unwritten = False
        core.limits.outages.settled(core.lease.group, built.usage, core.now_us)
        return built

    def settlement_before_share(
        self, now_us: int, waiting: AbstractSet[str] = NONE
    ) -> Settlement | None:
        """Return what must be settled before `share`, if something must.

        Attempts that a former owner has lost are in the first settlement of the next one: it tells
        no more that they were open.
        """
        if not self.state.pending.usage.has_lost:
            return None
        return self.settlement(now_us, waiting, due=True)

    def share(
        self, outcomes: Sequence[Outcome], now_us: int, waiting: AbstractSet[str] = NONE
    ) -> SharedSettlement | None:
        """Return a settlement of these ends alone, for the transaction that has their effects.

        Nothing has ended before `Settled`; `unshare` gives it up. See `shared_settlement.build`.
        """
        return shared_settlement.build(self.state, outcomes, now_us, waiting)

    def unshare(self) -> None:
        """Take in that the transaction was rolled back."""
        shared_settlement.give_up(self.state)

    def cancel_asked(self, attempt: Attempt) -> bool:
        """Return whether a cancel of its task waits for its end. Any thread may ask."""
        core, task_id = self.state, attempt.record.task_id
        return attempt.epoch == core.lease.epoch and core.commands.cancel_asked(task_id)

    # ------------------------------------------------------------------ for commands

    def finish_unrun(self, entry: Entry, state: str) -> None:
        """See `commands.TaskActions`."""
        transitions.finish_unrun(self.state, entry, state)

    def reschedule(self, entry: Entry, due_at_us: int) -> None:
        """See `commands.TaskActions`."""
        transitions.reschedule(self.state, entry, due_at_us)

    def dead_letter(self, entry: Entry, reason: str) -> None:
        """See `commands.TaskActions`."""
        transitions.dead_letter(self.state, entry, reason)

    def cancel_workflow(self, task_id: TaskId) -> None:
        """See `commands.TaskActions`."""
        self.state.pending.end_stage(StageEnd(task_id, CANCEL))
