"""Queues and their settings: the list, one queue, and the preview of a change. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from late.autoscaler.keda.demand import Signals
from late.control.findings.findings import failing
from late.control.findings.model import Level
from late.control.findings.outages import queues_of
from late.control.views import Count, QueueStatus
from late.model import queue_settings
from late.model.queue_settings import Kind, QueueSettings
from late.observability.alerts.rules import OBJECTIVE_S
from late.web.formats import age, number
from late.web.snapshot import Snapshot

PAGE = 50
PREFIX = "knob."
"""The prefix of the names of the form's fields."""
LEVELS: tuple[Level, ...] = ("bad", "warn", "ok")
FLAGS = frozenset({"paused", "closed", "smart_retry"})
HELP: Mapping[str, str] = {
    "paused": "start nothing of it",
    "closed": "refuse new tasks",
    "max_backlog": "refuse new tasks while so many are unfinished",
    "concurrency": "attempts at once in the fleet, one at least in each worker; or auto",
    "rate": "starts a second in the fleet",
    "burst": "starts that may come at once",
    "retry_budget": "retries, as a share of first attempts",
    "retry_min": "retries a second that are always allowed",
    "breaker": "share of failed calls that opens the circuit",
    "breaker_calls": "calls in 10 s below which it stays closed",
    "breaker_open_s": "seconds it stays open at first",
    "smart_retry": "in an outage a failure uses no attempt",
    "slow_start_s": "seconds from a tenth to all of it",
    "fair_key": "header that names the tenant",
    "fair_share": "most of the slots for one tenant",
    "key_concurrency": "attempts at once of one limit key",
    "key_rate": "starts a second of one limit key",
    "key_backlog": "refuse new tasks of one limit key while so many are unfinished",
    "foreground": "foreground starts for one of background",
    "timeout_s": "seconds that an attempt may take",
    "expires_s": "seconds of waiting after which a task never runs",
    "fresh_first_s": "seconds of waiting after which the newest go first",
    "spread_s": "seconds over which equal due times are spread",
    "owner": "who answers for it and pays",
    "severity": "what an alert is worth",
    "late_share": "share of a Celery task's calls for late",
    "objective_s": "seconds that its oldest task may wait",
}


class Row(msgspec.Struct, frozen=True):
    """One queue in one group."""

    status: QueueStatus
    settings: QueueSettings
    level: Level
    badges: tuple[str, ...]
    """The words of its state: at least one."""
    pace: Signals | None = None
    """The latest figures of the queue; None if it has no tasks."""


class Listed(msgspec.Struct, frozen=True):
    """One page of the list."""

    rows: tuple[Row, ...]
    after: str | None
    """The mark behind which the next page begins; None on the last page."""


class Field(msgspec.Struct, frozen=True):
    """One setting in the form."""

    name: str
    help: str
    kind: Literal["flag", "severity", "text"]
    value: str
    """The value as one would type it; empty if it is not set."""
    default: str


class Change(msgspec.Struct, frozen=True):
    """One setting in a preview."""

    name: str
    before: str
    after: str


def rows(seen: Snapshot) -> list[Row]:
    """Make a row of every queue that has tasks or settings: those in trouble first, and ascending
    by name and group among those of one level.

    A queue with settings and without tasks is listed too: it may have been renamed in the code, and
    its settings then have no effect any more.
    """
    known = {queue.queue for queue in seen.status.queues}
    quiet = [QueueStatus(group="", queue=name) for name in seen.queues if name not in known]
    away = queues_of(seen)
    stopped = {group.name for group in seen.groups if group.state == "paused"}
    found = [
        _row(
            queue,
            seen.queues.get(queue.queue, QueueSettings()),
            seen.paces.get((queue.group, queue.queue)),
            is_away=(queue.group, queue.queue) in away,
            is_stopped=queue.group in stopped,
        )
        for queue in [*seen.status.queues, *quiet]
    ]
    return sorted(found, key=_mark)


def _row(
    queue: QueueStatus,
    settings: QueueSettings,
    pace: Signals | None,
    *,
    is_away: bool,
    is_stopped: bool,
) -> Row:
    badges = [word for word in ("paused", "closed") if getattr(settings, word)]
    share = pace.failed / pace.rate if pace and pace.rate else 0.0
    fails: Level = "bad" if is_away else failing(share)
    late = (queue.oldest_age_s or 0.0) > (settings.objective_s or OBJECTIVE_S)
    if is_stopped:
        badges.append("group paused")
    if fails != "ok":
        badges.append("failing")
    if late:
        badges.append("behind")
    warn = bool(badges) or queue.dead.n > 0
    limits = pace.limits if pace and not settings.paused else ()
    badges += [f"limited by {_limit(queue.queue, why)}" for why in limits]
    level: Level = "bad" if late or fails == "bad" else "warn" if warn else "ok"
    badges = badges or [_calm(queue, pace)]
    badges += ["dead letters"] * (queue.dead.n > 0)
    return Row(queue, settings, level, tuple(badges), pace)


