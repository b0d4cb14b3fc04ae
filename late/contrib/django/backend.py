"""The backend for Django's own tasks: `django.tasks` (Django 6.0), or the package `django-tasks`.

    TASKS = {"default": {"BACKEND": "late.contrib.django.backend.LateBackend"}}

Inside of `transaction.atomic()` a task commits with the block; outside it commits at once. Each
function is a task of `late` under its path, so that status, usage and dead letters name it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

import late
from late.contrib.django import app
from late.contrib.django import results as stored
from late.contrib.django.application import setting
from late.contrib.django.tasks_api import (
    BaseTaskBackend,
    TaskResultDoesNotExist,
    task_enqueued,
)
from late.errors import InvalidName

OPTIONS = {"MAX_ATTEMPTS": 1, "RESULT_TTL": 86_400, "TIMEOUT": 300}
"""The keys of the backend's OPTIONS and their defaults; times are in seconds. The interface knows
no repeats, so a task that fails has failed, unless the project allows more attempts."""


class LateBackend(BaseTaskBackend):
    """See the module. Its tasks run in `manage.py late_worker`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = sorted(self.options.keys() - OPTIONS.keys())
        if unknown:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: OPTIONS has no {', '.join(unknown)}")
        self._options = OPTIONS | self.options

    def validate_task(self, task: Any) -> None:
        """Check a task when it is made, and register its function with the project's app.

        Raises:
            InvalidTask (Django's): the backend cannot run it.
        """
        super().validate_task(task)
        if task.module_path not in app.tasks:
            self._register(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Insert one task, and return its result, which is `READY`.

        Raises:
            InvalidTask (late's): the arguments are not JSON, or too large.
        """
        self.validate_task(task)
        connection = connections[setting("DATABASE")]
        result = stored.new(task, "", args, kwargs, self.alias)
        options: dict[str, Any] = {"autocommit": not connection.in_atomic_block}
        if task.priority:
            options["priority"] = task.priority
        if task.run_after is not None:
            options["at"] = task.run_after
        call = (
            app.tasks[task.module_path]
            .options(**options)
            .call(args=result.args, kwargs=result.kwargs)
        )
        task_id = app.enqueue(connection, msgspec.structs.replace(call, queue=task.queue_name))
        result = stored.new(task, task_id, args, kwargs, self.alias)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Read what the database knows of a task: its value for `RESULT_TTL` after its end.

        A task that runs is `READY`: no row says that it has started.

        Raises:
            TaskResultDoesNotExist: there is no such task, or nothing of it is left.
        """
        if app.capture is not None:
            raise TaskResultDoesNotExist("tasks are captured in this test: none has a result")
        try:
            found = stored.read(result_id, self.alias)
        except InvalidName:
            found = None
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return found

    def _register(self, task: Any) -> None:
        attempts = int(self._options["MAX_ATTEMPTS"])
        register = app.task(
            name=task.module_path,
            retry=late.Retry(max_attempts=attempts),
            result_ttl=float(self._options["RESULT_TTL"]),
            timeout_s=float(self._options["TIMEOUT"]),
        )
        register(self._handler(task))

    def _handler(self, task: Any) -> Callable[..., Any]:
        """Return the function that runs `task` in a worker. Its parameters are the payload."""
        sender, alias = type(self), self.alias

        async def handle_async(
            context: late.AsyncContext, args: list[Any], kwargs: dict[str, Any]
        ) -> stored.Stored:
            with stored.running(task, context, args, kwargs, sender, alias) as attempt:
                attempt.value = await task.func(*attempt.positional, **kwargs)
            return attempt.stored()

        def handle(context: late.Context, args: list[Any], kwargs: dict[str, Any]) -> stored.Stored:
            with stored.running(task, context, args, kwargs, sender, alias) as attempt:
                attempt.value = task.func(*attempt.positional, **kwargs)
            return attempt.stored()

        return handle_async if inspect.iscoroutinefunction(task.func) else handle
