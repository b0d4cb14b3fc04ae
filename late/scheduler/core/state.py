"""The state of a shard's core, and the questions that can be asked of it.

`ShardCore.step` moves it, through the functions in `reads`, `starts`, `ends` and `transitions`. The
questions change nothing, but for `abandon`, which is for a core that is thrown away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from late.clock import was_set_back
from late.model.lanes import Gate
from late.model.task import Policy, TaskId
from late.scheduler.core.commands import Commands, TaskActions
from late.scheduler.core.crash_suspects import CrashSuspects
from late.scheduler.core.lane_drain import LaneDrain
from late.scheduler.core.ordering_keys import OrderingKeys
from late.scheduler.core.replays import Replays
from late.scheduler.core.settlements.pending_settlement import PendingSettlement
from late.scheduler.core.timers import Timers
from late.scheduler.core.unclaimed import UnclaimedTasks
from late.scheduler.core.window import Window
from late.scheduler.limits.limits import Limits
from late.scheduler.limits.ready_queues import ReadyQueues
from late.scheduler.schedules import ShardSchedules
from late.scheduler.settings import NEVER_US, CoreSettings
from late.scheduler.task_state import Entry
from late.store.base import Lease, read_below

if TYPE_CHECKING:
    from late.scheduler.core.settlements.shared_settlement import SharedSettlement

RUNS_LOOK_US = 500_000
"""Pause between two looks for tasks that run for long. What both of them see runs for long."""


class CoreState:
    """Everything that is known of one (consumer group, shard).

    Args:
        actions: carries out what commands ask for.
    """

    waits = False
    """True if, after the last step, a task waits for a slot, for what a setting allows, or for the
    end of another that is under suspicion."""

    def __init__(
        self,
        lease: Lease,
        policies: Mapping[str, Policy],
        settings: CoreSettings | None,
        limits: Limits | None,
        gate: Gate | None,
        actions: TaskActions,
    ) -> None:
        self.lease = lease
        self.policies = policies
        self.settings = settings or CoreSettings()
        self.limits = limits or Limits()
        self.gate = gate or Gate()
        self.window = Window(lease.cursor)
        timers = self.settings.horizon_us, self.settings.timers_max
        self.timers = Timers(horizon_us=timers[0], timers_max=timers[1])
        self.unclaimed = UnclaimedTasks(self.timers)
        self.keys = OrderingKeys(
            lease.held_keys,
            partial(self.gate.opens, lease.group, lease.shard_id),
            read_below(lease.cursor),
        )
        self.drain = LaneDrain(lease, self.gate, self.keys.left)
        self.ready_queues = ReadyQueues(lease.group, self.limits)
        self.schedules = ShardSchedules()
        self.suspects = CrashSuspects(lease)
        self.replays = Replays()
        self.pending = PendingSettlement(lease, self.settings, self.limits.tenant)
        self.commands = Commands(
            lease.group, self.window, self.timers, self.keys, actions, self.pending.revive,
            self.drain.read, shadow=lease.reads.shadow,
        )  # fmt: skip
        self.shared: SharedSettlement | None = None
        """The one that is out, if `pending.out` is of a shared transaction."""
        self.shares = 0
        """Settlements that were built for shared transactions."""
        self.now_us = 0
        self.running = 0
        self.background: Counter[str] = Counter()
        """Those that run and are background, by pool; empty where none ever was."""
        self.foreground_at_us = -NEVER_US  # the last time at which foreground ran
        self.late_results = 0
        """Outcomes of attempts that this core did not wait for (any more)."""
        self.wary_until_us = -1 if lease.taken_at_us is None else lease.taken_at_us
        """A task that was created later cannot have been with a worker that died; -1: none died."""
        self.looked_at_us = 0
        """The time at which `starts.park_long_held` last went over all keys."""
        self.runs_looked_at_us = 0
        """The time at which `starts.note_long_runs` last went over what runs."""
        self.ran_on: set[TaskId] = set()
        """Tasks that ran then, and the journal does not have it."""
        self.long_run = False
        """True when some of that has gone on running: its start is worth a row by itself."""
        self.recovered = not lease.open
        """True once the open tasks of the checkpoint are here."""
        self.asked_open = False
        self.told: tuple[int, bool] | None = None
        """The last `SettleSoon` since a settlement was asked for: all outcomes, and urgent."""
        self.reading = False
        """True while a page is asked for."""
        self.stopped = self.leaves = False  # nothing more is started: until `Settled`, or for good
        self.latest_us = 0
        """The latest time that was seen, since the clock was last set back."""
        self.quiet_from_us = 0
        """Before this time the clock was set back since `quiet_until_us` was set."""
        self.quiet_until_us = 0
        """A `Grant` between the two finds nothing to do, unless another event comes first."""
        self.wake_us = NEVER_US
        """`wake_at_us` as it was when a pass last came by; true as long as the core is quiet."""

    @property
    def idle(self) -> bool:
        """True when nothing runs or waits for a settlement: the shard can be handed over."""
        return not (self.running or len(self.pending) or self.pending.out)

    @property
    def clean(self) -> bool:
        """True when it is idle and the journal has all that is known here, the cursor included."""
        told = self.window.cursor == self.pending.cursor and not self.pending.has_steps
        return self.idle and told

    def starts(self, entry: Entry) -> None:
        """Count one that runs now."""
        self.running += 1
        if entry.options.priority < 0:
            self.background[entry.policy.target] += 1

    def ran(self, entry: Entry) -> None:
        """Count one that does not run any more."""
        self.running -= 1
        if entry.options.priority < 0:
            self.background[entry.policy.target] -= 1
        self.ready_queues.keys.ended(entry.record.task_id)

    def can_start(self, *, background: bool) -> bool:
        """Return whether a task could start now; without `background` that is foreground."""
        ready = self.recovered and not self.stopped
        return ready and self.ready_queues.can_start(background=background)

    @property
    def ready(self) -> int:
        """Number of tasks that could start now."""
        return 0 if self.stopped or not self.recovered else len(self.ready_queues)

    @property
    def limited(self) -> int:
        """Number of tasks that could start as well, if it were not for the settings."""
        return 0 if self.stopped or not self.recovered else self.ready_queues.limited

    @property
    def unsettled(self) -> int:
        """Number of log records that are read and not settled."""
        return len(self.window)

    @property
    def full(self) -> bool:
        """True when the window has no room for another page."""
        settings, window = self.settings, self.window
        room = settings.window - settings.page_size
        return len(window.entries) > room or window.bytes > settings.window_bytes

    @property
    def runs_look_due(self) -> bool:
        """True when it is time to see what has run for long."""
        since_us = self.now_us - self.runs_looked_at_us
        return self.running > 0 and not 0 <= since_us < RUNS_LOOK_US

    @property
    def look_due(self) -> bool:
        """True when tasks that wait for long are to be parked; not at every grant, as that goes
        over all keys."""
        if 0 <= self.now_us - self.looked_at_us < self.settings.held_look_us:
            return False
        return self._may_park_held

    @property
    def _may_park_held(self) -> bool:
        if self.ready_queues.limited or len(self.keys) or self.drain:
            return True
        free = self.settings.window - len(self.window.entries)
        return free < self.settings.page_size and self.ready_queues.background > 0

    def follow_clock(self, now_us: int) -> None:
        """Take in the present, which may be before the past: the clock can be set back."""
        self.now_us = now_us
        if now_us >= self.latest_us:
            self.latest_us = now_us
        elif was_set_back(now_us, self.latest_us):
            self.latest_us = now_us
            self.timers.follow_clock(now_us)
            self.pending.follow_clock(now_us)

    def is_expired(self, entry: Entry) -> bool:
        """Return whether the task must not start any more."""
        expires = entry.expires_at_us
        if self.limits.any:
            expires = self.limits.expires_at_us(entry, expires)
            too_old_at_us = self.limits.too_old_at_us(self.lease.group, entry)
            if too_old_at_us is not None and self.now_us >= too_old_at_us:
                return True
        return expires is not None and self.now_us >= expires

    def is_ready(self, task_id: str) -> bool:
        """Return whether a task waits for nothing but a slot."""
        entry = self.window.entries.get(task_id) or self.timers.parked.get(task_id)
        return entry is not None and entry.state == "ready"

    def write_due(self) -> bool:
        """Return whether there is something to settle besides ticks."""
        return (
            len(self.pending) > 0
            or self.pending.is_cursor_due(self.window.cursor, self.now_us, last=self.stopped)
            or bool(self.suspects.asked)
            or self.drain.due
            or self.commands.unwritten
            or (self.long_run and self.now_us >= self.pending.starts_due_at_us())
        )

    @property
    def awaited(self) -> bool:
        """True when somebody waits for the next settlement: a caller, a former or the next owner,
        another shard, or this one, whose tail stands still while the window is full; that hurts
        nobody while many tasks of it are ready. Each change of marks and deaths is told at once."""
        suspects = self.suspects
        return (
            self.pending.awaited
            or self.stopped
            or (self.full and len(self.ready_queues) < self.settings.page_size // 2)
            or bool(suspects.asked or suspects.marked or suspects.deaths)
            or bool(self.commands.waiting)
            or self.drain.due
            or (bool(self.drain) and len(self.pending) > 0)
            or self.tick_due
        )

    @property
    def urgent(self) -> bool:
        """True when somebody waits, or did when it was said, until the settlement is asked for."""
        return self.awaited or (self.told is not None and self.told[1])

    @property
    def tick_due(self) -> bool:
        """True when a schedule is to fire now."""
        tick_us = None if self.stopped else self.schedules.next_due_us
        return tick_us is not None and tick_us <= self.now_us

    def wake_at_us(self) -> int | None:
        """Return when the next `Grant` has something to do by time alone, or None."""
        due_us = self.timers.next_due_us()
        if due_us is not None and due_us <= self.now_us:
            return self.now_us  # more is due than one grant takes
        # A tick that is due has asked for its settlement: nothing is won by looking until then.
        times = [t for t in (due_us, self.schedules.next_due_us) if t and t > self.now_us]
        return min(times, default=None)

    def quiet_us(self) -> int:
        """Return `quiet_until_us` as it is after a `Grant` without effects; 0: not known."""
        return 0 if self.waits else self.undue_us()

    def undue_us(self) -> int:
        """Return until when nothing is to be done by time alone; 0: not known."""
        if self.stopped or not self.recovered or self.keys.wants or self.drain:
            return 0
        if self.suspects.waiting:
            return 0
        until_us = min(self.timers.load_at_us(), self.pending.due_at_us(self.window.cursor))
        if self.running:
            until_us = min(until_us, self.runs_looked_at_us + RUNS_LOOK_US)
        if self.long_run:
            until_us = min(until_us, self.pending.starts_due_at_us())
        if self._may_park_held:
            until_us = min(until_us, self.looked_at_us + self.settings.held_look_us)
        return min(until_us, self.wake_us)

    def abandon(self) -> None:
        """Give up what runs: the core is thrown away, and another worker has the shard."""
        for entries in (self.window.entries, self.timers.parked):
            for entry in entries.values():
                if entry.state == "running":
                    self.ready_queues.undo(entry)
        self.ready_queues.abandon()
