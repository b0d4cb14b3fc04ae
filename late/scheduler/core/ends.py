"""Take in how attempts ended, and make that durable by settlements."""

from __future__ import annotations

from collections.abc import Sequence

from late.model.task import PULL_POOL, Outcome, TaskId
from late.scheduler import events_effects as m
from late.scheduler.core.reads import shrink
from late.scheduler.core.settlements.shared_settlement import SharedSettlement
from late.scheduler.core.starts import dispatch
from late.scheduler.core.state import CoreState
from late.scheduler.core.transitions import apply_outcome, end, expire, release_key, start_head
from late.scheduler.task_state import Entry


def finished(core: CoreState, outcomes: Sequence[Outcome]) -> None:
    """Take in how attempts ended; one that nobody waits for is counted and changes nothing."""
    done: list[Outcome] = []
    told = 0
    plain: dict[TaskId, Entry] = {}
    heads: list[Entry] = []
    freed: list[tuple[str, TaskId]] = []
    limited, counted = core.limits.any, core.background or core.ready_queues.keys.counted
    logged, parked = core.window.entries, core.timers.parked
    epoch, deaths = core.lease.epoch, core.suspects.deaths
    for outcome in outcomes:
        attempt = outcome.attempt
        task_id = attempt.record.task_id
        entry = logged.get(task_id) or parked.get(task_id)
        if (
            entry is None
            or entry.state != "running"
            or attempt.epoch != epoch
            or attempt.number != entry.attempts + 1
        ):
            core.late_results += 1
            continue
        if counted:
            core.ran(entry)
        else:
            core.running -= 1  # a call for each task would cost more than this line
        if core.suspects.marked:
            core.pending.awaited = True
            core.suspects.ended(task_id, again=outcome.kind == "interrupted")
        if outcome.kind != "done":
            if outcome.kind == "failed":  # it is judged by what ended before it
                core.limits.outages.done(core.lease.group, done[told:], core.now_us)
                told = len(done)
            apply_outcome(core, entry, outcome)
            continue
        done.append(outcome)
        policy, options = entry.policy, entry.options
        if policy.history:
            core.pending.note(entry, "done", core.now_us, outcome)
        if entry.timer_key is None and not (options.schedule or options.stage or deaths):
            entry.state = "done"  # it is `running`: `move` would look that up
            plain[task_id] = entry
            if policy.result_ttl_us:
                core.pending.keep(entry, outcome.result)
            if options.unique_key is not None:
                freed.append((options.unique_key, task_id))
        else:
            end(core, entry, "done", outcome.result)
        if options.ordering_key is not None:
            head = core.keys.release(options.ordering_key, entry)
            if head is None:
                continue
            late = head.due_at_us > head.record.created_at_us  # it has a queue of its own
            if late or limited or head.expires_at_us is not None or head.deaths or not head.known:
                start_head(core, head)
            else:
                head.state = "ready"  # it is `held`: `move` would look that up
                heads.append(head)
    if freed:
        core.pending.free(freed)
    if heads:
        core.ready_queues.push_all(heads)
    # All come from one pool. A consumer's answer that was taken is recorded at once: its handler
    # runs in a process that goes on when this one dies.
    if done and done[0].target.startswith(PULL_POOL):
        core.pending.awaited = True
    core.pending.usage.add_done(done)
    core.pending.end_all(plain)
    if core.limits.outages.watches:
        core.limits.outages.done(core.lease.group, done[told:], core.now_us)


def settled(core: CoreState, effects: list[m.Effect]) -> None:
    """Take in that the settlement that was out is in the journal."""
    if core.shared is not None:
        end_shared(core, core.shared)
    core.stopped = core.leaves
    settlement, ended, parked = core.pending.settled(core.now_us)
    if core.suspects.out:
        dispatch(core, marked(core), effects)
    if settlement.unparked or settlement.revived:
        core.timers.rows_changed(settlement.unparked, new=bool(settlement.revived))
        core.commands.settled(settlement.revived)
    for task_id in core.window.forget_all([*ended, *parked]):
        core.timers.parked.pop(task_id, None)
    for task_id, (entry, row) in parked.items():
        entry.index = None
        entry.timer_key = (row.due_at_us, task_id)
        if row.reason == "held":
            assert row.held_key is not None
            core.keys.parking_settled(row.held_key)
        elif core.timers.in_memory(entry.timer_key):
            core.timers.parked[task_id] = entry
            entry.move("waiting")
            core.timers.wait(entry)
        elif entry.unfetched:
            core.unclaimed.went(entry.policy.target)
    if core.timers.parked:
        shrink(core)


def end_shared(core: CoreState, shared: SharedSettlement) -> None:
    """Take in that the settlement of a shared transaction is in the journal, or its substitute."""
    core.shared = None
    core.window.counted(shared.arrived)
    if core.pending.out is not shared.settlement:
        return
    for outcome in shared.outcomes:
        task_id = outcome.attempt.record.task_id
        entry = core.window.entries.get(task_id) or core.timers.parked[task_id]
        core.ran(entry)
        if core.suspects.marked or core.suspects.deaths:
            core.pending.awaited = True
            core.suspects.ended(task_id, again=False)
            core.suspects.deaths.pop(task_id, None)
        entry.move("done")
        if entry.options.schedule is not None:
            core.schedules.ended(entry.options.schedule, task_id)
        release_key(core, entry)
        core.window.forget_all([task_id])
        core.timers.parked.pop(task_id, None)
    if core.limits.outages.watches:
        core.limits.outages.done(core.lease.group, shared.outcomes, core.now_us)
    core.limits.outages.settled(core.lease.group, shared.settlement.usage, core.now_us)


def marked(core: CoreState) -> list[Entry]:
    """Return what may start, now that its mark is in the journal."""
    started = []
    marks, core.suspects.out = core.suspects.out, []
    for entry in marks:
        if not core.stopped and not expire(core, entry):
            started.append(entry)
            continue
        core.ready_queues.undo(entry)
        core.ran(entry)
        core.suspects.ended(entry.record.task_id, again=True)
        if entry.state == "expired":
            release_key(core, entry)
        else:
            entry.move("ready")
            core.ready_queues.push_front(entry)
    return started
