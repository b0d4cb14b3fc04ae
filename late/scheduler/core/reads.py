"""A core reads pages of the log, the open tasks of its checkpoint, and parked tasks."""

from __future__ import annotations

from collections.abc import Sequence

from late.model.task import HELD_US, Parked, Record
from late.scheduler import events_effects as m
from late.scheduler.core.state import CoreState
from late.scheduler.core.transitions import admit, come_due, end_unrun, start_head
from late.scheduler.task_state import Entry, first_due_us, from_parked, from_record
from late.store.base import Page, read_below


def ask(core: CoreState, effects: list[m.Effect]) -> None:
    """Ask for all that is to be read: the next page, open tasks, rows of the timer table."""
    if not core.recovered:  # the checkpoint's open tasks come first in their ordering keys
        if not core.asked_open:
            core.asked_open = True
            effects.append(m.Fetch(core.lease.open))
        return
    if not core.reading and not core.full:
        core.reading = True
        effects.append(m.Read(core.window.read_cursor))
    if core.now_us:
        if core.keys.wants:
            effects += [core.timers.asked(load) for load in core.keys.loads()]
        due = core.timers.load(core.now_us)
        if due is not None:
            effects.append(due)
        if core.commands.waiting and (look := core.commands.load()) is not None:
            effects.append(core.timers.asked(look))


def page_read(core: CoreState, page: Page) -> None:
    """Take in a page of the log."""
    core.reading = False
    core.now_us = max(core.now_us, page.now_us)
    known = core.window.entries
    parked = core.timers.parked
    # A store may show a record again (`store/base.py`): what is here already is passed over.
    entries = [
        from_record(record, core.policies)
        for record in page.records
        if record.task_id not in known and record.task_id not in parked
    ]
    before = len(known)
    core.window.append(entries, page)
    if len(entries) < len(page.records) or len(known) < before + len(entries):
        entries = first_rows(core, entries, page)
    if core.commands.missed:
        entries = without_missed(core, entries)
    # A page may hold a later task of a key before an earlier one: nobody takes a key for which that
    # is possible before all of the page is here.
    core.keys.read_below = 0
    admit(core, entries)
    core.keys.read_below = read_below(page.cursor)
    start_opened(core)
    core.commands.page_read(more=page.more)


def without_missed(core: CoreState, entries: list[Entry]) -> list[Entry]:
    """Return the entries but for those whose cancel was read before they were in the log."""
    kept = []
    for entry in entries:
        if core.commands.was_missed(entry.record.task_id, core.now_us):
            entry.inspect()  # Its options say whether a workflow is to hear of it.
            entry.move("ready")
            end_unrun(core, entry, "cancelled")
        else:
            kept.append(entry)
    return kept


def first_rows(core: CoreState, entries: list[Entry], page: Page) -> list[Entry]:
    """Return the entries without second rows of their tasks: those end unrun.

    Only somebody who copies rows makes them. `append` has taken the last row of a task for its
    entry; the first one is.
    """
    window, usage = core.window, core.pending.usage
    first: dict[str, Entry] = {entry.record.task_id: entry for entry in reversed(entries)}
    for entry in entries:
        if entry is not first[entry.record.task_id]:
            window.drop(entry)
    window.entries.update(first)
    for record in page.records:
        task_id = record.task_id
        if (window.entries.get(task_id) or core.timers.parked[task_id]).is_of(record):
            continue  # the store has shown it again
        if task_id not in first:  # the window has not taken it in, and will not count it
            usage.add_arrived([from_record(record, core.policies)], core.now_us)
        usage.add_final(record, "discarded")
        core.replays.refused.append(task_id)
    return [entry for entry in entries if entry is first[entry.record.task_id]]


def start_opened(core: CoreState) -> None:
    """Start the tasks at the head of their keys that need not wait any more."""
    for entry in core.keys.opened():
        start_head(core, entry)


def open_fetched(core: CoreState, records: Sequence[Record]) -> None:
    """Take in the open tasks of the checkpoint.

    They come in order of (sequence, id), so that the first of each ordering key holds it. One that
    is missing was pruned by hand: there is nothing left to run.
    """
    core.recovered = True
    started = {task.task_id for task in core.lease.open if task.started}
    entries = []
    for record in sorted(records, key=lambda r: (r.sequence, r.task_id)):
        entry = from_record(record, core.policies)
        core.window.reopen(entry)
        if record.task_id in started:  # by an owner that cannot record how it ended any more
            core.pending.usage.add_lost(record, entry.policy.target)
        entries.append(entry)
    admit(core, entries)


