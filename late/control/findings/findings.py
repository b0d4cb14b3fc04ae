"""Find what is wrong in one look at a deployment: what, its cause, and the command that helps.

The overview, `late top` and `late doctor` show this list, so they never disagree. Its limits are
those of the alerts (`late.observability.alerts`). What causes others comes first within its level:
a target that is away, workers that stand still, before the queues that are late because of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from urllib.parse import quote, urlencode

from late.control.findings import (
    conflicts,
    database,
    machines,
    outages,
    queue_circuits,
    schedules,
    targets,
    tasks,
    tenants,
    workers,
)
from late.control.findings.model import Finding, Level, before, following
from late.control.findings.phrases import age, count, number
from late.control.status import real_groups
from late.control.status.snapshot import Snapshot
from late.control.status_views import ObjectiveView
from late.control.views import GroupView, QueueStatus, Status
from late.model.queue_settings import QueueSettings
from late.model.validation import is_name
from late.model.worker_report import Failing
from late.observability.alerts.rules import FRESHNESS_S, OBJECTIVE_S

SKIPS = 0.1
"""The part of the tasks that a group may skip because they are too old, without a finding."""
BURNS: tuple[tuple[str, str, float, Level], ...] = (
    ("1h", "5m", 14.4, "bad"),
    ("6h", "30m", 6.0, "warn"),
)
"""Two windows, the burn rate that both must pass, and what it is then; as the alerts have them."""
FAILING, FAILING_BAD = 0.05, 0.5
"""Parts of attempts that fail: from the first on it is a warning, from the second on an outage."""


def findings(seen: Snapshot) -> list[Finding]:
    """List everything that an operator should look at: the worst first, causes before effects."""
    if seen.partial:  # nothing else is known: that there is no worker, for one
        found = list(database.find(seen))
        cause = found[0] if seen.holders else None
        return [*found, *(_after(cause, each) for each in workers.reported(seen))]
    whole, seen = seen, real_groups.of_snapshot(seen)
    causes = [
        *database.find(seen),
        *workers.find(seen),
        *tasks.find(seen),
        *targets.find(seen),
        *queue_circuits.find(seen),
        *conflicts.find(seen),
        *_outages(seen),
        *tenants.find(seen),
        *schedules.find(seen),
    ]
    found = [
        *_shadows(whole),
        *machines.find(seen),  # they hold nothing up yet
        *causes,
        *(each for group in seen.groups for each in _of_group(group, seen, _cause(group, causes))),
        *_unhandled(seen),
        *(each for of in seen.status.objectives for each in _of_objective(of)),
        *(
            each
            for queue in seen.status.queues
            for each in _of_queue(queue, seen.queues.get(queue.queue, QueueSettings()), seen.status)
        ),
    ]
    return sorted(found, key=lambda each: each.level != "bad")


def _cause(group: GroupView, causes: Sequence[Finding]) -> Finding | None:
    """Return the worst of `causes` that may hold the group up."""
    ours = (each for each in causes if each.concerns(group.name, group.queues))
    return min(ours, key=lambda each: each.level != "bad", default=None)


def _after(cause: Finding | None, effect: Finding, *, sure: bool = True) -> Finding:
    return effect if cause is None else following(effect, cause, sure=sure)


def _outages(seen: Snapshot) -> Iterator[Finding]:
    """Yield the outages; one of a task that conflicts with another follows from that."""
    causes = conflicts.causes(seen)
    for task, outage in outages.find(seen):
        yield _after(causes.get(task), outage)


def _shadows(seen: Snapshot) -> Iterator[Finding]:
    """Yield the shadows that keep tasks in the log while nobody works them."""
    for group in seen.groups:
        if group.shadow_of is None or group.workers or not group.lag.n or workers.unheard(seen):
            continue
        where = f"groups/{quote(group.name, safe='')}"
        text = f"The log keeps {count(group.lag)} for it, the oldest for {age(group.lag_s)}."
        yield Finding("warn", f"Nobody works the shadow {group.name}", text, where,
                      f"late group show {group.name}")  # fmt: skip


def failing(share: float) -> Level:
    """Return the level of a part of attempts that fails."""
    return "bad" if share >= FAILING_BAD else "warn" if share >= FAILING else "ok"


def _unhandled(seen: Snapshot) -> Iterator[Finding]:
    for of in seen.status.unhandled:
        text = f"{count(of.waiting)} of queue {of.queue} wait, the first for {age(of.since_s)}."
        text += _able(of.handlers)
        link = "tasks?state=parked&reason=unknown&name=" + quote(of.task, safe="")
        command = "late check MODULE:APP"
        if of.handlers:
            command = f"late tasks list parked --reason unknown --name {shlex.quote(of.task)}"
        yield Finding("bad", f"No worker of {of.group} can run {of.task}", text, link, command)


def _able(handlers: int | None) -> str:
    """Say how many live workers have a handler, where that is known."""
    if handlers is None:
        return ""
    words = "worker has" if handlers == 1 else "workers have"
    # What shares a transaction, or is of a batch, is given to no other worker.
    why = ": the arguments do not fit, or the owner of its shard has none (late show ID)"
    return f" {handlers or 'No'} live {words} a handler{why if handlers else ''}."


def _of_group(group: GroupView, seen: Snapshot, cause: Finding | None) -> Iterator[Finding]:
    where = f"groups/{quote(group.name, safe='')}"
    ours = [shard for shard in seen.status.shards if shard.group == group.name]
    homeless = sum(not shard.owner_live for shard in ours)
    start = f"late worker MODULE:APP --group {group.name}"
    if group.state == "paused":
        if group.lag.n:
            text = f"{count(group.lag)} wait, the oldest for {age(group.lag_s)}."
            text += _by("group", group.name, seen.status)
            yield Finding("warn", f"Group {group.name} is paused", text, where,
                          f"late group resume {group.name}",
                          _since("group", group.name, seen.status))  # fmt: skip
        return
    if group.state == "unregistered":
        text = "It has no row of its own."
        yield Finding("warn", f"Group {group.name} is not registered", text, where,
                      f"late group create {group.name}")  # fmt: skip
    if homeless and group.workers:
        unowned = workers.unowned(group.name, ours, seen)
        yield unowned
        cause = cause or unowned
    elif homeless and group.lag.n and not _known_to_live(group.name, seen):
        text = f"No live worker serves it; {count(group.lag)} wait."
        cause = Finding("bad", f"Nobody works group {group.name}", text, "workers", start,
                        before(seen.status.now_us, group.lag_s))  # fmt: skip
        yield cause
    yield from _failures(group.name, seen)
    yield from _skips(group, seen)
    if group.lagging:
        text = f"The oldest that it has not read is {age(group.lag_s)} old."
        lags = Finding("bad", f"Group {group.name} lags", text, where, "late groups",
                       before(seen.status.now_us, group.lag_s))  # fmt: skip
        yield _after(cause, lags, sure=False)
    elif group.stale_s is not None and group.stale_s > FRESHNESS_S:
        text = f"Only what is older than {age(group.stale_s)} is done.{_pace(group.name, seen)}"
        helps, command = _cure(group, seen)
        helps = "" if cause else helps  # What helps against the cause helps.
        stale = Finding("warn", f"Group {group.name} is stale", text + helps, where, command,
                        before(seen.status.now_us, group.stale_s))  # fmt: skip
        yield _after(cause, stale, sure=False)


def _known_to_live(group: str, seen: Snapshot) -> bool:
    """Return whether another finding says why no worker of this group is listed."""
    return bool(workers.standing(seen, group)) or workers.unheard(seen)


def _skips(group: GroupView, seen: Snapshot) -> Iterator[Finding]:
    """Yield a group that skips much because it is too old."""
    pace = seen.signals.get(group.name)
    if group.max_age_s is None or pace is None or not pace.expired:
        return
    share = pace.expired / (pace.expired + pace.rate)
    if share >= SKIPS:
        text = (
            f"{number(pace.expired)}/s, {share:.0%} of what came to their turn in the last minute,"
            f" was older than {age(group.max_age_s)} or over its own time, and never ran."
        )
        yield Finding("warn", f"Group {group.name} skips tasks", text,
                      f"groups/{quote(group.name, safe='')}",
                      f"late group show {group.name}")  # fmt: skip


def _cure(group: GroupView, seen: Snapshot) -> tuple[str, str]:
    """Return what helps a group that falls behind, and its command: workers only where they do."""
    pace, look = seen.signals.get(group.name), f"late group show {group.name}"
    if pace is None or not pace.backlog:
        return "", look
    if pace.helped == 0 or (pace.helped is None and pace.limits):
        return " More workers do not help: what helps is to raise or mend that limit.", look
    if pace.shards and pace.workers >= pace.shards:
        text = " What helps: more tasks at once in each worker (--concurrency); each shard has one."
        return text, look
    text = " What helps: more workers, or more tasks at once in each (--concurrency)."
    return text, f"late worker MODULE:APP --group {group.name}"


def _pace(group: str, seen: Snapshot) -> str:
    """Say what keeps a group behind, as far as its pace shows it."""
    pace = seen.signals.get(group)
    if pace is None or not pace.backlog:
        return ""
    well = pace.rate - pace.failed
    more = any(each.lag.capped for each in seen.groups if each.name == group)
    took = f" {number(pace.backlog)}{'+' if more else ''} wait"
    if not pace.workers:  # What ended was the work of those that were alive.
        return f"{took}."
    if pace.moving:  # What others end says nothing of what is held back.
        took += f", and {number(well)}/s end"
        but = " for all but what is held back" if pace.moving < pace.backlog else ""
        that = f": that takes {'more than ' if more else ''}{age(pace.moving_s)}{but}"
        took += that if well > 0 else ""
    took += "."
    return took + (f" It is limited: {', '.join(pace.limits[:2])}." if pace.limits else "")


def _failures(group: str, seen: Snapshot) -> Iterator[Finding]:
    """Yield what fails, by queue where the queues are known, but for what an outage explains."""
    explained = outages.queues_of(seen)
    of_queue, of_task = tasks.causes(seen), conflicts.causes(seen) | targets.causes(seen)
    of_target = targets.causes_by_queue(seen)
    limited = {each.queue for each in seen.status.limited if each.group == group}
    paces = {
        queue: pace
        for (of, queue), pace in sorted(seen.paces.items())
        if of == group and (of, queue) not in explained
    }
    if not any(of == group for of, _ in seen.paces) and group in seen.signals:
        paces = {"": seen.signals[group]}
    dead = {queue.queue for queue in seen.status.queues if queue.group == group and queue.dead.n}
    for name, pace in paces.items():
        share = pace.failed / pace.rate if pace.rate else 0.0
        if failing(share) == "ok":
            continue
        text = f"{number(pace.failed)}/s, {share:.0%} of its attempts, in the last minute."
        what = f"queue {name} ({group})" if name else f"group {group}"
        given = {"group": group} | ({"queue": name} if name else {})
        options = " ".join(f"--{word} {value}" for word, value in given.items())
        state, path = "dead list", "dead"
        if name and name not in dead:  # They are tried again.
            # Where a circuit is open, most wait for it and few for a retry.
            why = "limited" if name in limited and (group, name) in of_target else "retry"
            state, path = f"tasks list parked --reason {why}", f"tasks?state=parked&reason={why}"
        path += ("&" if "?" in path else "?") + urlencode(given)
        last = _last(seen, group, name)
        cause = of_queue.get(name) or of_target.get((group, name))
        if last is not None:
            text += f" The last error, of {last.task}: {last.error}."
            cause = cause or of_task.get(last.task)
        fails = Finding(failing(share), f"Tasks of {what} fail", text, path,
                        f"late {state} {options}")  # fmt: skip
        yield _after(cause, fails)


def _last(seen: Snapshot, group: str, queue: str) -> Failing | None:
    """Return the task of the last attempt that failed, as far as workers report it."""
    told = [
        failing
        for each in seen.reports
        if each.fresh
        for failing in each.report.failing
        if failing.group == group and queue in ("", failing.queue)
    ]
    return max(told, key=lambda each: each.error_at_us, default=None)


def _of_objective(of: ObjectiveView) -> Iterator[Finding]:
    """Yield an objective that is missed, by the limits of the alerts."""
    for long, short, most, level in BURNS:
        rate = of.burn(long)
        if rate > most and of.burn(short) > most:
            text = (
                f"{_late(of, long, rate)}; {1 - of.share:.0%} may be. The error budget burns"
                f" {number(rate)} times too fast, {of.budget_left:.0%} of it is left."
            )
            name, where, command = _subject(of)
            yield Finding(level, f"{name} misses its objective", text, where, command)
            return


def _late(of: ObjectiveView, window: str, rate: float) -> str:
    """Say how much of a window was late: of its starts, or of its time where nothing started."""
    part = f"{rate * (1 - of.share):.0%}"
    if of.starts(window) or not of.overdue_s:
        return f"{part} of what started in {window} was later than {age(of.objective_s)}"
    return (
        f"Nothing started in {window}. The oldest task waits for"
        f" {age(of.objective_s + of.overdue_s)}, {age(of.overdue_s)} longer than the objective:"
        f" {part} of that time counts as late"
    )


def _subject(of: ObjectiveView) -> tuple[str, str, str]:
    """Return the name of what has the objective, its screen and the command that shows it."""
    if not of.queue:
        return (f"Group {of.group}", f"groups/{quote(of.group, safe='')}",
                f"late group show {of.group}")  # fmt: skip
    return (f"Queue {of.queue} ({of.group})", f"queues/{quote(of.queue, safe='')}",
            f"late status --queue {of.queue}")  # fmt: skip


def _by(kind: str, name: str, status: Status) -> str:
    """Say who paused a thing and how long ago, where the audit tells it."""
    pause = status.pause(kind, name)
    if pause is None or pause.since_us is None:
        return ""
    return f" {pause.by} paused it {age(max(0.0, (status.now_us - pause.since_us) / 1e6))} ago."


def _since(kind: str, name: str, status: Status) -> int | None:
    """Return since when a thing is paused, where the audit tells it."""
    pause = status.pause(kind, name)
    return None if pause is None else pause.since_us


def _of_queue(queue: QueueStatus, settings: QueueSettings, status: Status) -> Iterator[Finding]:
    objective_s = settings.objective_s or OBJECTIVE_S
    if not (settings.paused or settings.closed or queue.dead.n) and (
        queue.oldest_age_s is None or queue.oldest_age_s <= objective_s
    ):
        return  # Most queues of a deployment are well.
    where = f"queues/{quote(queue.queue, safe='')}"
    name = f"{queue.queue} ({queue.group})"
    waits = queue.depth + queue.in_flight
    if settings.paused and waits.n:
        text = f"{count(waits)} wait, the oldest for {age(queue.oldest_age_s)}."
        text += _by("queue", queue.queue, status)
        yield Finding("warn", f"Queue {name} is paused", text, where,
                      f"late queue resume {queue.queue}",
                      _since("queue", queue.queue, status))  # fmt: skip
    elif queue.oldest_age_s is not None and queue.oldest_age_s > objective_s:
        text = f"The oldest is {age(queue.oldest_age_s)} old; its objective is {age(objective_s)}."
        level: Level = "bad" if settings.severity == "page" else "warn"
        yield Finding(level, f"Queue {name} is behind", text, where,
                      f"late status --queue {queue.queue}",
                      before(status.now_us, queue.oldest_age_s - objective_s))  # fmt: skip
    if settings.closed:
        yield Finding("warn", f"Queue {name} is closed", "It refuses new tasks.", where,
                      f"late queue set {queue.queue} closed=off")  # fmt: skip
    if queue.dead.n:
        link = f"dead?queue={quote(queue.queue, safe='')}&group={quote(queue.group, safe='')}"
        text = f"{count(queue.dead)} wait for a retry or a purge."
        if queue.killed.n:
            text += (
                f" Workers died under {count(queue.killed)} of them (killed_worker). What helps:"
                " mend their code, and only then retry them."
            )
        yield Finding("warn", f"Dead letters in {name}", text, link,
                      f"late dead list {_of(queue.queue)} --group {queue.group}")  # fmt: skip


def _of(queue: str) -> str:
    """Return the option that lists a queue's dead letters. Plain SQL makes rows whose queue is no
    name, and commands refuse those."""
    return f"--queue {queue}" if is_name(queue) else "--reason invalid_name"
