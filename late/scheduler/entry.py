"""One unsettled task in a core's memory."""

from __future__ import annotations

import msgspec

from late.task import TRANSITIONS, AttemptError, Options, Parked, Policy, Record

DEFAULTS = Options()


class Entry(msgspec.Struct, gc=False, eq=False):
    """Mutable, owned by one core. Exactly one of `index` and `timer_key` says where the task is
    durable: in the log (covered or not), or in the timer table."""

    record: Record
    policy: Policy
    options: Options = DEFAULTS
    state: str = "logged"
    index: int | None = None
    """Place in the order in which this owner read the log; <= 0 for a checkpoint's `open`."""
    window: str = ""
    """`Page.window` of the page it came in."""
    timer_key: tuple[int, str] | None = None
    """(due_at_us, task_id) of its row in the timer table."""
    due_at_us: int = 0
    attempts: int = 0
    deaths: int = 0
    errors: tuple[AttemptError, ...] = ()
    held_since_us: int = 0
    known: bool = True
    """False when there is no handler for it here, or its options say what this version does not
    understand."""

    @property
    def order(self) -> tuple[int, str]:
        """Sort key among tasks of one ordering key."""
        return (self.record.sequence, self.record.task_id)

    def move(self, state: str) -> None:
        """Go to another state; anything that `TRANSITIONS` does not list is our own mistake."""
        assert state in TRANSITIONS[self.state], (self.record.task_id, self.state, state)
        self.state = state


def first_due_us(record: Record, options: Options) -> int:
    """When the task first may start: by the producer's wish, counted from the insert."""
    due = record.created_at_us + options.delay_us
    return due if options.at_us is None else max(due, options.at_us)


def expires_at_us(record: Record, options: Options) -> int | None:
    """When the task must no longer start, or None."""
    ends = []
    if options.expires_at_us is not None:
        ends.append(options.expires_at_us)
    if options.expires_in_us is not None:
        ends.append(record.created_at_us + options.expires_in_us)
    return min(ends, default=None)


def from_parked(parked: Parked, policy: Policy, *, known: bool) -> Entry:
    """The entry of a task that was loaded from the timer table."""
    return Entry(
        record=parked.record,
        policy=policy,
        state="parked",
        timer_key=(parked.due_at_us, parked.record.task_id),
        due_at_us=parked.due_at_us,
        attempts=parked.attempts,
        deaths=parked.deaths,
        errors=parked.errors,
        known=known,
    )