def parked_loaded(core: CoreState, request: m.Load, parked: Sequence[Parked]) -> None:
    """Take in rows of the timer table, as far as they are news."""
    rows = core.timers.answer(request, parked)
    if core.unclaimed.is_mine(request):
        unclaimed_loaded(core, request, parked, rows)
        return
    entries = [
        take_parked(core, row)
        for row in rows
        # In the window still: it is being parked right now, the journal's answer is to come.
        if row.record.task_id not in core.window.entries
    ]
    if request.held_key is None:
        for entry in entries:
            entry.move("waiting")
            core.timers.wait(entry)
        if request.task_ids:
            # A row that changed while this was on its way is there, and not as it was read.
            taken = {row.record.task_id for row in rows}
            changed = {r.record.task_id for r in parked if r.record.task_id not in taken}
            core.commands.looked(request, changed=changed)
        else:
            shrink(core)
        return
    for entry in entries:
        entry.move("held")
        entry.due_at_us = first_due_us(entry.record, entry.options)
        if entry.due_at_us > core.now_us:  # was rescheduled to an earlier time, unknown here
            entry.due_at_us = entry.record.created_at_us
        entry.held_since_us = core.now_us
    full = len(parked) >= request.limit
    start_head(core, core.keys.loaded(request.held_key, entries, full=full))


def requeue_unclaimed(core: CoreState, effects: list[m.Effect]) -> None:
    """Make ready what was put off because no consumer asked, now that some do.

    Enough of it is taken that the next grant finds some too.
    """
    asked = core.ready_queues.asked()
    # Shared, as `ready_queues` shares what it keeps: what is beyond that is put off again.
    most = max(1, core.settings.limited_max // 2 // max(1, len(asked)))
    wants: dict[str, int] = {}
    for pool in asked:
        few = most - core.ready_queues.ready_for(pool)
        if few < (most + 1) // 2 or not core.unclaimed.may_have((pool,)):
            continue
        called = core.timers.take_unclaimed(pool, few)
        for entry in called:
            unpostpone(core, entry)
        wants[pool] = few - len(called)
    if wants and (load := core.unclaimed.load(wants, core.now_us)) is not None:
        effects.append(core.timers.asked(load))


def unclaimed_loaded(
    core: CoreState, request: m.Load, parked: Sequence[Parked], rows: Sequence[Parked]
) -> None:
    """Take in a load for one pool of a pulled queue."""
    full = len(parked) >= request.limit
    last = (parked[-1].due_at_us, parked[-1].record.task_id) if full else None
    pool = core.unclaimed.answered(last)
    for row in rows:
        # In the window still: it is being parked right now, and is heard of then.
        if row.reason == "unfetched" and row.record.task_id not in core.window.entries:
            target = from_record(row.record, core.policies).policy.target
            if target == pool:
                unpostpone(core, take_parked(core, row))


def unpostpone(core: CoreState, entry: Entry) -> None:
    """Make a task ready that waited for a consumer."""
    entry.due_at_us = core.now_us  # that of its row was only the next look
    come_due(core, entry)


def shrink(core: CoreState) -> None:
    """Forget the later half of what waits in memory, if that is too much."""
    for entry in core.timers.shrink():
        if entry.unfetched:
            core.unclaimed.went(entry.policy.target)


def take_parked(core: CoreState, row: Parked) -> Entry:
    """Take a row of the timer table into memory."""
    record = row.record
    entry = from_parked(row, core.policies)
    core.timers.parked[record.task_id] = entry
    core.suspects.recall_deaths(entry)
    if row.held_key is not None and row.due_at_us < HELD_US:
        core.keys.head_loaded(row.held_key, entry)
    return entry


def load_failed(core: CoreState, request: m.Load | m.Fetch) -> None:
    """Note that a read of the store failed: it is asked again."""
    if isinstance(request, m.Fetch):
        core.asked_open = False
        return
    if core.unclaimed.is_mine(request):
        core.unclaimed.failed()
    core.timers.failed(request)
    core.commands.looked(request, failed=True)
    if request.held_key is not None:
        core.keys.loaded(request.held_key, None, full=False)
