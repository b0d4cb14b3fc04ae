"""Cancel or reschedule all tasks that match: a command for each, as for one task.

The ids are found first, page by page, and then their commands are written, some hundred to a
transaction, each with a row in the audit. What is enqueued after the beginning is not meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine

from late import outbox
from late.control import audit
from late.control.dead_letters.dry_run import IDS_SHOWN, LOOKED
from late.control.task_list.model import COMMANDED, Commanded, State, TaskFilter
from late.control.task_list.pages import read_page
from late.control.views import Moved
from late.errors import ConfigError, InvalidSchedule
from late.model.ids import shard_of
from late.model.task import TaskId
from late.model.validation import is_too_far_ahead
from late.payload.command import Command, Kind
from late.schema.engine import write

CHUNK = 500
"""Commands that one transaction writes."""
AHEAD_US = 5_000_000
"""A task that was made so far in the future is of a time before the clock went back: no new one."""
PAGE = 1_000
COMMANDS_MAX = 100_000
"""Commands of one call: each is a row of the log that an owner reads."""
RATE_MIN, RATE_MAX = 0.001, 100_000.0


def cancel_all(
    engine: Engine,
    state: Commanded,
    which: TaskFilter,
    *,
    only: Sequence[TaskId] | None = None,
    limit: int = COMMANDS_MAX,
    dry_run: bool = False,
) -> Moved:
    """Ask that no attempt of the tasks in one state that match starts any more.

    A dry run looks at ten thousand rows, and says whether there were more.

    Args:
        state: `unfinished` is logged, open and parked.
        only: the ids of those that are meant, which are not looked for then.

    Raises:
        ConfigError: as `read_page`; or tasks in this state take no commands.
    """
    return _command(engine, "cancel", state, which, limit, only=only, dry_run=dry_run)


def reschedule_all(
    engine: Engine,
    state: Commanded,
    which: TaskFilter,
    due_at_us: int,
    *,
    only: Sequence[TaskId] | None = None,
    rate: float | None = None,
    limit: int = COMMANDS_MAX,
    dry_run: bool = False,
) -> Moved:
    """Give the tasks in one state that match another due time, by the database's clock.

    Args:
        only: as of `cancel_all`.
        rate: they fall due so many a second from `due_at_us` on; without it all at once.

    Raises:
        ConfigError: as `cancel_all`; or the rate is out of bounds.
        InvalidSchedule: the last due time is more than 366 days ahead.
    """
    if rate is not None and not RATE_MIN <= rate <= RATE_MAX:
        raise ConfigError(f"rate {rate:g}: {RATE_MIN:g} to {RATE_MAX:g} a second")
    return _command(
        engine, "reschedule", state, which, limit, only=only, dry_run=dry_run,
        due_at_us=due_at_us, rate=rate,
    )  # fmt: skip


def _command(
    engine: Engine, kind: Kind, state: Commanded, which: TaskFilter, limit: int, *,
    only: Sequence[TaskId] | None, dry_run: bool,
    due_at_us: int | None = None, rate: float | None = None,
) -> Moved:  # fmt: skip
    if state not in COMMANDED:
        words = {"dead": "`late dead redrive` is for them", "running": "cancel one by its id"}
        raise ConfigError(f"tasks in state {state!r} are not commanded together"
                          + (f": {words[state]}" if state in words else ""))  # fmt: skip
    if not 1 <= limit <= COMMANDS_MAX:
        raise ConfigError(f"limit {limit}: 1 to {COMMANDS_MAX:,}")
    if only is None:
        most = LOOKED if dry_run else None
        found, capped = _chosen(engine, COMMANDED[state], which, limit, most)
        ids, names = list(found), dict(Counter(found.values()).most_common())
    else:
        ids, capped, names = list(only), False, {}
        _check(ids)
    shown = tuple(ids[:IDS_SHOWN])
    step_us = 1_000_000 / rate if rate else 0.0
    commands = [
        Command(kind, task_id, which.group,
                at_us=None if due_at_us is None else due_at_us + round(n * step_us))
        for n, task_id in enumerate(ids)
    ]  # fmt: skip
    last_us = commands[-1].at_us if commands else None
    if last_us is not None and is_too_far_ahead(last_us):
        raise InvalidSchedule("the last due time is more than 366 days ahead")
    if not dry_run:
        # Ids that were given are not looked for, so no filter chose them.
        given = _given(which) if only is None else None
        said = {"state": state, "filter": given, "rate": rate, "at_us": due_at_us}
        for start in range(0, len(commands), CHUNK):
            write(engine, partial(_append, kind, commands[start : start + CHUNK], said))
    return Moved(len(ids), dry_run, shown, capped=capped, names=names)


def _chosen(
    engine: Engine, states: Sequence[State], which: TaskFilter, limit: int, most: int | None
) -> tuple[dict[TaskId, str], bool]:
    """Find up to `limit` tasks, among `most` rows of each state if given: the name of each by its
    id, and whether there may be more that match."""
    found: dict[TaskId, str] = {}
    capped, began_us = False, 0
    for state in states:
        after, looked = None, 0
        while True:
            if len(found) >= limit:
                return found, True
            page = read_page(engine, state, which, after=after, limit=min(PAGE, limit - len(found)))
            began_us = began_us or page.now_us
            ahead_us = page.now_us + AHEAD_US
            old = [
                each for each in page.tasks if not began_us < (each.created_at_us or 0) <= ahead_us
            ]
            found |= {TaskId(each.task_id): each.name or "" for each in old}
            looked, after = looked + page.looked, page.after
            # A log that grows faster than it is read would have no end.
            if after is None or (page.tasks and not old):
                break
            if most is not None and looked >= most:
                capped = True
                break
    return found, capped


def _check(ids: Sequence[TaskId]) -> None:
    """Refuse what is no task id.

    Raises:
        InvalidName: one of them.
    """
    for task_id in ids:
        shard_of(task_id)


def _append(
    kind: Kind, commands: list[Command], said: dict[str, Any], connection: Connection
) -> None:
    outbox.insert(connection, [command.row() for command in commands])
    after = {"count": len(commands)} | {k: v for k, v in said.items() if v is not None}
    if "filter" not in after:
        after["ids"] = [command.task_id for command in commands]
    subject = f"tasks:{commands[0].group}"
    audit.record(connection, action=f"tasks.{kind}", subject=subject, after=after)


def _given(which: TaskFilter) -> dict[str, Any]:
    """The fields of a filter that are given."""
    empty = msgspec.to_builtins(TaskFilter())
    return {k: v for k, v in msgspec.to_builtins(which).items() if v != empty[k] or k == "group"}
