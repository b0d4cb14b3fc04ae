"""The exceptions of Celery's interface, by Celery's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from late.errors import ConfigError, SoftTimeLimit, TaskEnded


class NotSupported(ConfigError):
    """The interface has this in Celery and not here. The message names what to use instead."""


class Retry(Exception):
    """The attempt asks for another one. `Task.retry` raises it."""

    def __init__(self, message: str, exc: BaseException | None, after_s: float) -> None:
        super().__init__(message)
        self.exc = exc
        self.after_s = after_s
        """Seconds until the next attempt."""


class MaxRetriesExceededError(Exception):
    """No retries are left, and `retry` was not told of another error."""

    def __init__(
        self, message: str = "", task_args: Sequence[Any] = (), task_kwargs: Mapping[str, Any] = {}
    ) -> None:
        super().__init__(message)
        self.task_args = task_args
        self.task_kwargs = task_kwargs


class TaskRevokedError(TaskEnded):
    """Somebody waits for a task that was revoked, or that has expired."""


class Ignore(Exception):
    """End the task as done, without a result."""


class Reject(Exception):
    """End the task as a dead letter, or with `requeue` run it again."""

    def __init__(self, reason: object = None, requeue: bool = False) -> None:
        super().__init__(reason, requeue)
        self.reason = reason
        self.requeue = requeue


SoftTimeLimitExceeded = SoftTimeLimit
TimeoutError = TimeoutError  # Python's own: `AsyncResult.get` raises it.


class TimeLimitExceeded(Exception):
    """An attempt was over its `time_limit`. A `link_error` gets it."""


class TimeLimitFailure(Exception):
    """The task let `SoftTimeLimitExceeded` out: it fails, as in Celery, and is not repeated."""
