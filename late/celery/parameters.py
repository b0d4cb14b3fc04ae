"""The parameters of a task's function, for a worker and for `late check`: does a call that waits
fit them? A worker gives one that does not to another worker, or parks it, as one of `late` itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from late.celery.values import FAILED, marked_as
from late.errors import DecodeError

if TYPE_CHECKING:
    from late.celery.task import Task

ERROR_ARGUMENTS = 3
"""The arguments that a `link_error` gets in the place of one: `(request, exc, traceback)`."""


def test_arguments(made: Any, task: Task) -> None:
    """Let `made`, the task of `late`, refuse stored calls that do not fit `task`'s function."""
    try:
        accepted = task.call_signature
    except ValueError:  # A function of C that does not say which.
        return

    def test(stored: Mapping[str, Any]) -> None:
        args, kwargs = stored["args"], stored["kwargs"]
        if args and marked_as(args[0], FAILED):
            args = [*(None,) * ERROR_ARGUMENTS, *args[1:]]
        try:
            accepted.bind(*args, **kwargs)
        except TypeError as error:
            raise DecodeError(f"{task.name}: {error}", elsewhere=True) from None

    made.test_arguments(test, _text(accepted))


def _text(accepted: inspect.Signature) -> str:
    """Return the names, kinds and defaults: another text if other calls fit.

    The order counts, since positional arguments are stored by their place.
    """
    return ", ".join(
        f"{each.kind.name} {each.name}{'' if each.default is each.empty else '='}"
        for each in accepted.parameters.values()
    )
