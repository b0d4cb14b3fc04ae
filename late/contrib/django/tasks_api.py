"""Names of Django's task interface, wherever it is: Django 6.0 and newer, or `django-tasks`."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from django.core.exceptions import ImproperlyConfigured

PACKAGE_MIN = (0, 12)
"""The oldest django-tasks whose backends are as Django's: before it the names are there, and calls
fail."""


def refuse_old(found: str | None) -> None:
    """Check the version of django-tasks; None if it is not installed.

    Raises:
        ImproperlyConfigured: the backend does not work with it.
    """
    numbers = re.match(r"[\d.]*", found or "")  # Of "1.0rc1" those before its letters.
    if numbers and tuple(map(int, filter(None, numbers[0].split("."))))[:2] >= PACKAGE_MIN:
        return
    least = ".".join(map(str, PACKAGE_MIN))
    there = "neither is installed" if found is None else f"this is django-tasks {found}"
    raise ImproperlyConfigured(
        f"LateBackend takes Django 6.0 or newer, or django-tasks {least} or newer; {there}:"
        f" pip install 'django-tasks>={least}'"
    )


def _installed() -> str | None:
    try:
        return version("django-tasks")
    except PackageNotFoundError:
        return None


try:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:
    refuse_old(_installed())
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

__all__ = [
    "BaseTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_enqueued",
    "task_finished",
    "task_started",
]
