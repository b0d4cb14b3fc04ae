"""Tasks in one state: the model of their screen. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from late.control.task_list.model import (
    COMMANDED,
    SAYS,
    STATES,
    ListedTask,
    State,
    TaskFilter,
    TaskPage,
    cursor_of,
)
from late.errors import ConfigError
from late.model.ids import shard_of
from late.model.task import HELD_US
from late.model.time_text import instant
from late.web.formats import age, short

PAGE = 50
OVERDUE_S = 30.0
"""Owners read due tasks every few seconds. A task that is overdue for longer than this has no
owner, or one that cannot start it."""
TEXTS = ("group", "queue", "name", "reason", "key", "tenant")
FIELDS = (*TEXTS, "older", "longer", "since", "until")
"""Fields of the filter, as the form and the links name them."""
RAN: tuple[State, ...] = ("running", "done")
"""States whose tasks have a running time."""
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(s|m|h|d)\Z")
_UNITS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_MARK = "id."


class TaskRow(msgspec.Struct, frozen=True):
    """One row."""

    view: ListedTask
    level: Literal["bad", "warn", "ok"]
    time_us: int | None
    """The time that matters in this state; None for what does not wait for one."""
    wait: str
    """The time that it waits, runs, or has waited."""
    where: str
    """The worker, the target or the consumer."""
    ran: str = ""
    """The running time of its last attempt, if it is done."""


class Tasks(msgspec.Struct, frozen=True):
    """One page."""

    state: State
    says: str
    rows: tuple[TaskRow, ...]
    after: str | None
    """The next page begins here; None on the last page."""
    looked: int
    stopped: bool
    can_command: bool


def tasks(
    page: TaskPage,
    *,
    ours: Callable[[str | None], bool] = lambda queue: True,
    longer_us: int = 0,
) -> Tasks:
    """Make the model of a page.

    Args:
        ours: tells whether tasks of a queue are shown.
        longer_us: those that ran for less are left out.
    """
    rows = tuple(
        _row(page.state, task, page.now_us)
        for task in page.tasks
        if ours(task.queue) and (not longer_us or _ran_us(task, page.now_us) >= longer_us)
    )
    return Tasks(page.state, SAYS[page.state], rows, cursor_of(page.after), page.looked,
                 page.stopped, page.state in COMMANDED)  # fmt: skip


def _ran_us(task: ListedTask, now_us: int) -> int:
    """Return how long an attempt ran, or has run until now; -1 where that is not known."""
    return -1 if task.began_at_us is None else (task.ended_at_us or now_us) - task.began_at_us


def _row(state: State, task: ListedTask, now_us: int) -> TaskRow:
    where = task.worker or ""
    if state == "parked":
        if task.due_at_us is None or task.due_at_us >= HELD_US:
            return TaskRow(task, "ok", None, "behind its key", where)
        in_s = (task.due_at_us - now_us) / 1e6
        late = in_s < -OVERDUE_S
        wait = f"overdue {age(-in_s)}" if in_s < 0 else f"in {age(in_s)}"
        return TaskRow(task, "warn" if late else "ok", task.due_at_us, wait, where)
    at_us = task.began_at_us if state == "running" else task.ended_at_us or task.created_at_us
    level: Literal["bad", "ok"] = "bad" if state == "dead" else "ok"
    since = "" if at_us is None else age(max(0, now_us - at_us) / 1e6)
    ran_us = _ran_us(task, now_us) if state == "done" else -1
    return TaskRow(task, level, at_us, since, where, age(ran_us / 1e6) if ran_us >= 0 else "")


def state_of(fields: Mapping[str, str]) -> State:
    """Return the state that is asked for; without one, what runs.

    Raises:
        ConfigError: there is no such state.
    """
    state = fields.get("state") or "running"
    if state not in STATES:
        raise ConfigError(f"no state {short(state, 40)!r}: {', '.join(STATES)}")
    return state


def which(fields: Mapping[str, str]) -> TaskFilter:
    """Make the filter from the fields of a link or a form.

    Raises:
        ConfigError: an age or a time cannot be read.
    """
    given: dict[str, Any] = {name: fields[name][:200] for name in TEXTS if fields.get(name)}
    given |= {
        f"{name}_us": round(instant(fields[name][:64], name).timestamp() * 1e6)
        for name in ("since", "until")
        if fields.get(name)
    }
    return TaskFilter(**given, older_us=span_us(fields.get("older") or "0s", "older"))


def longer_us(state: State, fields: Mapping[str, str]) -> int:
    """Return the least running time that is asked for; 0 without one.

    Raises:
        ConfigError: it cannot be read, or what is in this state has none.
    """
    text = fields.get("longer")
    if text and state not in RAN:
        raise ConfigError(f"longer is for tasks in state {' or '.join(RAN)}")
    return span_us(text or "0s", "longer")


def span_us(text: str, what: str) -> int:
    """Read a time such as `90s`, in microseconds.

    Raises:
        ConfigError: it is none.
    """
    found = _SPAN.match(text)
    if found is None:
        raise ConfigError(f"{what} {short(text, 40)!r}: a time such as 90s, 15m, 2h or 7d")
    return round(float(found[1]) * _UNITS_US[found[2]])


def said(state: State, fields: Mapping[str, str]) -> str:
    """Describe what is meant for people."""
    ids = len(selected(fields))
    if ids:
        return f"{ids} selected {'task' if ids == 1 else 'tasks'}"
    words = [f"{name} {short(fields[name], 60)!r}" for name in FIELDS if fields.get(name)]
    return ", ".join([f"tasks in state {state!r}", *words])


def selected(fields: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ids of the tasks that are ticked.

    Raises:
        InvalidName: not a task id.
    """
    found = tuple(name.removeprefix(_MARK) for name in fields if name.startswith(_MARK))
    for task_id in found:
        shard_of(task_id)
    return found


def kept(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that a preview sends again."""
    names = ("state", *FIELDS, "at", "rate")
    ticked = {_MARK + task_id: "1" for task_id in selected(fields)}
    return {name: fields[name] for name in names if fields.get(name)} | ticked
