"""Results by Celery's names: `AsyncResult` of a task in the database, `EagerResult` of one here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from late.celery.exceptions import NotSupported, TaskRevokedError
from late.celery.values import from_json
from late.errors import ConfigError, InvalidName, TaskEnded

_STATES = {
    "done": "SUCCESS",
    "settled": "SUCCESS",
    "dead": "FAILURE",
    "expired": "REVOKED",
    "cancelled": "REVOKED",
    "discarded": "IGNORED",
}
_READY = {"SUCCESS", "FAILURE", "REVOKED", "IGNORED"}


class _Result(ABC):
    """The questions that both kinds answer from their state."""

    @property
    @abstractmethod
    def state(self) -> str:
        """The state, by Celery's name."""

    @property
    def status(self) -> str:
        return self.state

    def ready(self) -> bool:
        return self.state in _READY

    def successful(self) -> bool:
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        return self.state == "FAILURE"


class AsyncResult(_Result):
    """The state and the result of one task. Each question is a read of the database."""

    def __init__(self, id: str, app: Any = None) -> None:
        self.id = self.task_id = id
        self.app = app or newest_app()
        """The `Celery` of the task; without one, the one that was made last."""

    def __repr__(self) -> str:
        return f"<AsyncResult {self.id}>"

    def __str__(self) -> str:
        return self.id

    @property
    def state(self) -> str:
        """PENDING until the task has ended: no row says that it has started.

        An id that `late` has not given, such as one of Celery's, is PENDING too.
        """
        try:
            return _STATES.get(self.app.late_app.handle(self.id).state(), "PENDING")
        except InvalidName:
            return "PENDING"

    def get(self, timeout: float | None = None, propagate: bool = True) -> Any:
        """Wait for the end of the task, and return its value.

        Raises:
            TaskEnded: the task has failed. Without `propagate` it is returned instead.
            TaskRevokedError: it was revoked or has expired; likewise.
            TimeoutError: it has not ended in time, or its result is not kept.
        """
        try:
            return from_json(self.app.late_app.handle(self.id).wait(timeout))
        except TaskEnded as ended:
            error = ended
            if _STATES.get(ended.outcome) == "REVOKED":
                error = TaskRevokedError(str(ended), outcome=ended.outcome)
            if propagate:
                raise error from None
            return error

    wait = get

    @property
    def result(self) -> Any:
        """The value, or the error of a task that has failed; None before its end."""
        try:
            return self.get(timeout=0, propagate=False)
        except TimeoutError:
            return None

    def revoke(self, terminate: bool = False, signal: str | None = None) -> None:
        """See `Control.revoke`."""
        self.app.control.revoke(self.id, terminate, signal)

    def forget(self) -> None:
        """Refuse: a result goes by itself.

        Raises:
            NotSupported: always.
        """
        raise NotSupported("a result goes after `result_expires`; a task with ignore_result=True"
                           " keeps none")  # fmt: skip


def newest_app() -> Any:
    """Return the `Celery` that was made last.

    Raises:
        ConfigError: none was made.
    """
    from late.celery.app import _apps  # It needs this module.

    if not _apps:
        raise ConfigError("there is no late.celery.Celery yet: import the module that makes it")
    return _apps[-1]


class EagerResult(_Result):
    """The outcome of a task that ran in the caller."""

    def __init__(
        self,
        id: str,
        ret_value: Any,
        state: str,
        traceback: str | None = None,
        name: str | None = None,
    ) -> None:
        self.id = self.task_id = id
        self.result = ret_value
        self.traceback = traceback
        self.name = name
        """The name of the task."""
        self._state = state

    def __repr__(self) -> str:
        return f"<EagerResult: {self.id}>"

    @property
    def state(self) -> str:
        return self._state

    def get(self, timeout: float | None = None, propagate: bool = True) -> Any:
        """Return the value, or raise the task's error."""
        if propagate and isinstance(self.result, BaseException):
            raise self.result
        return self.result

    wait = get

    def revoke(self, *_: object, **__: object) -> None:
        """Turn the outcome into that of a revoked task."""
        self.result = TaskRevokedError("revoked", outcome="cancelled")
        self.traceback, self._state = None, "REVOKED"

    def forget(self) -> None:
        """Do nothing: nobody keeps the outcome but this object."""
