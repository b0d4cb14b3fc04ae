"""A canvas of Celery, whose parts are dictionaries, as one of `late.celery`; and its ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

from late.celery.canvas.steps import CALLBACKS, listed
from late.celery.exceptions import NotSupported
from late.celery.signatures import Canvas, Chain, Chord, Group, Signature


def parts(call: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the calls that a chain, group or chord is made of; none for that of a task.

    Raises:
        NotSupported: it is something else, such as chunks.
    """
    kind, inside = call.get("subtask_type"), call["kwargs"]
    if kind in ("chain", "group"):
        return tuple(inside["tasks"])
    if kind == "chord":
        header = inside["header"]
        grouped = isinstance(header, Mapping)
        body = () if inside["body"] is None else (inside["body"],)
        return (*([header] if grouped else header), *body)
    if kind:
        raise NotSupported(f"{kind}: make a group of calls")
    return ()


def names(call: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of all tasks, in their order, also of those that are linked."""
    inside = parts(call)
    if not inside and not call.get("subtask_type"):
        yield str(call["task"])
    for each in (*inside, *_linked(call)):
        yield from names(each)


def _linked(call: Mapping[str, Any]) -> list[Any]:
    return [each for name in CALLBACKS for each in listed(call["options"], name)]


def translated(call: Mapping[str, Any], task: Callable[[str], Any]) -> Canvas:
    """Return the same call of tasks of `late.celery`.

    Args:
        task: gives the task by its name.

    Raises:
        NotSupported: see `parts`.
    """
    options: dict[str, Any] = dict(call["options"])
    for name in CALLBACKS:
        if options.get(name) is not None:
            options[name] = [translated(each, task) for each in listed(options, name)]
    immutable = bool(call.get("immutable"))
    kind = call.get("subtask_type")
    inside = [translated(each, task) for each in parts(call)]
    if kind == "chain":
        return Chain(tasks=tuple(inside), options=options, immutable=immutable)
    if kind == "group":
        return Group(tasks=tuple(inside), options=options, immutable=immutable)
    if kind is None:
        args, kwargs = tuple(call["args"]), dict(call["kwargs"])
        return Signature(
            task(str(call["task"])), args, kwargs, options=options, immutable=immutable
        )
    if call["kwargs"].get("kwargs"):
        raise NotSupported("chord: give keywords to the tasks of its header")
    body = None if call["kwargs"]["body"] is None else inside.pop()
    header = inside[0] if isinstance(call["kwargs"]["header"], Mapping) else None
    if not isinstance(header, Group):
        header = Group(tasks=tuple(inside))
    return Chord(header=header, body=body, options=options, immutable=immutable)


def give_ids(call: Any) -> None:
    """Give each task and group an id, so that a message that is sent twice has the same ids."""
    inside = parts(call)
    if call.get("subtask_type") in (None, "group"):
        call["options"].setdefault("task_id", str(uuid4()))
    for each in (*inside, *_linked(call)):
        give_ids(each)


def result_of(call: Mapping[str, Any], app: Any) -> Any:
    """Return Celery's result of a call that has its ids."""
    kind = call.get("subtask_type")
    if kind is None:
        return app.AsyncResult(call["options"]["task_id"])
    if kind == "group":
        results = [result_of(each, app) for each in parts(call)]
        return app.GroupResult(call["options"]["task_id"], results)
    return result_of(parts(call)[-1], app)