def _limit(queue: str, why: str) -> str:
    """Return a limit without the queue, whose row it is in."""
    return why.removeprefix(f"queue {queue} has ").removeprefix(f"{queue} waits for ")


def _calm(queue: QueueStatus, pace: Signals | None) -> str:
    """Return the word for a queue with which nothing is wrong."""
    if not queue.group:
        return "no tasks"
    if queue.in_flight.n or (pace is not None and pace.rate > 0):
        return "working"
    return "waiting" if queue.depth.n else "idle"


def listed(
    found: Sequence[Row], *, text: str = "", group: str = "", after: str = "", most: int = PAGE
) -> Listed:
    """Make one page behind `after` of rows whose queue contains `text`; no `group` means all."""
    wanted = [
        row
        for row in found
        if text.lower() in row.status.queue.lower()
        and group in ("", row.status.group)
        and _mark(row) > after
    ]
    page = wanted[:most]
    return Listed(tuple(page), _mark(page[-1]) if len(wanted) > most else None)


def _mark(row: Row) -> str:
    # The space sorts before every character of a name, so marks sort as their parts do.
    return f"{LEVELS.index(row.level)} {row.status.queue} {row.status.group}"


def form(
    settings: QueueSettings,
    defaults: QueueSettings = queue_settings.LOCAL,
    kind: Kind = "queue",
    sent: Mapping[str, str] | None = None,
) -> list[Field]:
    """Make a field of every setting that a queue or a target can have; `sent` texts come first."""
    found = []
    for name in queue_settings.NAMES:
        if kind == "target" and name in queue_settings.QUEUE_ONLY:
            continue
        input_: Literal["flag", "severity", "text"] = (
            "flag" if name in FLAGS else "severity" if name == "severity" else "text"
        )
        default = typed(getattr(defaults, name)) or ("off" if name in FLAGS else "none")
        value = (sent or {}).get(PREFIX + name, typed(getattr(settings, name)))
        found.append(Field(name, HELP[name], input_, value, default))
    return found


def typed(value: object) -> str:
    """Format a setting as one would type it; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def changes(before: QueueSettings, fields: Mapping[str, str]) -> dict[str, Any]:
    """The changes that the form asks for: only settings whose text differs from the present one.

    Raises:
        InvalidPolicy: a value has the wrong type; the message contains the setting's name.
    """
    words = []
    for name in queue_settings.NAMES:
        text = fields.get(PREFIX + name)
        if text is not None and text != typed(getattr(before, name)):
            words.append(f"{name}={text or 'default'}")
    return queue_settings.parse(words)


def preview(before: QueueSettings, after: QueueSettings) -> list[Change]:
    """List the settings that would change."""
    pairs = ((n, typed(getattr(before, n)), typed(getattr(after, n))) for n in queue_settings.NAMES)
    return [Change(n, old or "default", new or "default") for n, old, new in pairs if old != new]


def effects(
    before: QueueSettings,
    after: QueueSettings,
    of_queue: Iterable[QueueStatus],
    signals: Iterable[Signals],
) -> list[str]:
    """Describe the effects of a change in sentences, as far as the present figures show them."""
    queues, paces = list(of_queue), list(signals)
    waits = sum((queue.depth + queue.in_flight for queue in queues), start=Count())
    rate = sum(each.rate for each in paces)
    busy_s = max((each.busy_s for each in paces), default=0.0)
    found = []
    if after.paused and not before.paused:
        found.append(
            f"Nothing more starts; {waits.n:,} tasks wait, {number(rate)} attempts/s ended lately."
        )
    if before.paused and not after.paused:
        found.append(f"{waits.n:,} tasks may start within seconds.")
    if after.closed and not before.closed:
        found.append("Producers are refused (QueueFull); what is there still runs.")
    most = _most(after, busy_s)
    if most < _most(before, busy_s) or (most < math.inf and after != before and waits.n):
        found.append(f"At most {number(most)}/s start, where {number(rate)}/s did so lately.")
        if waits.n and not after.paused:
            found.append(f"The {waits.n:,} that wait take at least {age(waits.n / most)}.")
    oldest = max((queue.oldest_age_s or 0.0 for queue in queues), default=0.0)
    if after.expires_s is not None and after.expires_s != before.expires_s:
        word = "would end" if oldest > after.expires_s else "would not end yet"
        found.append(f"Tasks that wait longer never run: the oldest ({age(oldest)}) {word}.")
    if (
        after.max_backlog is not None
        and waits.n >= after.max_backlog
        and after.max_backlog != before.max_backlog
    ):
        found.append(f"Producers are refused at once: {waits.n:,} wait already.")
    return found


def _most(settings: QueueSettings, busy_s: float) -> float:
    """The starts per second that the settings allow."""
    by_rate = settings.rate or math.inf
    slots = settings.concurrency
    by_slots = slots / busy_s if isinstance(slots, int) and busy_s > 0 else math.inf
    return min(by_rate, by_slots)
