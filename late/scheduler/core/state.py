"""What a shard's core is made of, and what may be asked of it: nothing here changes anything but
the last method, which is for a core that is thrown away."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from late.model.lanes import Gate
from late.model.task import Policy
from late.scheduler.core.crash_suspects import CrashSuspects
from late.scheduler.core.lane_drain import LaneDrain
from late.scheduler.core.ordering_keys import OrderingKeys
from late.scheduler.core.pending_settlement import PendingSettlement
from late.scheduler.core.timers import Timers
from late.scheduler.core.unclaimed import UnclaimedTasks
from late.scheduler.core.window import Window
from late.scheduler.limits.limits import Limits
from late.scheduler.limits.ready_queues import ReadyQueues
from late.scheduler.schedules import ShardSchedules
from late.scheduler.settings import CoreSettings
from late.scheduler.task_state import Entry, expires_at_us
from late.store.base import Lease


class CoreState:
    """See the module; `core.ShardCore` is what moves it."""

    def __init__(
        self,
        lease: Lease,
        policies: Mapping[str, Policy],
        settings: CoreSettings | None = None,
        limits: Limits | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.lease = lease
        self.running = 0
        self.late = 0
        """Outcomes of attempts that this core did not wait for (any more)."""
        self._policies = policies
        self._settings = settings or CoreSettings()
        self._window = Window(lease.cursor)
        self._timers = Timers(
            horizon_us=self._settings.horizon_us, timers_max=self._settings.timers_max
        )
        self._calling = UnclaimedTasks(self._timers)
        self._gate = gate or Gate()
        self._keys = OrderingKeys(
            lease.held_keys, partial(self._gate.opens, lease.group, lease.shard_id)
        )
        self._draining = LaneDrain(lease, self._gate, self._keys.left)
        self._limits = limits or Limits()
        self._ready = ReadyQueues(lease.group, self._limits)
        self._recurring = ShardSchedules()
        self.caution = CrashSuspects(lease)
        self._wary_until_us = -1 if lease.taken_at_us is None else lease.taken_at_us
        self._draft = PendingSettlement(lease, self._settings, self._limits.tenant)
        self._now_us = 0
        self._looked_at_us = 0
        self._stopped = False
        self._recovered = not lease.open
        self._asked_open = False
        self._reading = False
        self.quiet_until_us = 0
        """A `Grant` before finds nothing to do, unless another event comes first."""

    @property
    def seq(self) -> int:
        """Sequence number of the last settlement that is known to be in the journal."""
        return self._draft.seq

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits for a settlement: the shard can be handed over."""
        return not (self.running or len(self._draft) or self._draft.out)

    @property
    def clean(self) -> bool:
        """Idle, and the journal says all that is known here, the cursor included."""
        told = self._window.cursor == self._draft.cursor and not self._draft.has_steps
        return self.idle and told

    @property
    def ready(self) -> int:
        """How many tasks could start now."""
        return 0 if self._stopped or not self._recovered else len(self._ready)

    @property
    def unrecorded(self) -> int:
        """Tasks that have ended or are to be parked, and are not in the journal yet."""
        return self._draft.unrecorded

    @property
    def repeated(self) -> int:
        """Those of `unrecorded` that would run again if the worker died now."""
        return self._draft.repeated

    @property
    def unsettled(self) -> int:
        """How many log records are read and not settled."""
        return len(self._window)

    @property
    def limited(self) -> int:
        """How many tasks more could start, if it were not for the knobs."""
        return 0 if self._stopped or not self._recovered else self._ready.limited

    @property
    def gated(self) -> bool:
        """Whether a key waits until another shard has ended older tasks of it."""
        return self._keys.gated

    @property
    def _full(self) -> bool:
        room = self._settings.window - self._settings.page_size
        return len(self._window) > room or self._window.bytes > self._settings.window_bytes

    @property
    def _look_due(self) -> bool:
        """Whether to see who has waited for long. It goes over all keys: not at every grant."""
        since_us = self._now_us - self._looked_at_us
        waits = len(self._keys) or self._ready.limited or self._draining
        return bool(waits) and not 0 <= since_us < self._settings.held_look_us

    def _is_expired(self, entry: Entry) -> bool:
        expires = None
        if entry.record.options is not None:
            expires = expires_at_us(entry.record, entry.options)
        if self._limits.any:
            expires = self._limits.expires_at_us(entry, expires)
        return expires is not None and self._now_us >= expires

    def _is_ready(self, task_id: str) -> bool:
        entry = self._window.entries.get(task_id) or self._timers.parked.get(task_id)
        return entry is not None and entry.state == "ready"

    def _settle_due(self) -> bool:
        if not self._recovered:
            return False
        tick_us = None if self._stopped else self._recurring.next_due_us()
        return (tick_us is not None and tick_us <= self._now_us) or self._written_due()

    def _written_due(self) -> bool:
        """Whether something is to be written besides ticks."""
        return (
            self.caution.asked > 0
            or self._draft.due(self._window.cursor, self._now_us, last=self._stopped)
            or self._draining.due()
        )

    def abandoned(self) -> None:
        """The core is thrown away: what runs is another's from now on."""
        for entries in (self._window.entries, self._timers.parked):
            for entry in entries.values():
                if entry.state == "running":
                    self._ready.undo(entry)

    def wake_at_us(self) -> int | None:
        """When the next `Grant` has something to do by time alone, or None."""
        due_us = self._timers.next_due_us()
        if due_us is not None and due_us <= self._now_us:
            return self._now_us  # more is due than one grant takes
        times = [t for t in (due_us, self._recurring.next_due_us()) if t]
        # A tick that is due has asked for its settlement: nothing is won by looking until then.
        return min((t for t in times if t > self._now_us), default=None)

    def passed_by(self, now_us: int) -> int | None:
        """A `Grant` that finds nothing to do, and `wake_at_us`."""
        self._now_us = now_us
        return self.wake_at_us()

    def calls(self, pools: Collection[str]) -> bool:
        """Whether a `Grant` has something to do before `quiet_until_us`, now that consumers wait at
        these pools."""
        return self._calling.may_have(pools)

    def _quiet_us(self) -> int:
        """What `quiet_until_us` is after a `Grant` that had no effects; 0 where it is not known."""
        if self._stopped or not self._recovered or self._keys.wanting or self._draining:
            return 0
        if len(self._ready) or self._ready.limited or self.caution.waiting:
            return 0
        until_us = min(self._timers.load_at_us(), self._draft.due_at_us(self._window.cursor))
        if len(self._keys):
            until_us = min(until_us, self._looked_at_us + self._settings.held_look_us)
        return min(until_us, self.wake_at_us() or until_us)
