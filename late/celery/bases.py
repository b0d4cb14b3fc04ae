"""The class of an app's tasks, by Celery's names: `task_cls=` and `app.Task`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from late.celery.exceptions import NotSupported
from late.celery.settings import find
from late.celery.task import Task

REGISTERED = (
    "queue", "serializer", "ignore_result", "max_retries", "retry_kwargs", "soft_time_limit",
    "time_limit", "rate_limit",
)  # fmt: skip
"""The attributes of a class that a task takes over when it is registered."""

logger = logging.getLogger("late.celery")


def class_of(base: Any, told: str) -> type[Task]:
    """Return the class that `base` is, or that it names as text.

    Args:
        told: where it stands, for the message.

    Raises:
        NotSupported: it is no class of tasks of `late.celery`, such as one of another package that
            derives from Celery's.
    """
    found = find(base) if isinstance(base, str) else base
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise NotSupported(
            f"{told}: {getattr(found, '__name__', found)!s:.80} does not derive from"
            " late.celery.Task: write it anew for that"
        )
    return found


def follow(task: Task, base: type[Task]) -> None:
    """Let a task that states no `base=` derive from `base`."""
    if task.follows_app:
        type(task).__bases__ = (base,)


def tell_of_delay(tasks: Iterable[Task], before: type[Task], base: type[Task]) -> None:
    """Warn of what a class of tasks that comes late does not change in tasks of before."""
    changed = [name for name in REGISTERED if getattr(before, name) != getattr(base, name)]
    number = sum(task.follows_app for task in tasks)
    if changed and number:
        logger.warning(
            "%s of %s: set after %d tasks were registered, which keep what was set before; give the"
            " app task_cls=, or set app.Task before the modules with the tasks are imported",
            ", ".join(changed),
            base.__name__,
            number,
        )


class HasTaskClass:
    """An app has this part: the class of its tasks."""

    task_cls: Any = None
    """The class of its tasks, or the name of one, where nothing else says it."""
    tasks: dict[str, Task]
    _base: type[Task] = Task

    @property
    def Task(self) -> type[Task]:
        """The class that tasks without `base=` derive from. Those of before follow a new one."""
        return self._base

    @Task.setter
    def Task(self, base: Any) -> None:
        found = class_of(base, "app.Task")
        tell_of_delay(self.tasks.values(), self._base, found)
        self._base = found
        for task in self.tasks.values():
            if task.bound is self:
                follow(task, found)
