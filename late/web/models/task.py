"""One task's life as a timeline. Pure.

Two clocks are used: the producer's for the moment at which the id was made, the database's for all
others. If a history is kept (`late.Retry(history=...)` and such), the timeline has each step.
Without one, it has the contents of the task's rows: failed attempts, the due time of a parked task,
and the moment of its death.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from late.control.views import Reported, StepView, TaskInGroup, TaskView
from late.model.worker_report import Run
from late.observability.traces import trace_id
from late.web.formats import age, fitting, short
from late.web.models.task_axis import Axis, axis

Level = Literal["bad", "warn", "ok"]
_LEVELS: dict[str, Level] = {
    "dead": "bad", "died": "bad", "retried": "warn", "stalled": "warn", "snoozed": "warn",
    "not_capable": "warn", "expired": "warn",
}  # fmt: skip
_NOW: dict[str, str] = {
    "waiting": "waits until the stages before it are done",
    "logged": "waits in the log",
    "open": "runs, or is due within seconds",
    "parked": "is parked",
    "dead": "is a dead letter",
    "settled": "has ended, or its group began or was reset behind it",
    "passed": "is passed over: the group does not read it",
    "unknown": "is not known: it ended long ago, was rolled back, or was never made",
}


MOMENTS = 100
"""The most moments of one timeline: a quarter are the first ones, the others the latest."""
ERRORS_SHOWN = 24 * 1024
"""Characters of errors in one timeline."""
PAYLOAD_SHOWN = 24 * 1024
"""Characters of a payload on a page; a longer one is neither shown whole nor edited here."""


class Moment(msgspec.Struct, frozen=True):
    """One event of the past, or one that is due."""

    at_us: int
    what: str
    detail: str = ""
    error: str = ""
    level: Level = "ok"


class Life(msgspec.Struct, frozen=True):
    """A task in one group."""

    group: str
    state: str
    now: str
    level: Level
    moments: tuple[Moment, ...]
    owner: str | None
    can_cancel: bool
    payload: str | None = None
    """The shown part of this group's payload, if an edit has changed it since the enqueue."""
    whole: bool = False
    """True if the shown part is the whole payload."""
    axis: Axis | None = None


def payload(task: TaskView | TaskInGroup) -> tuple[str | None, bool]:
    """The shown part of the payload, None if it was not asked for; and True if it is all of it."""
    text = task.payload
    return (None, False) if text is None else (text[:PAYLOAD_SHOWN], len(text) <= PAYLOAD_SHOWN)


def lives(task: TaskView, now_us: int = 0, reports: Iterable[Reported] = ()) -> list[Life]:
    """Make one timeline for each group, the first event at the top.

    Args:
        reports: those of the workers, which tell where it runs.
    """
    running: dict[str, dict[str, Run]] = {}
    for each in reports:
        for run in (*each.report.runs, *each.report.stuck) if each.running else ():
            if run.task_id == task.task_id:
                running.setdefault(run.group, {})[each.report.address] = run
    return [_life(task, each, now_us, running.get(each.group, {})) for each in task.groups]


def _running(runs: Mapping[str, Run], now_us: int) -> str:
    """Say where it runs, by the addresses of workers. A `def` handler cannot be ended: it runs on
    in a worker that has lost the task's shard, and the shard's new owner runs it too."""
    latest = sorted(runs.items(), key=lambda each: -each[1].since_us)
    texts = []
    for number, (address, run) in enumerate(latest):
        where = run.where or f"worker {address}"
        which = f", attempt {run.attempt}" if run.attempt > 1 else ""
        ran = age(max(0.0, (now_us - run.since_us) / 1e6))
        before = ", from before its shard moved" if number else ""
        texts.append(f"{'still ' if number else 'runs '}in {where} for {ran}{which}{before}")
    return "; ".join(texts)


def _life(task: TaskView, group: TaskInGroup, now_us: int, runs: Mapping[str, Run]) -> Life:
    running = _running(runs, now_us)
    began_us = min((run.since_us for run in runs.values()), default=None)
    own, whole = payload(group)
    moments = _fitting(sorted([*_begin(task), *_steps(group)], key=lambda each: each.at_us))
    level: Level = {"dead": "bad", "parked": "warn"}.get(group.state, "ok")  # type: ignore[assignment]
    return Life(
        group=group.group,
        state=group.state,
        now=f"has ended: {group.outcome}" if group.outcome else _now(group, running),
        level=level,
        moments=tuple(moments),
        owner=group.owner,
        can_cancel=group.state in ("waiting", "logged", "open", "parked"),
        payload=own,
        whole=whole,
        axis=axis(task, group, now_us, began_us),
    )


