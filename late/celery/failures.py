"""Make the arguments of a `link_error` of `(request, exc, traceback)` from the rows of a task."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from late.celery.exceptions import (
    SoftTimeLimitExceeded,
    TaskRevokedError,
    TimeLimitExceeded,
    TimeLimitFailure,
)
from late.celery.request import Request
from late.celery.values import from_json
from late.errors import TaskEnded
from late.model.task import DEFAULT_GROUP

if TYPE_CHECKING:
    from late.app.app import App
    from late.control.views import TaskView

_ERROR = re.compile(
    r"(?P<name>[A-Za-z_][\w.<>]*)(?:: (?P<message>.*?))?"
    r"(?: \[[^\[\]]+:\d+ [^\[\]]*\])?(?: <- .*)?\Z"
)
"""The form in which `late.handler.classify.describe` keeps an error."""


def failure(app: App, task_id: str) -> tuple[Request, BaseException, str]:
    """Return the request, the error and the text of the error of a task that has failed.

    Raises:
        StoreError: the database cannot be read.
    """
    from late.control import Control

    with Control(app.url) as control:
        found = control.tasks.show(task_id, payload=True, group=DEFAULT_GROUP)
    (state,) = found.groups
    request = _request(found, max(0, (state.attempts or 1) - 1))
    if state.errors:
        text = state.errors[-1].error
        return request, rebuilt(text), text
    ends = [stage.state for stage in found.workflow if stage.task_id == task_id]
    end = state.outcome or next(iter(ends), state.state)
    text = f"task {request.id} ended as {state.reason or end}"
    kind = TaskRevokedError if end == "expired" else TaskEnded
    return request, kind(text, outcome=end), text


def _request(found: TaskView, retries: int) -> Request:
    try:
        given: Any = msgspec.json.decode(found.payload or "{}")
    except msgspec.DecodeError:  # It is sealed, or of another codec.
        given = {}
    return Request(
        id=found.task_id,
        task=found.name or "",
        args=from_json(given.get("args", [])),
        kwargs=from_json(given.get("kwargs", {})),
        retries=retries,
        headers=found.headers or {},
        delivery_info={"routing_key": found.queue},
        called_directly=False,
    )


def rebuilt(text: str) -> BaseException:
    """Return the error of which a text tells, with its message as its only argument.

    Its class is that of the error, if the module with it is imported here and it can be made of a
    message. If not, it is a class of the same name, derived from `Exception`.
    """
    told = _ERROR.match(text)
    if told is None:  # No code has raised it.
        return TimeLimitExceeded(text) if text.startswith("timed out") else TaskEnded(text)
    name, args = told["name"], [told["message"]] if told["message"] else []
    found = _class(name)
    if found is TimeLimitFailure:
        found = SoftTimeLimitExceeded
    # The text is from the database: nothing but an error may be made of it.
    if isinstance(found, type) and issubclass(found, Exception):
        with suppress(Exception):  # It takes other arguments.
            return found(*args)
    module, _, kind = name.rpartition(".")
    made: type[Exception] = type(kind, (Exception,), {"__module__": module or "builtins"})
    return made(*args)


def _class(name: str) -> object:
    """Return what has this name in a module that is imported, or None."""
    module, _, rest = name.rpartition(".")
    path = [rest]
    while module and module not in sys.modules:
        module, _, rest = module.rpartition(".")
        path.insert(0, rest)
    found: object = sys.modules.get(module or "builtins")
    for each in path:
        found = getattr(found, each, None)
    return found
