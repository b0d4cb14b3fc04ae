"""The stages of a workflow, and what becomes of them when their tasks end. Pure.

A workflow is a set of tasks, its stages, of which some wait until others are done. Each stage is a
row of `late_stage`. The settlement that ends the task of one stage also changes the rows after it,
in the same transaction: so a stage enters the log exactly once, however often the tasks before it
are repeated, and whoever ends them.

| state | meaning |
|---|---|
| waiting | its task is not in the log yet |
| started | its task is in the log, or in the timer table |
| stopping | the workflow was cancelled; its task may still run |
| done, dead, expired, discarded, cancelled | the end of its task |

A stage starts when all stages before it are done. One that ends otherwise starts none, so the
stages after it wait for ever, unless it is a dead letter that is redriven and ends well. The first
one that fails starts the stage `on_failure`, if the workflow has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from late.model.task import NewTask, TaskId

WAITING, STARTED, STOPPING = "waiting", "started", "stopping"
OPEN = (STARTED, STOPPING, "dead")
"""The states of a stage whose task may still end: a dead letter may be redriven."""
STAGES_MAX = 1_000
DEPTH_MAX = 100
LINKS_MAX = 10_000
"""The most links between two stages of one workflow: a group after a group has many."""
RESULTS_BYTES_MAX = 1_048_576
"""The longest payload with its results. A longer one is cut to one byte more, so that its task is a
dead letter, `payload_too_large`."""


class Stage(msgspec.Struct, eq=False):
    """One row of `late_stage`."""

    workflow_id: TaskId
    """The id of the task of stage 0."""
    stage: int
    task_id: TaskId
    shard_id: int
    state: str
    missing: int
    """The stages before it that are not done yet."""
    after: tuple[int, ...]
    """The stages before it, in the order of their results."""
    next: tuple[int, ...]
    """The stages after it."""
    collects: bool
    """It takes a list of the results before it, and not one result."""
    on_failure: int | None
    """The stage that starts if this one fails."""
    mark: str | None
    """The text of its payload that the results before it replace; None: it takes no result."""
    queue: str
    name: str
    payload: bytes
    headers: str | None = None
    options: str | None = None
    result: bytes | None = None
    """JSON."""
    ended_at_us: int | None = None

    def task(self, value: bytes | None = None) -> NewTask:
        """Return the row of the log that starts it; `value` is JSON of the results before it."""
        payload = self.payload
        if self.mark is not None:
            payload = payload.replace(self.mark.encode(), b"null" if value is None else value)
            payload = payload[: RESULTS_BYTES_MAX + 1]
        return NewTask(
            self.shard_id, self.task_id, self.queue, self.name, payload, self.headers, self.options
        )


CANCEL = "cancel"


def values_of(stage: Stage) -> tuple[Any, ...]:
    """Return the columns of its row, in the order of the fields."""
    values = msgspec.structs.asdict(stage)
    for name in ("after", "next"):
        values[name] = msgspec.json.encode(values[name]).decode()
    values["collects"] = int(stage.collects)
    return tuple(values.values())


class StageEnd(msgspec.Struct, frozen=True, gc=False):
    """The end of a task that is a stage, or the order to cancel its workflow."""

    task_id: TaskId
    state: str
    """A `Final`; or `CANCEL` for a task that may have ended or may not have started."""
    result: bytes | None = None
    """JSON, if it is kept."""


class Rows(Protocol):
    """The rows of `late_stage`, read in the transaction of a settlement. The same row must come as
    the same object: it is changed in place."""

    def of_task(self, task_id: TaskId) -> Stage | None: ...

    def of_workflow(self, workflow_id: TaskId, stages: Sequence[int] | None = None) -> list[Stage]:
        """Return these stages in order; None: all."""


class Changes(msgspec.Struct):
    """The changes that the ends of stages make."""

    rows: dict[tuple[TaskId, int], Stage] = {}
    """The rows that have another state, count or result, by workflow and stage."""
    started: list[NewTask] = []
    """Rows of the log to insert."""
    stopping: list[TaskId] = []
    """Tasks to cancel, each by a command."""

    def add(self, row: Stage) -> None:
        self.rows[row.workflow_id, row.stage] = row


def changes(ends: Iterable[StageEnd], rows: Rows, now_us: int) -> Changes:
    """Return what the ends of tasks change in the workflows that they belong to.

    An end that is known already, and one of a task that is no stage, change nothing.
    """
    found = Changes({}, [], [])
    ends = list(ends)
    cancelled = {end.task_id for end in ends if end.state == "cancelled"}
    orders = {end.task_id for end in ends if end.state == CANCEL}
    for task_id in sorted(cancelled | orders):
        row = rows.of_task(task_id)
        if row is not None:
            _cancel(row.workflow_id, cancelled, rows, found, now_us)
    for end in ends:
        row = rows.of_task(end.task_id) if end.state != CANCEL else None
        if row is None or row.state not in OPEN or row.state == end.state:
            continue
        row.state, row.result, row.ended_at_us = end.state, end.result, now_us
        found.add(row)
        _go_on(row, rows, found)
    return found


def _cancel(
    workflow_id: TaskId, ended: set[TaskId], rows: Rows, found: Changes, now_us: int
) -> None:
    """Cancel all stages of a workflow that have not ended; `ended` are those that do so now."""
    for row in rows.of_workflow(workflow_id):
        if row.state == WAITING:
            row.state, row.ended_at_us = "cancelled", now_us
        elif row.state == STARTED and row.task_id not in ended:
            row.state = STOPPING
            found.stopping.append(row.task_id)
        else:
            continue
        found.add(row)


def _go_on(row: Stage, rows: Rows, found: Changes) -> None:
    """Start what waits for nothing but the end of `row`."""
    if row.state == "done":
        following = row.next
    elif row.state == "cancelled" or row.on_failure is None:
        return
    else:
        following = (row.on_failure,)
    for after in rows.of_workflow(row.workflow_id, following) if following else ():
        if after.state != WAITING:
            continue
        after.missing -= 1
        found.add(after)
        if after.missing <= 0:
            after.state = STARTED
            found.started.append(after.task(_value(after, row, rows)))


def _value(after: Stage, ended: Stage, rows: Rows) -> bytes | None:
    """Return the JSON that replaces the mark of a stage that starts."""
    if after.mark is None:
        return None
    if ended.state != "done":
        return msgspec.json.encode(ended.task_id)
    results = [each.result or b"null" for each in rows.of_workflow(after.workflow_id, after.after)]
    return b"[%b]" % b",".join(results) if after.collects else results[0]