def _fitting(moments: list[Moment]) -> list[Moment]:
    """Keep the first and the last of many moments, and cut their errors to the bound of a page."""
    left = len(moments) - MOMENTS
    if left > 0:
        begin, end = moments[: MOMENTS // 4], moments[MOMENTS // 4 + left :]
        note = Moment(end[0].at_us, f"{left} more before", "late show has all of them")
        moments = [*begin, note, *end]
    texts = fitting([each.error for each in moments], ERRORS_SHOWN)
    return [replace(each, error=text) for each, text in zip(moments, texts, strict=True)]


def _now(group: TaskInGroup, running: str) -> str:
    return running if running and group.state == "open" else _NOW[group.state] + _why(group)


def _why(group: TaskInGroup) -> str:
    words = f" ({group.reason})" if group.reason else ""
    if group.held_key is not None:
        words += f", behind the ordering key {group.held_key!r}"
    if group.attempts:
        words += f", after {group.attempts} attempt{'s' if group.attempts > 1 else ''}"
    if group.deaths:
        words += f", {group.deaths} worker{'s' if group.deaths > 1 else ''} died under it"
    return words


def _begin(task: TaskView) -> Iterator[Moment]:
    yield Moment(task.made_at_us, "Made", "by the producer's clock")
    if task.created_at_us is not None:
        yield Moment(task.created_at_us, "Enqueued", f"in shard {task.shard_id}")


def _steps(group: TaskInGroup) -> Iterator[Moment]:
    if group.history:
        for step in group.history:
            yield from _step(step)
    else:
        for each in group.errors:
            text = f"on {each.worker}" if each.worker else ""
            yield Moment(each.at_us, f"Attempt {each.attempt} failed", text, each.error, "warn")
        if group.dead_at_us is not None:
            yield Moment(group.dead_at_us, "Died", group.reason or "", level="bad")
    if group.due_at_us is not None:
        yield Moment(group.due_at_us, "Due", group.reason or "")


def _step(step: StepView) -> Iterator[Moment]:
    detail = step.detail
    number = "" if detail.attempt is None else f"attempt {detail.attempt}"
    if detail.started_at_us is not None:
        ran = "" if detail.busy_us is None else f"ran {age(detail.busy_us / 1e6)}"
        about = ", ".join(filter(None, (number, ran, detail.target, f"on {step.worker}")))
        yield Moment(detail.started_at_us, "Started", about)
    words = ", ".join(filter(None, (number, detail.reason)))
    level = _LEVELS.get(step.event, "ok")
    yield Moment(step.at_us, step.event.replace("_", " ").capitalize(), words,
                 detail.error or "", level)  # fmt: skip


class Link(msgspec.Struct, frozen=True):
    """One place that has more of a task."""

    label: str
    text: str
    href: str = ""
    outside: bool = False
    """It leads to another host."""


def links(task: TaskView, trace_url: str | None = None, root: str = "/ui/") -> list[Link]:
    """Return the trace of a task, its workflow, the tasks of its key, and what its queue costs.

    Args:
        trace_url: the address of a trace, with `{trace}` in place of its id.
    """
    found = []
    if trace := trace_id(task.headers):
        href = trace_url.replace("{trace}", trace) if trace_url else ""
        found.append(Link("Trace", trace, href, outside=True))
    if task.workflow:
        first = task.workflow[0].task_id
        found.append(Link("Workflow", f"{len(task.workflow)} stages", f"{root}workflows/{first}"))
    key = (task.options or {}).get("ordering_key")
    if isinstance(key, str):
        where = f"{root}tasks?state=parked&queue={quote(task.queue or '', safe='')}"
        found.append(Link("Key", short(key), f"{where}&key={quote(key, safe='')}"))
    if task.queue:
        found.append(Link("Cost", f"of queue {task.queue}", f"{root}cost"))
    return found
