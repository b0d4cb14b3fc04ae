"""Messages for mistakes in calls: they name the task, the parameter and the right form. Pure.

Nothing here runs for a call that is right.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from late.errors import InvalidTask
from late.model import validation as validate
from late.outbox.adapters.lookup import ACCEPTED, find

FORGOTTEN: Any = type("Forgotten", (), {})()
"""Stands for an argument that was not given, such as the transaction."""

MEANT = {
    "countdown": "delay",
    "eta": "at",
    "run_after": "at",
    "run_at": "at",
    "execute_after": "at",
    "job_id": "unique_key",
    "task_id": "unique_key",
    "key": "unique_key or ordering_key",
}
"""Options of other task queues, and the one that does the same here."""
OF_THE_TASK = ("queue", "retry", "timeout_s", "result_ttl", "codec", "name")
"""Settings of `@app.task`, which a call cannot change."""
_PLACE = re.compile(r".*at `\$\.([^.\[`]+)|.*field `([^`]+)`", re.DOTALL)


def check_transaction(
    tx: object, task: str, error: InvalidTask | None = None, *, method: str = "enqueue"
) -> None:
    """Raise a clearer `InvalidTask` than `error` if a call about `task` got no transaction.

    An argument in the place of a forgotten transaction moves all others by one, so that the first
    error is about them. None is a transaction only where tests capture tasks.
    """
    if tx is None and type(error) is not InvalidTask:
        return
    if tx is FORGOTTEN:
        raise InvalidTask(
            f"{task}: no transaction given: {method}(tx, ...); pass {ACCEPTED}"
        ) from None
    try:
        find(tx)
    except InvalidTask as wrong:
        raise InvalidTask(
            f"{task}: the first argument of {method} is the transaction: {wrong}"
        ) from None


def named(error: InvalidTask, task: str) -> InvalidTask:
    """Return an error of the same class that names the task."""
    return type(error)(f"{task}: {error}")


def parameter(message: str) -> str:
    """Return ", parameter NAME" for the parameter whose place msgspec's `message` tells."""
    found = _PLACE.match(message)
    return f", parameter {found[1] or found[2]!r}" if found else ""


def arguments(
    args: tuple[Any, ...], given: Collection[str], fields: Collection[str], options: Collection[str]
) -> str:
    """Return the end of a message about arguments that do not fit: the form that was meant.

    Args:
        args, given: the arguments by position, and the names of the others.
        fields: the task's parameters.
        options: the names of the options of an enqueue.
    """
    meant = [name for name in given if name in options and name not in fields]
    if meant:
        return f"; an option is given before: .options({meant[0]}=...).enqueue(tx, ...)"
    first = args[0] if len(args) == 1 else None
    if isinstance(first, Mapping) and first and not given and first.keys() <= set(fields):
        return "; arguments are given as in a call: enqueue(tx, **arguments)"
    if args and _is_call(args[0]):
        return "; a call is enqueued by app.enqueue(tx, call)"
    return ""


def not_a_call(tx: Any, call: Any) -> InvalidTask:
    """Return the error of `app.enqueue(tx, call)` whose second argument is no call."""
    if call is FORGOTTEN:
        name = getattr(tx, "name", None)
        task = f"{name}: " if isinstance(name, str) else ""
        return InvalidTask(
            f"{task}app.enqueue takes a transaction and a call: app.enqueue(tx, task.call(...));"
            f" pass {ACCEPTED}"
        )
    return InvalidTask(f"app.enqueue takes task.call(...): {_instead(call)}")


def not_calls(tx: Any, calls: Any) -> InvalidTask:
    """Return the error of `app.enqueue_many(tx, calls)` without a transaction or without calls."""
    if calls is FORGOTTEN or tx is FORGOTTEN:
        listed = tx if isinstance(tx, list | tuple) else ()
        names = dict.fromkeys(str(each.name) for each in listed if hasattr(each, "name"))
        task = f"{', '.join(list(names)[:3])}: " if names else ""
        return InvalidTask(
            f"{task}no transaction given: app.enqueue_many(tx, [task.call(...), ...]);"
            f" pass {ACCEPTED}"
        )
    if _is_call(calls):
        return InvalidTask(f"{calls.name}: app.enqueue_many takes a list of calls: [call]")
    return InvalidTask(f"app.enqueue_many takes a list of task.call(...): {_instead(calls)}")


def not_ours(call: Any, app: Any) -> InvalidTask:
    """Return the error of something else than a call of a task of `app`."""
    if not _is_call(call):
        return InvalidTask(f"not a call of this app's tasks: {_instead(call)}")
    from late.schema.engine import shown

    theirs, ours = (f"{each!r} on {shown(each.url)}" for each in (call.app, app))
    return InvalidTask(
        f"not a call of this app's tasks: {call.name!r} is a task of another app, {theirs}; this is"
        f" {ours}"
    )


def _is_call(value: Any) -> bool:
    # `late.app.task` imports this module, so the class itself is not known here.
    return hasattr(value, "payload") and hasattr(value, "settings")


def _instead(value: Any) -> str:
    """Tell what `value` is, and what was probably meant."""
    name = getattr(value, "name", None)
    if isinstance(name, str) and callable(value):
        return f"{name!r} is a task: write {name}.call(...)"
    try:
        find(value)
    except InvalidTask:
        return validate.shown(value)
    return f"{validate.shown(value)} is a transaction, which is the first argument"


def unknown_option(unknown: Iterable[str], known: Collection[str]) -> TypeError:
    """Return the error of options that do not exist."""
    names = sorted(unknown)
    hints = []
    for name in names:
        near = difflib.get_close_matches(name, known, 1)
        if name in MEANT:
            hints.append(f"{name} is {MEANT[name]} here")
        elif name in OF_THE_TASK:
            hints.append(f"{name} is a setting of the task: @app.task({name}=...)")
        elif near:
            hints.append(f"did you mean {near[0]}?")
    told = "; ".join(hints) or f"there are {', '.join(sorted(known))}"
    return TypeError(f"unknown task option {', '.join(names)}: {told}")


def similar(name: str, known: Collection[str]) -> str:
    """Return a question for the end of a message: the known name that is most like `name`."""
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
