"""The admin's list of tasks that wait: by state, queue, name and age, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.db import router

from late.contrib.django.application import migrate_hint, setting
from late.contrib.django.connections import IN_MEMORY, database_url
from late.contrib.django.models import WaitingTask
from late.control import Control
from late.control.task_list.model import (
    SAYS,
    ListedTask,
    State,
    TaskFilter,
    TaskPage,
    cursor_of,
    key_of,
)
from late.errors import ConfigError, LateError
from late.model.task import HELD_US

WAITING: tuple[State, ...] = ("logged", "open", "parked")
STATES: dict[State, str] = {state: SAYS[state] for state in WAITING}
FIRST, PAGE = 20, 100
"""Tasks of each state where all states are shown, and of one state by itself."""
AGES = {"60": "1 minute", "600": "10 minutes", "3600": "1 hour", "86400": "1 day"}


def read_alias() -> str:
    """Return the alias to read from: what the project's routers say, or else `LATE["DATABASE"]`."""
    ours = WaitingTask()
    ours._state.db = setting("DATABASE")
    return str(router.db_for_read(WaitingTask, instance=ours))


def sections(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the list that the query of a request asks for, as values of the template.

    Errors are a text under `error`: there is no list then.
    """
    chosen: list[State] = [state for state in STATES if state == query.get("state")]
    values = {key: query.get(key, "").strip()[:128] for key in ("queue", "name", "older_s")}
    try:
        which = TaskFilter(
            group=setting("GROUP"),
            queue=values["queue"] or None,
            name=values["name"] or None,
            older_us=round(float(values["older_s"] or 0) * 1e6),
        )
        after = key_of(query.get("after")) if chosen else None
    except (ValueError, OverflowError, ConfigError):
        return {"error": "The filter cannot be read.", **_form(values, chosen)}
    url = database_url(read_alias())
    if url == IN_MEMORY:
        return {
            "error": "Nobody else sees this database: it is in memory.",
            **_form(values, chosen),
        }
    found = []
    try:
        with Control(url) as control:
            for state in chosen or STATES:
                limit = PAGE if chosen else FIRST
                page = control.tasks.find(state, which, after=after, limit=limit)
                found.append(_section(state, page, values))
    except LateError as error:
        hint = f" ({migrate_hint()})" if "late migrate" in str(error) else ""
        return {"error": f"{error}{hint}", **_form(values, chosen)}
    return {"sections": found, **_form(values, chosen)}


def _form(values: dict[str, str], chosen: list[State]) -> dict[str, Any]:
    return {"values": values, "state": chosen[0] if chosen else "", "states": STATES, "ages": AGES}


def _section(state: State, page: TaskPage, values: dict[str, str]) -> dict[str, Any]:
    kept = {key: value for key, value in values.items() if value}
    following = None
    if page.after is not None:
        following = "?" + urlencode({"state": state, "after": cursor_of(page.after), **kept})
    return {
        "state": state,
        "says": STATES[state],
        "tasks": [_row(task, page.now_us) for task in page.tasks],
        "following": following,
    }


def _row(task: ListedTask, now_us: int) -> dict[str, Any]:
    age_s = max(0, now_us - (task.created_at_us or now_us)) // 1_000_000
    due = task.due_at_us
    known = due is not None and due < HELD_US
    return {
        "task_id": task.task_id,
        "name": task.name,
        "queue": task.queue,
        "age": str(timedelta(seconds=age_s)),
        "attempts": task.attempts,
        "due": datetime.fromtimestamp(due / 1e6, UTC) if due is not None and known else None,
        "reason": task.reason or ("running" if task.started else ""),
    }
