"""Workflows: a list of them, all of one by the id of any of its tasks, and a wait for its end.

The list reads `late_stage` backward along its key, which begins with the time of the first task's
id, a bounded number of rows at a time. So it takes no index of its own, and costs the same however
many workflows are kept. A state has no index: where a filter leaves out much, a page ends at a
bound and says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, get_args

import msgspec
from sqlalchemy import Connection, Engine, and_, case, func, select

from late.control.database import Part, on_engine
from late.control.groups.wait import poll
from late.control.sql.rows import now_us
from late.control.status.workflow import PARKED, PURGED, SKIPPED, in_group, stages_of
from late.control.views import StageView
from late.errors import ConfigError
from late.model.ids import made_at_us, shard_of
from late.model.workflow import STARTED, STOPPING, WAITING
from late.schema.engine import reading
from late.schema.tables import dead, stage, timer

State = Literal["running", "failed", "done", "cancelled"]
STATES: tuple[State, ...] = get_args(State)
ROWS = 10_000
"""Stages that one statement reads: more than a workflow has, so that it reads a whole one."""
LOOKED = 100_000
"""Stages that a page looks at, at most one statement more."""
CHUNK = 200
"""Workflows whose dead letters one statement looks up. Spanner takes 950 parameters."""
LIMIT_MAX = 10_000
_IDLE = "idle"
"""A stage `on_failure` that has not started: it has nothing before it, and waits all the same."""
_ENDED_BADLY = ("dead", "expired", "discarded", PURGED)
Sees = Callable[[str], bool]
"""Tells whether the stages of a queue count. None in its place: all do."""


class WorkflowView(msgspec.Struct, frozen=True, kw_only=True):
    """One workflow. Each of its tasks counts once: as done, running, waiting, failed or cancelled.

    A task `on_failure` counts only once it has started.
    """

    workflow_id: str
    """The id of its first task."""
    name: str
    """The name of its first task; empty for who may not see the queue of that."""
    made_at_us: int
    """The time of its id, by the producer's clock."""
    state: State
    """`cancelled`; else `failed`, if a task of it has failed, also while others run; else `done`,
    if all are; else `running`."""
    tasks: int
    done: int
    running: int
    """They are in the log, or parked."""
    waiting: int
    """They wait for others, also for some that have failed."""
    failed: int
    """Dead letters, purged or not; tasks that have expired or were discarded."""
    dead: int
    """The dead letters among them: a redrive runs them again."""
    cancelled: int


class WorkflowStages(WorkflowView, frozen=True, kw_only=True):
    """One workflow with its stages."""

    stages: tuple[StageView, ...]


class WorkflowPage(msgspec.Struct, frozen=True):
    """One page of workflows, the newest first."""

    workflows: tuple[WorkflowView, ...]
    now_us: int
    """The database's clock."""
    looked: int
    """The stages that were looked at."""
    after: str | None
    """The id after which the next page begins; None if this is the last one."""


def _state(counts: Mapping[str, int]) -> State:
    if counts["cancelled"] or counts[STOPPING]:
        return "cancelled"
    if any(counts[each] for each in _ENDED_BADLY):
        return "failed"
    return "running" if counts[STARTED] or counts[PARKED] or counts[WAITING] else "done"


def view_of(workflow_id: str, name: str, counts: Counter[str]) -> WorkflowView:
    """Make a view of the number of stages by their state."""
    return WorkflowView(
        workflow_id=workflow_id,
        name=name,
        made_at_us=made_at_us(workflow_id),
        state=_state(counts),
        tasks=counts.total() - counts[_IDLE],
        done=counts["done"],
        running=counts[STARTED] + counts[PARKED] + counts[STOPPING],
        waiting=counts[WAITING] + counts[SKIPPED],
        failed=sum(counts[each] for each in _ENDED_BADLY),
        dead=counts["dead"],
        cancelled=counts["cancelled"],
    )


def show(engine: Engine, task_id: str) -> WorkflowStages | None:
    """Read the workflow of a task; None if the task is in none, or in one that is not kept.

    Raises:
        InvalidName: not a task id.
    """
    shard_of(task_id)
    with reading(engine) as connection:
        stages = stages_of(connection, task_id)
    return _whole(stages[0].task_id, stages[0].name, stages) if stages else None


def narrowed(found: WorkflowStages, sees: Sees) -> WorkflowStages | None:
    """Return a workflow as if it had the stages of some queues alone; None without any of these."""
    stages = tuple(each for each in found.stages if sees(each.queue))
    if len(stages) == len(found.stages):
        return found
    name = found.name if sees(found.stages[0].queue) else ""
    return _whole(found.workflow_id, name, stages) if stages else None


def _whole(workflow_id: str, name: str, stages: tuple[StageView, ...]) -> WorkflowStages:
    counts = Counter(
        _IDLE if each.on_failure and each.state in (WAITING, SKIPPED) else each.state
        for each in stages
    )
    view = view_of(workflow_id, name, counts)
    return WorkflowStages(**msgspec.structs.asdict(view), stages=stages)


def wait(engine: Engine, task_id: str, *, timeout_s: float | None = None) -> WorkflowStages | None:
    """Wait until no task of the workflow runs, or will without a redrive; or for `timeout_s`.

    Returns and raises as `show`. `running` is above 0 if the time was up.
    """

    def over(found: WorkflowStages | None) -> bool:
        # If none is in the log or parked, nothing can start another one.
        return found is None or found.running == 0

    return poll(partial(show, engine, task_id), over, timeout_s)


