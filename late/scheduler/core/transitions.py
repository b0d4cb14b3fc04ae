"""The steps of one task from its record to its end: functions that change a core's state.

    admit ─▶ wait ─▶ come_due ─▶ make_ready ─▶ (starts.py) ─▶ (ends.py) ─▶ end, park or dead_letter

Each step that ends a task also lets the next task of its ordering key go on.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from late.model.offers import ELSEWHERE
from late.model.task import (
    KILLED_WORKER,
    SUBJECT_DROPPED,
    Attempt,
    DeadLetter,
    Outcome,
    Policy,
    Reason,
    emptied,
)
from late.model.validation import is_name
from late.scheduler.core.state import CoreState
from late.scheduler.outcome_rules import (
    DEATHS_MAX,
    decide_outcome,
    killed,
    refused,
    refused_wait_us,
)
from late.scheduler.task_state import (
    DEFAULT_POLICY,
    DEFAULTS,
    POSTPONED,
    Entry,
    first_due_us,
    options_fault,
)


def admit(core: CoreState, entries: Iterable[Entry]) -> None:
    """Decide what becomes of records that were just read, in their order.

    What may start at once and has a handler, nearly every one, takes the short way.
    """
    now_us, deaths, keys = core.now_us, core.suspects.deaths, core.keys
    ready: list[Entry] = []
    for entry in entries:
        record = entry.record
        if deaths:
            core.suspects.recall_deaths(entry)
        due_us, fault, key = record.created_at_us, None, None
        short = entry.known and not entry.deaths
        if record.options is not None or not (short and is_name(record.queue)):
            fault = entry.inspect()
            options = entry.options
            if options.codec is not None and core.replays.is_second(record, options):
                refuse(core, entry)
                continue
            short = short and entry.known and fault is None
            short = short and options.at_us is None and not options.delay_us
            key, due_us = options.ordering_key, min(due_us, now_us)
        if not short:
            core.ready_queues.push_all(ready)
            ready = []
            admit_one(core, entry, fault)
            continue
        entry.due_at_us = due_us
        if key is None or keys.admit(key, entry):
            entry.state = "ready"  # it is `logged`: `move` would look that up
            ready.append(entry)
        else:
            entry.state = "held"
            entry.held_since_us = now_us
    core.ready_queues.push_all(ready)


def refuse(core: CoreState, entry: Entry) -> None:
    """End a second row of a task, and nothing that belongs to the first: its unique key, its
    result, its place in an order.

    It is no dead letter, because a redrive would run it.
    """
    entry.options, entry.policy = DEFAULTS, DEFAULT_POLICY
    entry.move("ready")
    entry.move("running")  # in no time
    finish_unrun(core, entry, "discarded")


def admit_one(core: CoreState, entry: Entry, fault: str | None) -> None:
    """Decide what becomes of a record that was just read.

    Args:
        fault: the reason why it can never run, if it cannot.
    """
    record = entry.record
    if fault is not None:
        dead_letter(core, entry, fault)
        return
    entry.due_at_us = first_due_us(record, entry.options)
    # Only who was told to wait waits: a clock that was set back since the insert must not make a
    # task later than those that come after it.
    if entry.options.delay_us == 0 and entry.options.at_us is None:
        entry.due_at_us = min(entry.due_at_us, core.now_us)
    if entry.due_at_us > core.now_us:
        entry.due_at_us += core.limits.spread_us(entry)
        wait(core, entry)
    else:
        come_due(core, entry)


def wait(core: CoreState, entry: Entry) -> None:
    """Let a task wait that is due later.

    It stays in memory when it is due soon or has a row already, else it goes to the timer table.
    """
    if entry.timer_key is None and (
        entry.due_at_us - core.now_us > core.settings.near_us
        or len(core.window) > core.settings.window // 2
    ):
        core.pending.note(entry, "delayed", core.now_us, until_us=entry.due_at_us)
        park(core, entry, entry.due_at_us, "delay")
    else:
        entry.move("waiting")
        core.timers.wait(entry)


def come_due(core: CoreState, entry: Entry) -> None:
    """Make a task ready whose time has come, or hold it behind its ordering key."""
    name = entry.options.ordering_key
    if name is not None and not core.keys.admit(name, entry):
        entry.move("held")
        entry.held_since_us = core.now_us
    else:
        make_ready(core, entry)


def make_ready(core: CoreState, entry: Entry) -> None:
    """Let the task run as soon as there is a slot, unless it must not run here at all."""
    if entry.deaths >= DEATHS_MAX:
        entry.errors = killed(entry, core.now_us)
        dead_letter(core, entry, KILLED_WORKER)
        return
    if not entry.known:
        if core.commands.arrived(entry):
            return
        # Who takes an offer may not know a shadow when it sees one: an older version does not.
        if not (core.settings.offers and entry.understood) or core.lease.reads.shadow:
            park_unknown(core, entry)
            return
        entry.policy = msgspec.structs.replace(entry.policy, target=ELSEWHERE)
    entry.move("ready")
    late = entry.due_at_us > entry.record.created_at_us and not entry.postponed
    if late and not entry.attempts:  # retries wait behind the others: they may be many
        core.ready_queues.push_due(entry)
    else:
        core.ready_queues.push(entry)


def park_unknown(core: CoreState, entry: Entry) -> None:
    """Put off a task that has no handler here: perhaps a deploy is under way.

    That costs no attempt. After `unknown_max_us` the task is a dead letter.
    """
    why = options_fault(entry.record) or f"no handler for {entry.record.name!r}"
    entry.errors, since_us = refused(entry, why, core.now_us, core.lease.owner)
    if core.now_us - since_us >= core.settings.unknown_max_us:
        dead_letter(core, entry, "unknown_task")
    else:
        due_at_us = core.now_us + refused_wait_us(entry.errors, core.now_us)
        park(core, entry, due_at_us, "unknown", holds=True)


def adopt(core: CoreState, attempt: Attempt, policy: Policy) -> None:
    """Judge an attempt by the rules of the worker that ran it: this one has none for its task."""
    task_id = attempt.record.task_id
    entry = core.window.entries.get(task_id) or core.timers.parked.get(task_id)
    if entry is not None and not entry.known:
        entry.policy = msgspec.structs.replace(policy, target=ELSEWHERE)


def start_head(core: CoreState, entry: Entry | None) -> None:
    """Make the new holder of an ordering key ready; one that has expired passes the key on."""
    while entry is not None and expire(core, entry):
        name = entry.options.ordering_key
        entry = core.keys.release(name, entry) if name is not None else None
    if entry is not None:
        make_ready(core, entry)


def expire(core: CoreState, entry: Entry) -> bool:
    """End the task if its time is over; return whether it was."""
    if (entry.expires_at_us is None and not core.limits.any) or not core.is_expired(entry):
        return False
    end_unrun(core, entry, "expired")
    return True


def apply_outcome(core: CoreState, entry: Entry, outcome: Outcome) -> None:
    """Carry out what `decide_outcome` says of an attempt that was not simply done."""
    stalled = core.limits.stalled(core.lease.group, entry, outcome, core.now_us)
    verdict = decide_outcome(entry, outcome, core.now_us, core.lease.owner, stalled=stalled)
    verdict = core.commands.overruled(entry, verdict)
    entry.attempts, entry.deaths = verdict.attempts, verdict.deaths
    entry.errors = verdict.errors
    core.pending.usage.add(outcome, verdict.word, ended=verdict.final is not None)
    core.pending.note(entry, verdict.word, core.now_us, outcome,
                     until_us=verdict.due_at_us, reason=verdict.reason)  # fmt: skip
    if verdict.again:  # interrupted: first in its queue, nothing durable has changed
        entry.start_written = False
        entry.move("ready")
        core.ready_queues.push_front(entry)
    elif verdict.final == "dead":
        dead_letter(core, entry, verdict.reason)
    elif verdict.final is not None:
        end(core, entry, verdict.final)
        release_key(core, entry)
    else:
        assert verdict.parked is not None
        park(core, entry, verdict.due_at_us, verdict.parked, holds=True)


def dead_letter(core: CoreState, entry: Entry, reason: str) -> None:
    """End the task as a dead letter."""
    if entry.state == "running":
        end(core, entry, "dead")
    else:
        end_unrun(core, entry, "dead", reason)
    record, errors = entry.record, entry.errors
    if reason == SUBJECT_DROPPED:  # What nobody can read, and what may be about them, is not kept.
        record, errors = emptied(record), errors[-1:]
    core.pending.dead(DeadLetter(record, reason, entry.attempts, entry.deaths, errors))
    release_key(core, entry)


def finish_unrun(core: CoreState, entry: Entry, state: str) -> None:
    """End a task that is not running; its ordering key goes on."""
    end_unrun(core, entry, state)
    release_key(core, entry)


def reschedule(core: CoreState, entry: Entry, due_at_us: int) -> None:
    """Park a task that is not running until `due_at_us`.

    If it holds its ordering key, it goes on holding it.
    """
    holds = core.keys.is_holder(entry.options.ordering_key, entry)
    core.pending.note(entry, "rescheduled", core.now_us, until_us=due_at_us)
    core.pending.awaited = True
    park(core, entry, due_at_us, "delay", holds=holds)


def end_unrun(core: CoreState, entry: Entry, state: str, reason: str | None = None) -> None:
    """End a task without an attempt: by a command, as a dead letter, or as its time is over."""
    core.pending.awaited = core.pending.awaited or state != "expired"
    core.pending.note(entry, state, core.now_us, reason=reason)
    core.pending.usage.add_final(entry.record, state)
    end(core, entry, state)


def end(core: CoreState, entry: Entry, state: str, result: bytes | None = None) -> None:
    """End the task in memory: the next settlement makes it durable."""
    entry.move(state)
    core.window.cover(entry)
    core.pending.end(entry, result)
    if core.suspects.deaths:
        core.suspects.deaths.pop(entry.record.task_id, None)
    if entry.options.schedule is not None:
        core.schedules.ended(entry.options.schedule, entry.record.task_id)


def release_key(core: CoreState, entry: Entry) -> None:
    """Let the next task of its ordering key go on, if it has one."""
    name = entry.options.ordering_key
    if name is not None:
        start_head(core, core.keys.release(name, entry))


def park(
    core: CoreState, entry: Entry, due_at_us: int, reason: Reason, *, holds: bool = False
) -> None:
    """Put the task into the timer table with the next settlement.

    With `holds` its ordering key stays blocked, by the task or for it.
    """
    row = entry.parked(due_at_us, reason, holds=holds)
    ran = entry.state == "running"
    entry.move("parked")
    entry.due_at_us = due_at_us
    entry.postponed = reason in POSTPONED
    entry.unfetched = reason == "unfetched"
    core.window.cover(entry)
    core.pending.park(entry, row, core.now_us, ran=ran)
