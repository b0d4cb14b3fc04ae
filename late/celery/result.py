"""Results by Celery's names: `AsyncResult` of a task in the database, `EagerResult` of one here."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from late.celery import ids
from late.celery.exceptions import NotSupported, TaskRevokedError
from late.celery.values import from_json
from late.errors import ConfigError, TaskEnded

_STATES = {
    "done": "SUCCESS",
    "settled": "SUCCESS",
    "dead": "FAILURE",
    "expired": "REVOKED",
    "cancelled": "REVOKED",
    "discarded": "IGNORED",
}
_READY = {"SUCCESS", "FAILURE", "REVOKED", "IGNORED"}
LOOK_S = 0.2
"""The time between two looks for a task with an id that its caller chose."""
PARENT_S = 1.0
"""The time between two looks at the tasks before one that is waited for."""


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

    def __init__(self, id: str, app: Any = None, parent: Any = None) -> None:
        self.id = self.task_id = id
        self.app = app or newest_app()
        """The `Celery` of the task; without one, the one that was made last."""
        self.parent = parent
        """The result of the part of the canvas before it; None for a task alone, and by an id."""

    def __repr__(self) -> str:
        return f"<AsyncResult {self.id}>"

    def __str__(self) -> str:
        return self.id

    @property
    def state(self) -> str:
        """PENDING until the task has ended: no row says that it has started.

        An id that `late` has not given, such as one of Celery's, is PENDING too.
        """
        task_id = ids.found(self.app.late_app, self.id)
        if task_id is None:
            return "PENDING"
        return _STATES.get(self.app.late_app.handle(task_id).state(), "PENDING")

    def get(
        self, timeout: float | None = None, propagate: bool = True, *, interval: float = 0.5,
        no_ack: bool = True, follow_parents: bool = True, disable_sync_subtasks: bool = True,
    ) -> Any:  # fmt: skip
        """Wait for the end of the task, and return its value.

        Args:
            interval, no_ack, follow_parents, disable_sync_subtasks: Celery's, without an effect.

        Raises:
            TaskEnded: the task has failed. Without `propagate` it is returned instead.
            TaskRevokedError: it was revoked or has expired; likewise.
            TimeoutError: it has not ended in time, or its result is not kept.
        """
        try:
            return from_json(self._wait(timeout))
        except TaskEnded as ended:
            error = ended
            if _STATES.get(ended.outcome) == "REVOKED":
                error = TaskRevokedError(str(ended), outcome=ended.outcome)
            if propagate:
                raise error from None
            return error

    wait = get

    def _wait(self, timeout: float | None) -> Any:
        """Wait for the task, and with a parent look whether a task before it has failed."""
        ends = math.inf if timeout is None else time.monotonic() + timeout
        while (task_id := ids.found(self.app.late_app, self.id)) is None:
            if time.monotonic() >= ends:
                raise TimeoutError(f"no task has the id {self.id:.80}")
            time.sleep(max(0.0, min(LOOK_S, ends - time.monotonic())))
        handle = self.app.late_app.handle(task_id)
        if self.parent is None:
            return handle.wait(None if timeout is None else max(0.0, ends - time.monotonic()))
        while True:
            try:
                return handle.wait(max(0.0, min(PARENT_S, ends - time.monotonic())))
            except TimeoutError:
                self.parent.raise_failure()
                if time.monotonic() >= ends:
                    raise

    def raise_failure(self) -> None:
        """Raise the error of this task, or of one before it, if one has failed.

        Raises:
            TaskEnded: it has.
        """
        if self.parent is not None:
            self.parent.raise_failure()
        outcome = self.app.late_app.handle(self.id).state()
        if _STATES.get(outcome, "SUCCESS") != "SUCCESS":
            raise TaskEnded(f"task {self.id} ended as {outcome}", outcome=outcome)

    @property
    def result(self) -> Any:
        """The value, or the error of a task that has failed; None before its end."""
        try:
            return self.get(timeout=0, propagate=False)
        except TimeoutError:
            return None

    info = result

    @property
    def traceback(self) -> str | None:
        """The last error of a task that has failed: its type, message and places in one line."""
        task_id = ids.found(self.app.late_app, self.id)
        found = None if task_id is None else self.app.late_app.handle(task_id).failure()
        return None if found is None else found.error

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
        self.parent: Any = None
        """See `AsyncResult.parent`."""
        self.name = name
        """The name of the task."""
        self._state = state

    def __repr__(self) -> str:
        return f"<EagerResult: {self.id}>"

    @property
    def state(self) -> str:
        return self._state

    def get(self, timeout: float | None = None, propagate: bool = True, **_: Any) -> Any:
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


class GroupResult:
    """The results of the parts of a group. It has no id: nothing of the group itself is kept."""

    def __init__(self, results: Sequence[Any], parent: Any = None) -> None:
        self.results = self.children = list(results)
        self.parent = parent
        """See `AsyncResult.parent`."""

    def __repr__(self) -> str:
        return f"<GroupResult: {self.results}>"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> Any:
        return self.results[index]

    def ready(self) -> bool:
        """Tell whether all have ended."""
        return all(each.ready() for each in self.results)

    def successful(self) -> bool:
        """Tell whether all are done."""
        return all(each.successful() for each in self.results)

    def failed(self) -> bool:
        """Tell whether one has failed."""
        return any(each.failed() for each in self.results)

    def waiting(self) -> bool:
        """Tell whether one has not ended."""
        return not self.ready()

    def completed_count(self) -> int:
        """Return the number of those that are done."""
        return sum(int(each.successful()) for each in self.results)

    def get(self, timeout: float | None = None, propagate: bool = True, **_: Any) -> list[Any]:
        """Wait for all, `timeout` seconds at most, and return their values in their order.

        Raises:
            See `AsyncResult.get`.
        """
        ends = math.inf if timeout is None else time.monotonic() + timeout
        return [
            each.get(
                None if timeout is None else max(0.0, ends - time.monotonic()), propagate=propagate
            )
            for each in self.results
        ]

    join = get

    def raise_failure(self) -> None:
        """Raise the error of the first part that has failed; see `AsyncResult`."""
        for each in self.results:
            each.raise_failure()

    def revoke(self, terminate: bool = False, signal: str | None = None) -> None:
        """See `Control.revoke`."""
        for each in self.results:
            each.revoke(terminate, signal)
