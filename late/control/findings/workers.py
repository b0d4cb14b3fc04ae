"""Findings about workers: alive, standing still, or gone. Pure.

A worker that stands still gives its shards up by a heartbeat that says that it is gone, so no list
of live workers has it. Its own report tells that the process lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from math import inf
from urllib.parse import quote

from late.control.findings.model import Finding
from late.control.findings.phrases import age, count
from late.control.status.snapshot import Snapshot
from late.control.views import Count, Reported, ShardStatus
from late.model.worker_report import Block, Death, Run
from late.tailer.placement import lanes_of

ENDS = "What helps: end this process; others take its shards over, and these tasks run again."
"""Nothing else ends a thread. `late worker --exit-when-stuck` does it by itself."""
UNHEARD = (
    "Workers cannot write their heartbeats meanwhile, so none is listed, although some may live."
)
FREES = (
    "What helps: make this handler a `def`, which runs in a thread, or await what waits there"
    " (asyncio.to_thread)."
)
REPLACED_US = 60_000_000
"""A worker that joined so long before a death counted is taken for the one in its place."""
NAMED = 3
"""Workers, or tasks, that a finding names; the others are counted."""
DUTIES = {
    "answer": "its event loop is blocked",
    "read": "the database does not answer its reads",
    "settle": "the database takes no settlement of it",
    "slots": "handlers that do not end hold every slot",
    "start": "tasks are ready and none starts",
}
"""The meaning of a duty that is left undone; see `late.worker.watch.progress`."""


def standing(seen: Snapshot, group: str | None = None) -> list[Reported]:
    """Return the workers that stand still and were heard of lately, of one group or of all."""
    return [
        each
        for each in seen.reports
        if each.report.stalled and each.fresh and group in (None, *each.report.groups)
    ]


def unheard(seen: Snapshot) -> bool:
    """Return True if no worker is listed, and a reason is known why none could write that it
    lives. Nothing can be said then of what workers do."""
    full = seen.disk is not None and seen.disk.full
    return not seen.status.workers and (seen.write_locked or full)


def unlisted(seen: Snapshot, group: str) -> str:
    """Say which workers of a group own nothing because their list of members leaves them out."""
    told = [
        each.report
        for each in seen.reports
        if each.fresh and each.report.unlisted and group in each.report.groups
    ]
    if not told:
        return ""
    names = ", ".join(sorted({each.unlisted for each in told})[:NAMED])
    return (
        f" {len(told)} workers are not on their list of members (LATE_MEMBERSHIP): {names}. What"
        " helps: put them on the list, or unset LATE_MEMBERSHIP, and restart them."
    )


def unowned(group: str, ours: Sequence[ShardStatus], seen: Snapshot) -> Finding:
    """Say that some shards of a group have no live owner, and why, where that is known."""
    alone = [shard for shard in ours if not shard.owner_live]
    text = f"{len(alone)} of {len(ours)} shards have no live owner."
    text += (why := unlisted(seen, group))
    link = "workers" if why else f"shards?group={quote(group, safe='')}"
    title, command = f"Shards of {group} are not worked", "late status --owners"
    lanes = [] if why else _unserved(group, alone, seen)
    if not lanes:
        return Finding("bad", title, text, link, command)
    waiting = sum((Count(each.in_flight) + each.lag for each in alone), start=Count())
    title = f"No worker serves lane {', '.join(lanes)} of group {group}"
    text += f" {count(waiting)} tasks wait there."
    command = f"late worker MODULE:APP --group {group} --lanes {','.join(lanes)}"
    return Finding("bad" if waiting.n else "warn", title, text, link, command)


def _unserved(group: str, alone: Sequence[ShardStatus], seen: Snapshot) -> list[str]:
    """Return the lanes of shards without an owner that no worker of the group serves."""
    served = [lanes_of(each.version) for each in seen.status.workers if group in each.groups]
    if not all(served):  # One that names no lanes serves all.
        return []
    return sorted({each.lane for each in alone} - {name for some in served for name in some})


def find(seen: Snapshot) -> Iterator[Finding]:
    """Yield what there is to say of the workers."""
    still = standing(seen)
    if not still and not seen.status.workers and not unheard(seen):
        quiet = [each for each in seen.reports if each.report.stalled]
        text = (
            "Nothing runs until one starts. Processes that run and are not listed do not reach the"
            " database, or may not write to it: their logs say which, and late doctor looks."
        )
        if quiet:
            text += (
                f" {quiet[0].report.address} stood still when it was last heard of,"
                f" {age(quiet[0].age_s)} ago: its process may live."
            )
        yield Finding("bad", "No worker is alive", text, "workers", "late worker MODULE:APP")
    yield from _dead(seen, {each.report.worker_id for each in still})
    yield from reported(seen)


def _dead(seen: Snapshot, still: Set[str]) -> Iterator[Finding]:
    """Yield the workers that died and that nobody has replaced, if others are alive; those that
    stand still by their own word are named as such."""
    gone = _unreplaced(
        [each for each in seen.deaths if each.worker_id not in still],
        [each.started_at_us for each in seen.status.workers],
    )
    if not gone or not seen.status.workers:
        return
    latest = max(each.at_us for each in gone)
    many = f"{len(gone)} workers" if len(gone) > 1 else f"Worker {gone[0].address}"
    names = ", ".join(each.address for each in gone[:NAMED])
    more = f" and {len(gone) - NAMED} more" if len(gone) > NAMED else ""
    which = f"{names}{more}. " if len(gone) > 1 else ""
    alive, whose = len(seen.status.workers), "its" if len(gone) == 1 else "their"
    text = (
        f"{which}The last heartbeat ceased to count"
        f" {age(max(0.0, (seen.status.now_us - latest) / 1e6))} ago, and no worker has joined"
        f" since. Others take {whose} shards over; {alive} {'are' if alive > 1 else 'is'} alive."
        " The process ended, stands still, or does not reach the database: its log says which."
    )
    yield Finding("warn", f"{many} stopped answering", text, "workers", "late status", latest)


def _unreplaced(deaths: Sequence[Death], alive: Iterable[int]) -> list[Death]:
    """Return the deaths, the first one first, after which no worker has come.

    Whoever came may have died since, and have been replaced in turn: where a task kills one worker
    after another, each was replaced but the last.

    Args:
        alive: the times at which those that live were started.
    """
    came = [(started_us, inf) for started_us in alive]
    came = sorted([*came, *((each.started_at_us, each.at_us) for each in deaths)])
    gone = []
    for each in sorted(deaths, key=lambda death: death.at_us):
        # Its process ended before its last heartbeat ceased to count.
        for at, (started_us, ended_us) in enumerate(came):
            if started_us >= each.at_us - REPLACED_US and ended_us > each.at_us:
                del came[at]
                break
        else:
            gone.append(each)
    return gone


def reported(seen: Snapshot) -> Iterator[Finding]:
    """Yield what the workers' reports say of them, whether or not the rest is known."""
    still = standing(seen)
    if still:
        known = {each.worker_id for each in seen.status.workers}
        known |= {each.report.worker_id for each in still}
        what = f"{len(still)} of {len(known)} workers stand still"
        texts = [_still(each, seen.status.now_us) for each in still[:NAMED]]
        if len(still) > NAMED:
            texts.append(f"And {len(still) - NAMED} more.")
        text = " ".join(texts)
        runs = [run for each in still for run in each.report.stuck]
        began = [s for each in still if (s := each.report.stalled_since_us) is not None]
        yield Finding("bad", what, text, _link(runs) if runs else "workers", _look(runs, still[0]),
                      min(began, default=None), _groups(still))  # fmt: skip
    for each in seen.reports:
        if each.working and each.report.stuck and not each.report.stalled:
            yield _stuck(each, seen.status.now_us)
        if each.working and each.report.blocked and not each.report.stalled:
            yield _blocked(each, each.report.blocked, seen.status.now_us)


