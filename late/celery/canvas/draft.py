"""Make a workflow of `late` from the steps of a canvas and enqueue it, or run the steps here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from late.app import workflows
from late.app.task import Call
from late.app.workflows import Part, Plan, Then
from late.celery import transactions
from late.celery.canvas import steps as walk
from late.celery.canvas.steps import CALLBACKS, Leaf, Side, Steps
from late.celery.exceptions import NotSupported
from late.celery.request import Request
from late.celery.result import AsyncResult, EagerResult, GroupResult
from late.celery.signals import Publication
from late.celery.values import Failed
from late.payload import codec as codecs

Result = Any
"""An `AsyncResult` of a task or a `GroupResult` of a group; of `run_here` an `EagerResult`."""


class Draft:
    """A canvas as a workflow that is not enqueued yet.

    Args:
        tell: send `before_task_publish` for each task.

    Raises:
        NotSupported: Celery does something otherwise than workflows.
        TypeError: a function does not take its arguments.
        InvalidTask: a workflow cannot be like that.
    """

    def __init__(self, steps: Steps, *, tell: bool = True) -> None:
        self._steps = steps
        self._tell = tell
        self._publications: list[Publication] = []
        links = walk.linked(steps)
        walk.check_nested([*steps, *links])
        self.app = next(walk.leaves(steps)).type.app
        if self.app.late_app.url.startswith("cockroachdb"):
            raise NotSupported("a canvas needs workflows, which CockroachDB has not")
        errback = walk.errback_of([*steps, *links])
        self.workflow = workflows.chain(self._part([*steps, *links], follows=False))
        self.on_failure = None
        if errback is not None:
            with_error = walk.takes_error(errback)
            self.on_failure = self._call(errback, follows=True, with_error=with_error)
        Plan(self.workflow, self.on_failure)

    def _part(self, steps: Steps, *, follows: bool) -> Part:
        parts: list[Part] = []
        for step in steps:
            if isinstance(step, Side):
                members = [self._part(member, follows=follows) for member in step.members]
                parts.append(workflows.group(*members))
            else:
                parts.append(self._call(step, follows=follows))
            follows = True
        return parts[0] if len(parts) == 1 else workflows.chain(*parts)

    def _call(self, leaf: Leaf, *, follows: bool, with_error: bool = False) -> Call | Then:
        """Return the call of one task, with the result before it as its first argument.

        Args:
            with_error: its first arguments are those of a task that has failed.
        """
        task, args = leaf.type, leaf.args
        options: Any = {key: each for key, each in leaf.options.items() if key not in CALLBACKS}
        if self._tell:
            publication = Publication(
                task.name, task.queue_for(options), args, leaf.kwargs, options
            )
            self._publications.append(publication)
            options = publication.options
        if options.get("task_id") is not None:
            raise NotSupported(f"{task.name}: a task of a canvas has no task_id=")
        mark = uuid4().hex if follows and not leaf.immutable else None
        given = () if mark is None else (None,) * 3 if with_error else (mark,)
        task.check((*given, *args), leaf.kwargs)
        if mark is not None:
            args = (Failed(mark) if with_error else mark, *args)
        call: Call = task.prepare(args, leaf.kwargs, options)
        if mark is None:
            return call
        if call.codec is not codecs.JSON:
            raise NotSupported(f"{task.name}: a result is put into JSON alone, and the codec of the"
                               f" app is {call.codec.name}: use .si(...)")  # fmt: skip
        return Then(call, f'"{mark}"')

    def send(self) -> Result:
        """Insert the workflow through the transaction that is open, and return its last result."""
        late_app = self.app.late_app
        ids = transactions.write(
            self.app,
            next(walk.leaves(self._steps)).task,
            lambda tx: late_app.enqueue_workflow(tx, self.workflow, on_failure=self.on_failure),
        )
        for publication, task_id in zip(self._publications, ids, strict=True):
            publication.tell(str(task_id))
        return _unwrapped(self._result(self._steps, iter(ids), None))

    def _result(self, steps: Steps, ids: Iterator[Any], parent: Result) -> Result:
        for step in steps:
            if isinstance(step, Side):
                members = [self._result(member, ids, parent) for member in step.members]
                parent = GroupResult(members, parent)
            else:
                parent = AsyncResult(str(next(ids)), self.app, parent)
        return parent


def send(steps: Steps) -> Result:
    """Enqueue a canvas, or run it here with `task_always_eager`; see `Task.apply_async`."""
    if not steps:
        return GroupResult([])
    first = next(walk.leaves(steps)).type
    conf = first.app.conf
    if conf.task_always_eager:
        transactions.tell_of_none(first.app, first.name)
        return run_here(steps, throw=conf.task_eager_propagates)
    return Draft(steps).send()


def run_here(steps: Steps, *, throw: bool | None = None) -> Result:
    """Run the tasks one after the other, with their retries at once, and return the last outcome.

    Raises:
        The error of a task that others follow; see `Task.apply` for that of the last one.
        NotSupported: see `Draft`.
    """
    links = walk.linked(steps)
    walk.check_nested([*steps, *links])
    walk.errback_of([*steps, *links])
    result = _run(steps, throw)
    if links and result.successful():
        _run(walk.begin(links, (result.get(),), {}, {}), throw)
    return _unwrapped(result)


def _run(steps: Steps, throw: bool | None) -> Result:
    result = None
    for step in steps:
        before = result
        if before is not None:
            (step,) = walk.begin([step], (before.get(),), {}, {})
        if isinstance(step, Side):
            result = GroupResult([_run(member, throw) for member in step.members])
        else:
            result = _run_one(step, throw)
        result.parent = before
        if isinstance(result, EagerResult) and result.state == "IGNORED":
            break
    return result


def _run_one(leaf: Leaf, throw: bool | None) -> Result:
    result = leaf.type.apply(leaf.args, leaf.kwargs, throw=throw)
    if result.failed():
        for errback in walk.listed(leaf.options, "link_error"):
            about: tuple[Any, ...] = (result.id,)
            if walk.takes_error(errback):
                request = Request(result.id, leaf.task, leaf.args, leaf.kwargs, is_eager=True)
                about = (request, result.result, result.traceback)
            errback.clone(about).apply(throw=False)
    return result


def _unwrapped(result: Result) -> Result:
    """Return the group that is the only part of a group in its place, as Celery does."""
    if isinstance(result, GroupResult) and len(result) == 1 and isinstance(result[0], GroupResult):
        return result[0]
    return result