def find(
    engine: Engine,
    state: State | None = None,
    *,
    name: str | None = None,
    after: str | None = None,
    limit: int = 50,
    sees: Sees | None = None,
) -> WorkflowPage:
    """List up to `limit` workflows behind `after`, the newest first.

    A page looks at a hundred thousand stages. Where a filter leaves out many it may be short or
    empty, and its `after` says where to go on.

    Args:
        name: of the first task.
        sees: what other queues have is left out, as by `narrowed`.

    Raises:
        ConfigError: there is no such state, or the limit is not 1 to 10,000.
        InvalidName: `after` is not a task id.
    """
    if state is not None and state not in STATES:
        raise ConfigError(f"no state {state!r:.40}: {', '.join(STATES)}")
    if not 1 <= limit <= LIMIT_MAX:
        raise ConfigError(f"limit {limit}: 1 to {LIMIT_MAX:,}")
    if after is not None:
        shard_of(after)
    found: list[WorkflowView] = []
    looked, more = 0, True
    with reading(engine) as connection:
        now = now_us(connection)
        while more and looked < LOOKED and len(found) <= limit:
            counted, rows = _look(connection, after, sees)
            looked, more = looked + rows, rows == ROWS
            after = min(counted, default=None)
            for some in _chunks(counted, state, name):
                found += [each for each in _exact(connection, some, sees)
                          if state in (None, each.state)]  # fmt: skip
                if len(found) > limit:
                    break
    if len(found) > limit:
        return WorkflowPage(tuple(found[:limit]), now, looked, found[limit - 1].workflow_id)
    return WorkflowPage(tuple(found), now, looked, after if more else None)


_Counted = dict[str, tuple[str, Counter[str]]]
"""The name of the first task, and the number of stages by their state, by the id of a workflow."""


def _look(connection: Connection, after: str | None, sees: Sees | None) -> tuple[_Counted, int]:
    """Count the stages of workflows behind `after`, of `ROWS` rows, and say of how many it was."""
    idle = and_(stage.c.state == WAITING, stage.c.after == "[]")
    some = (
        select(
            stage.c.workflow_id,
            stage.c.queue,
            case((idle, _IDLE), else_=stage.c.state).label("state"),
            case((stage.c.stage == 0, stage.c.name)).label("name"),
        )
        .where(*([] if after is None else [stage.c.workflow_id < after]))
        .order_by(stage.c.workflow_id.desc(), stage.c.stage.desc())
        .limit(ROWS)
        .subquery()
    )
    of = [some.c.workflow_id, some.c.state]
    if sees is not None:
        of.append(some.c.queue)
    asked = select(*of, func.count().label("n"), func.max(some.c.name).label("name")).group_by(*of)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    names: dict[str, str] = {}
    rows = 0
    for row in connection.execute(asked):
        rows += row.n
        count = counts[row.workflow_id]
        if sees is not None and not sees(row.queue):
            continue
        count[row.state] += row.n
        if row.name is not None:
            names[row.workflow_id] = row.name
    if rows == ROWS:
        del counts[min(counts)]  # The rows may end within it.
    return {
        each: (names.get(each, ""), counts[each]) for each in sorted(counts, reverse=True)
    }, rows


def _chunks(counted: _Counted, state: State | None, name: str | None) -> Iterator[_Counted]:
    """Yield the workflows that may match, some at a time."""
    chosen: _Counted = {}
    for workflow_id, (first, counts) in counted.items():
        # One with a dead letter may go on since.
        states = (None, _state(counts), "running" if counts["dead"] else None)
        if counts and name in (None, first) and state in states:
            chosen[workflow_id] = (first, counts)
        if len(chosen) == CHUNK:
            yield chosen
            chosen = {}
    if chosen:
        yield chosen


def _exact(connection: Connection, some: _Counted, sees: Sees | None) -> list[WorkflowView]:
    """Make the views. A row says `dead` until a worker has read a redrive, and after a purge."""
    ids: Sequence[str] = [each for each, (_, counts) in some.items() if counts["dead"]]
    asked = select(stage.c.workflow_id, stage.c.shard_id, stage.c.task_id, stage.c.queue)
    rows = connection.execute(
        asked.where(stage.c.workflow_id.in_(ids), stage.c.state == "dead")
    ).all() if ids else []  # fmt: skip
    rows = [row for row in rows if sees is None or sees(row.queue)]
    again, letters = in_group(connection, timer, rows), in_group(connection, dead, rows)
    for row in rows:
        if row.task_id in again or row.task_id not in letters:
            counts = some[row.workflow_id][1]
            counts["dead"] -= 1
            counts[PARKED if row.task_id in again else PURGED] += 1
    return [view_of(each, *kept) for each, kept in some.items()]


class WorkflowControl(Part):
    """Workflows. See `Control` for what all methods raise.

    `tasks.cancel` takes a whole one, by the id of any of its tasks; the dead letters of one are
    those of `Filter(workflow=task_id, group="default")`.
    """

    find = on_engine(find)
    show = on_engine(show)
    wait = on_engine(wait)