def _still(each: Reported, now_us: int) -> str:
    """Describe one worker that stands still."""
    told = each.report
    why = ", ".join(DUTIES.get(duty, f"it does not {duty}") for duty in told.stalled)
    since_s = max(0.0, (now_us - (told.stalled_since_us or now_us)) / 1e6)
    text = f"{told.address}: {why} ({' '.join(told.stalled)}), for {age(since_s)}."
    if told.blocked:
        text += f" It is at {_place(told.blocked)}. {FREES}"
    if told.stuck:
        text += f" {_runs(told.stuck, now_us)} {ENDS}"
    if told.unrecorded:
        text += f" {told.unrecorded} ends are not recorded: its death repeats these tasks."
    return text


def _blocked(each: Reported, block: Block, now_us: int) -> Finding:
    what = f"The event loop of {each.report.address} is blocked"
    since_s = max(0.0, (now_us - block.since_us) / 1e6)
    text = f"At {_place(block)}, for {age(since_s)}: no other task of this worker gets on. {FREES}"
    return Finding(
        "warn", what, text, _tasks(block.task_id) if block.task_id else "workers",
        _show(block.task_id, each), block.since_us, _groups([each]),
    )  # fmt: skip


def _place(block: Block) -> str:
    of = f", in {block.task}" if block.task else ""
    return block.place + of + (f" (task {block.task_id})" if block.task_id else "")


def _stuck(each: Reported, now_us: int) -> Finding:
    told = each.report
    text = f"{_runs(told.stuck, now_us)} Each holds a slot; {told.slots} there are."
    return Finding(
        "warn", f"Handlers of {told.address} do not end", text, _link(told.stuck),
        _look(told.stuck, each), groups=_groups([each]),
    )  # fmt: skip


def _runs(stuck: tuple[Run, ...], now_us: int) -> str:
    """Name the kinds of tasks whose runs do not end, each with its oldest run."""
    kinds: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(stuck, key=lambda run: run.since_us):
        kinds.setdefault((run.task, run.queue), []).append(run)
    first = [
        f"{task} of queue {queue} (task {runs[0].task_id}) runs for"
        f" {age(max(0.0, (now_us - runs[0].since_us) / 1e6))}"
        + (f", and {len(runs) - 1} more of it" if len(runs) > 1 else "")
        for (task, queue), runs in list(kinds.items())[:NAMED]
    ]
    rest = len(kinds) - NAMED
    more = f"; and {rest} other kind{'' if rest == 1 else 's'} of task" if rest > 0 else ""
    return "; ".join(first) + f"{more}."


def _groups(reports: Sequence[Reported]) -> frozenset[str]:
    return frozenset(group for each in reports for group in each.report.groups)


def _look(runs: Sequence[Run], each: Reported) -> str:
    return _show(_oldest(runs).task_id if runs else "", each)


def _oldest(runs: Sequence[Run]) -> Run:
    """Return the run that a finding names first."""
    return min(runs, key=lambda run: run.since_us)


def _show(task_id: str, each: Reported) -> str:
    if task_id:
        return f"late show {task_id}"
    pid = each.report.address.rpartition(":")[2]
    return f"py-spy dump --pid {pid}"


def _link(runs: Sequence[Run]) -> str:
    return _tasks(_oldest(runs).task_id)


def _tasks(task_id: str) -> str:
    return f"tasks/{quote(task_id, safe='')}"
