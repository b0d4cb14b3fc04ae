"""`current_app` and `current_task` by Celery's names: each use looks up what is current then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from late.celery.result import newest_app
from late.celery.signatures import Canvas, copy
from late.celery.task import running_task


class Current:
    """Stands for an object that is looked up at each use; false while there is none."""

    def __init__(self, look_up: Callable[[], Any]) -> None:
        object.__setattr__(self, "_look_up", look_up)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._look_up(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._look_up(), name, value)

    def __bool__(self) -> bool:
        return self._look_up() is not None

    def __repr__(self) -> str:
        return repr(self._look_up())


current_app: Any = Current(newest_app)
"""The `Celery` that was made last, or of the last `set_default()`."""
current_task: Any = Current(running_task)
"""The task that runs here."""


def signature(
    task: str | Canvas, args: Any = (), kwargs: Any = None,
    options: Mapping[str, Any] | None = None, *, app: Any = None, **more: Any,
) -> Any:  # fmt: skip
    """Return a call of a registered task by its name as a value, or a copy of a call.

    Raises:
        UnknownTask: no such task is registered with the app.
    """
    if isinstance(task, Canvas):
        return copy(task)
    return (app or newest_app()).signature(task, args, kwargs, **{**(options or {}), **more})


subtask = signature
