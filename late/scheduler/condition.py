"""What may be asked of a shard's core: questions that change nothing."""

from __future__ import annotations

from late.scheduler.draft import Draft
from late.scheduler.entry import Entry
from late.scheduler.fairness import ReadyQueue
from late.scheduler.recurring import Recurring
from late.scheduler.timers import Timers
from late.scheduler.window import Window


class Condition:
    """The questions of `ShardCore`."""

    running: int
    _draft: Draft
    _ready: ReadyQueue[Entry]
    _recovered: bool
    _recurring: Recurring
    _stopped: bool
    _timers: Timers
    _window: Window
    _now_us: int

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
        return self.idle and self._window.cursor == self._draft.cursor

    @property
    def ready(self) -> int:
        """How many tasks could start now."""
        return 0 if self._stopped or not self._recovered else len(self._ready)

    @property
    def unrecorded(self) -> int:
        """Tasks that have ended or are to be parked, and are not in the journal yet."""
        return self._draft.unrecorded

    @property
    def unsettled(self) -> int:
        """How many log records are read and not settled."""
        return len(self._window)

    def wake_at_us(self) -> int | None:
        """When the next `Grant` has something to do by time alone, or None."""
        times = [t for t in (self._timers.next_due_us(), self._recurring.next_due_us()) if t]
        # A tick that is due has asked for its settlement: nothing is won by looking until then.
        return min((t for t in times if t > self._now_us), default=None)
