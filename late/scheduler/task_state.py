"""One unsettled task in a core's memory."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from late.model.handlers import ROUTE
from late.model.task import (
    TRANSITIONS,
    Attempt,
    AttemptError,
    Options,
    Parked,
    Policy,
    Reason,
    Record,
)
from late.model.validation import is_name
from late.store.base import Lease

DUE_AFTER_US_MAX = 366 * 86_400_000_000 + 3_600_000_000
"""The longest delay that an enqueue accepts, and an hour for clocks that differ."""
POSTPONED = ("limited", "unfetched")
DEFAULTS = Options()
DEFAULT_POLICY = Policy()
_options_of = msgspec.json.Decoder(Options).decode


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
    expires_at_us: int | None = None
    """Its producer wants no start from then on."""
    place: int = 0
    """Its last place on the heap of timers: the only one that counts."""
    attempts: int = 0
    deaths: int = 0
    errors: tuple[AttemptError, ...] = ()
    held_since_us: int = 0
    start_written: bool = False
    """The journal has that its attempt is under way."""
    postponed: bool = False
    """Parked by a setting: its due time says nothing of when it may have run."""
    unfetched: bool = False
    """Parked because no consumer asked: it may be called back before it is due again."""
    known: bool = True
    """False when there is no handler for it here, or its options are not `understood`."""
    understood: bool = True
    """False when its options say what this version does not understand, such as an order."""

    def inspect(self) -> str | None:
        """Take in the record's options; return why such a task can never run, or None.

        Options that are well-formed but say what this version does not know come from a newer
        producer: the task is not `known`, for it must not run without what was asked.
        """
        if not is_name(self.record.name) or not is_name(self.record.queue):
            return "invalid_name"
        if self.record.options is None:
            return None
        try:
            options = _options_of(self.record.options)
        except msgspec.ValidationError:
            self.known = self.understood = False
            return None
        except msgspec.DecodeError:
            self.known = self.understood = False
            return "undecodable"
        if options.ordering_key is not None and not is_name(options.ordering_key):
            return "invalid_name"
        if options.at_us is not None or options.delay_us:
            due_us = first_due_us(self.record, options)
            if due_us - self.record.created_at_us > DUE_AFTER_US_MAX:
                return "invalid_schedule"
        self.options = options
        if options.expires_at_us is not None or options.expires_in_us is not None:
            self.expires_at_us = expires_at_us(self.record, options)
        return None

    def attempt(self, lease: Lease) -> Attempt:
        """Return what the dispatcher needs to start it."""
        record, policy = self.record, self.policy
        return Attempt(
            lease.group,
            record,
            self.attempts + 1,
            self.deaths,
            lease.epoch,
            self.due_at_us,
            None if record.options is None else self.options,
            self.expires_at_us,
            policy.target,
            is_replay=record.created_at_us < lease.reads.replay_us or self.options.replay,
            keeps_result=policy.result_ttl_us > 0 and not lease.reads.shadow,
            shadow=lease.reads.shadow,
        )

    def parked(self, due_at_us: int, reason: Reason, *, holds: bool) -> Parked:
        """Return its row of the timer table."""
        return Parked(
            record=self.record,
            due_at_us=due_at_us,
            reason=reason,
            attempts=self.attempts,
            deaths=self.deaths,
            held_key=self.options.ordering_key if holds else None,
            errors=self.errors,
        )

    def is_of(self, record: Record) -> bool:
        """Return whether it was made of this row of the log: no two have one position."""
        return self.record.position == record.position

    @property
    def order(self) -> tuple[int, str]:
        """Sort key among tasks of one ordering key."""
        return (self.record.sequence, self.record.task_id)

    def move(self, state: str) -> None:
        """Go to another state; anything that `TRANSITIONS` does not list is our own mistake."""
        assert state in TRANSITIONS[self.state], (self.record.task_id, self.state, state)
        self.state = state


def options_fault(record: Record) -> str | None:
    """Say why the options of a task are not understood here; None if they are."""
    try:
        _options_of(record.options or "{}")
    except msgspec.MsgspecError as error:
        return f"its options are not understood here: {error}"
    return None


def first_due_us(record: Record, options: Options) -> int:
    """Return when the task first may start, as its producer asked, counted from the insert."""
    due = record.created_at_us + options.delay_us
    return due if options.at_us is None else max(due, options.at_us)


def expires_at_us(record: Record, options: Options) -> int | None:
    """Return when the task must no longer start, or None."""
    at_us, in_us = options.expires_at_us, options.expires_in_us
    if in_us is None:
        return at_us
    ends_us = record.created_at_us + in_us
    return ends_us if at_us is None else min(at_us, ends_us)


def policy_of(queue: str, name: str, policies: Mapping[str, Policy]) -> Policy | None:
    """Return the policy of a task by its name, or that of its queue; None if it has none here."""
    policy = policies.get(name)
    return policies.get(ROUTE + queue) if policy is None else policy


def from_record(record: Record, policies: Mapping[str, Policy]) -> Entry:
    """Return the entry of a record that was just read from the log."""
    policy = policies.get(record.name)  # not by `policy_of`: a call for each task
    if policy is None:
        policy = policies.get(ROUTE + record.queue)
    return Entry(record=record, policy=policy or DEFAULT_POLICY, known=policy is not None)


def from_parked(parked: Parked, policies: Mapping[str, Policy]) -> Entry:
    """Return the entry of a task that was loaded from the timer table."""
    entry = from_record(parked.record, policies)
    entry.state = "parked"
    entry.timer_key = (parked.due_at_us, parked.record.task_id)
    entry.due_at_us = parked.due_at_us
    entry.postponed = parked.reason in POSTPONED
    entry.unfetched = parked.reason == "unfetched"
    entry.attempts = parked.attempts
    entry.deaths = parked.deaths
    entry.errors = parked.errors
    if parked.record.options is not None:  # judged when it was read from the log
        entry.inspect()
    return entry
