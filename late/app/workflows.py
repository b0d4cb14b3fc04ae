"""Workflows: tasks that start when others are done. `late.chain`, `late.group`, `late.chord`.

    app.enqueue_workflow(tx, late.chain(
        reserve.call(order_id),
        late.group(charge.call(order_id), pack.call(order_id)),
        ship.then(order_id, receipts=late.RESULT),
    ))

All stages are rows that this transaction inserts; `late/model/workflow.py` says how they go on.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from late.app import mistakes
from late.app.lookups import Lanes, find_lanes, laneless
from late.app.options import Settings
from late.app.task import Call, Task
from late.app.write import Writer, asked_by, captured
from late.errors import BatchTooLarge, InvalidPayload, InvalidTask
from late.handler.enqueuer import Enqueuer
from late.model import validation as validate
from late.model.task import NewTask, TaskId
from late.model.workflow import DEPTH_MAX, LINKS_MAX, STAGES_MAX, STARTED, WAITING, Stage
from late.outbox.admission import Asked
from late.outbox.base import Steps
from late.outbox.execute import write_by
from late.outbox.insert import Target
from late.outbox.stages import insert_stages
from late.payload import codec as codecs
from late.payload import models
from late.payload import values as payloads


class _Result:
    """The type of `RESULT`."""

    late_refusal = "late.RESULT is for task.then(...), and not for task.call(...)"
    """Why it is no argument of a call; see `payload.models.encode`."""

    def __repr__(self) -> str:
        return "late.RESULT"


RESULT: Any = _Result()
"""An argument of `task.then(...)` that is not known yet: the result of the task before it, or the
list of the results of a group, in its order. For `on_failure` it is the id of the task that
failed."""


class Then(msgspec.Struct, frozen=True, eq=False):
    """A call with `RESULT` among its arguments, for a workflow only."""

    call: Call
    mark: str
    """The JSON text in the payload that the result replaces."""


class Chain(msgspec.Struct, frozen=True, eq=False):
    """Parts that run one after the other."""

    parts: tuple[Part, ...]


class Group(msgspec.Struct, frozen=True, eq=False):
    """Parts that run side by side."""

    parts: tuple[Part, ...]


Part: TypeAlias = Call | Then | Chain | Group
Workflow: TypeAlias = Chain | Group


def chain(*parts: Part) -> Chain:
    """Run each part when all of the part before it are done.

    Raises:
        InvalidTask: there are no parts, or one is no call, chain or group.
    """
    return Chain(_checked("chain", parts))


def group(*parts: Part) -> Group:
    """Run the parts side by side. A part after the group starts when all of them are done.

    Raises:
        InvalidTask: see `chain`.
    """
    return Group(_checked("group", parts))


def chord(parts: Sequence[Part], then: Call | Then) -> Chain:
    """Run `parts` side by side, and `then` when all are done: `chain(group(*parts), then)`.

    Raises:
        InvalidTask: `parts` is one call and no list of them; see `chain`.
    """
    if isinstance(parts, Call | Then | Chain | Group):
        raise InvalidTask(
            "chord() takes a list of tasks and the one behind them: chord([a.call(1)], b.call())"
        )
    return chain(group(*parts), then)


def _checked(what: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    if not parts:
        raise InvalidTask(f"{what}() needs at least one task")
    for part in parts:
        if not isinstance(part, Call | Then | Chain | Group):
            raise InvalidTask(
                f"{what}() takes task.call(...), task.then(...), chains and groups, got"
                f" {validate.shown(part)}"
            )
    return parts


def then(
    task: Task[Any, Any], settings: Settings, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Then:
    """Make a call with `RESULT` among its arguments; see `Task.then`."""
    if task.codec is not codecs.JSON:
        raise InvalidTask(
            f"{task.name}: a result cannot be put into the payload of a task with the codec"
            f" {task.codec.name}: use json for it"
        )
    name = uuid.uuid4().hex
    opened = [name if value is RESULT else value for value in args]
    named = {key: name if value is RESULT else value for key, value in kwargs.items()}
    if name not in opened and name not in named.values():
        raise InvalidTask(f"{task.name}.then() has no late.RESULT: use {task.name}.call()")
    try:
        values: Any = task.shape(*opened, **named)
    except (TypeError, ValueError) as cause:
        raise InvalidPayload(f"{task.name}: {cause}") from None
    payload = payloads.pack(values, "json")
    _check_rest(task, payload, f'"{name}"'.encode())
    call = Call(task.app, task.name, task.queue, task.codec, values, payload, settings, task)
    return Then(call, f'"{name}"')


def _check_rest(task: Task[Any, Any], payload: bytes, mark: bytes) -> None:
    """Check the types of the arguments that are known.

    Raises:
        InvalidPayload: a worker could not read one.
    """
    if not issubclass(task.shape, msgspec.Struct):
        return
    types = {field.encode_name: field.type for field in msgspec.structs.fields(task.shape)}
    for key, raw in msgspec.json.decode(payload, type=dict[str, msgspec.Raw]).items():
        if bytes(raw) == mark:
            continue
        try:
            msgspec.json.decode(raw, type=types[key], dec_hook=models.decode)
        except Exception as cause:  # The checks of a type may raise any error.
            raise InvalidPayload(f"{task.name}: {key}: {str(cause)[:200]}") from cause


class Plan:
    """The stages of one workflow, and the links between them.

    Raises:
        BatchTooLarge: there are too many stages or links, or they are too deep.
        InvalidTask: a stage has an option that a stage cannot have, or takes a result that the
            stage before it does not keep.
    """

    def __init__(self, workflow: Part, on_failure: Call | Then | None) -> None:
        self.parts: list[Call | Then] = []
        self._after: list[tuple[int, ...]] = []
        self._collects: list[bool] = []
        self._depth: list[int] = []
        self._on_failure: int | None = None
        self._add(workflow, (), collects=False)
        if on_failure is not None:
            if not isinstance(on_failure, Call | Then):
                shown = validate.shown(on_failure)
                raise InvalidTask(f"on_failure is a task.call(...) or task.then(...), got {shown}")
            self._on_failure = len(self.parts)
            self._append(on_failure, (), collects=False)
        if sum(map(len, self._after)) > LINKS_MAX:
            raise BatchTooLarge(f"more than {LINKS_MAX} links between the tasks of a workflow")

    def _add(self, part: Part, after: tuple[int, ...], *, collects: bool) -> tuple[int, ...]:
        """Add a part that waits for `after`; return the stages that end it."""
        if isinstance(part, Chain):
            for each in part.parts:
                after = self._add(each, after, collects=collects)
                collects = _ends_in_group(each)
            return after
        if isinstance(part, Group):
            ends = [self._add(each, after, collects=collects) for each in part.parts]
            return tuple(stage for found in ends for stage in found)
        return (self._append(part, after, collects=collects),)

    def _append(self, part: Call | Then, after: tuple[int, ...], *, collects: bool) -> int:
        depth = 1 + max([self._depth[stage] for stage in after], default=0)
        if len(self.parts) >= STAGES_MAX or depth > DEPTH_MAX:
            raise BatchTooLarge(
                f"a workflow has at most {STAGES_MAX} tasks, {DEPTH_MAX} one after the other"
            )
        _check_options(_call(part))
        if isinstance(part, Then):
            if not after and self._on_failure is None:
                raise InvalidTask(f"{part.call.name}: no task runs before it, so it has no result")
            _check_results(part, [_call(self.parts[stage]) for stage in after])
        self.parts.append(part)
        self._after.append(after)
        self._collects.append(collects)
        self._depth.append(depth)
        return len(self.parts) - 1

    def calls(self) -> list[Call]:
        """Return the calls of all stages, in order, each marked as a stage."""
        return [_staged(_call(part)) for part in self.parts]

    def stages(self, rows: Sequence[NewTask]) -> list[Stage]:
        """Return the rows of the stages. `rows` are those of `calls()`."""
        following: list[list[int]] = [[] for _ in rows]
        for stage, after in enumerate(self._after):
            for each in after:
                following[each].append(stage)
        found = []
        for stage, (row, part, after) in enumerate(zip(rows, self.parts, self._after, strict=True)):
            fails = stage == self._on_failure
            found.append(Stage(
                rows[0].task_id, stage, row.task_id, row.shard_id,
                WAITING if after or fails else STARTED, 1 if fails else len(after), after,
                tuple(following[stage]), self._collects[stage],
                None if fails else self._on_failure,
                part.mark if isinstance(part, Then) else None,
                row.queue, row.name, row.payload, row.headers, row.options,
            ))  # fmt: skip
        return found


def _ends_in_group(part: Part) -> bool:
    while isinstance(part, Chain):
        part = part.parts[-1]
    return isinstance(part, Group)


def _call(part: Call | Then) -> Call:
    return part.call if isinstance(part, Then) else part


def _staged(call: Call) -> Call:
    options = msgspec.structs.replace(call.settings.options, stage=True)
    text = msgspec.json.encode(options).decode()
    settings = msgspec.structs.replace(call.settings, options=options, options_json=text)
    return msgspec.structs.replace(call, settings=settings)


def _check_options(call: Call) -> None:
    options = call.settings.options
    for name in ("ordering_key", "unique_key", "subject"):
        if getattr(options, name) is not None:
            raise InvalidTask(f"{call.name}: a task of a workflow cannot have {name}=")


def _check_results(part: Then, before: Sequence[Call]) -> None:
    for call in before:
        if call.task is not None and not call.task.passes_result:
            raise InvalidTask(
                f"{part.call.name} takes the result of {call.name}, which keeps none: give"
                f" {call.name} result_ttl="
            )


class Preparing(Writer, Lanes, Protocol):
    """The app whose workflows are written. `late.App` satisfies it."""

    capture_stages: Callable[[list[Call], list[Stage]], list[TaskId]] | None

    def prepare(self, calls: Sequence[Call]) -> list[NewTask]: ...


def write(
    app: Preparing, tx: Any, workflow: Any, on_failure: Call | Then | None
) -> list[TaskId] | Awaitable[list[TaskId]]:
    """Write all stages of a workflow through `tx`; see `App.enqueue_workflow`."""
    if not isinstance(workflow, Chain | Group):
        raise InvalidTask(
            f"enqueue_workflow takes late.chain(...) or late.group(...), got"
            f" {validate.shown(workflow)}"
        )
    if app.url.startswith("cockroachdb"):
        raise InvalidTask("workflows were never tried on CockroachDB, so they are refused there")
    plan = Plan(workflow, on_failure)
    for part in plan.parts:
        if _call(part).app is not cast(Enqueuer, app):
            raise mistakes.not_ours(_call(part), app)
    calls = plan.calls()
    asked = asked_by(app, calls)
    if app.capture_stages is not None:
        stages = plan.stages(app.prepare(laneless(calls)))
        return captured(tx, partial(app.capture_stages, calls, stages), autocommit=False)
    if app.unknown_lanes(calls):
        return write_by(tx, partial(_steps, app, plan, calls, asked), autocommit=False)
    stages = plan.stages(app.prepare(calls))
    return write_by(tx, partial(insert_stages, stages, asked=asked), autocommit=False)


def _steps(
    app: Preparing, plan: Plan, calls: list[Call], asked: Asked | None, into: Target
) -> Steps[list[TaskId]]:
    yield from find_lanes(app, calls, into.dialect)
    return (yield from insert_stages(plan.stages(app.prepare(calls)), into, asked=asked))
