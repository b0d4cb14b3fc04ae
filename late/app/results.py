"""Results: the return values of handlers, kept for a time.

A result is written with the settlement that ends the task. So there is exactly one result per
recorded end, even if the handler ran several times.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import msgspec

from late.app import result_poll
from late.concurrency import in_thread
from late.errors import TaskEnded
from late.handler.outcomes import Kept, Signal
from late.model.task import TaskId
from late.payload import models
from late.payload import values as payloads

if TYPE_CHECKING:
    from late.control import Control
    from late.control.status.task import Failure

T = TypeVar("T")

TIMEOUT_S = 60.0


class Row(msgspec.Struct, frozen=True):
    """One row of `late_result`."""

    outcome: Literal["done", "dead", "expired", "discarded", "cancelled"]
    value: msgspec.Raw


decode = msgspec.json.Decoder(Row).decode


def kept(fn: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """Wrap `fn` so that it returns an outcome that holds its return value."""
    if is_async:

        @functools.wraps(fn)
        async def awaited(*args: Any, **kwargs: Any) -> Signal:
            return _outcome(await fn(*args, **kwargs))

        return awaited

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Signal:
        return _outcome(fn(*args, **kwargs))

    return called


def _outcome(value: object) -> Signal:
    """Return the outcome for a return value.

    Raises:
        DecodeError: the value is not JSON, or is too large.
    """
    return value if isinstance(value, Signal) else Kept(payloads.result(value))


class Handle:
    """The state and the result of one task: `app.handle(task_id)`.

    Each method connects anew. All that wait in one process share a connection.
    """

    def __init__(self, url: str, task_id: TaskId, group: str) -> None:
        self.task_id = task_id
        self.group = group
        self._url = url

    def __repr__(self) -> str:
        return f"<Handle {self.task_id} group={self.group}>"

    def state(self) -> str:
        """Read the task's outcome while its result is kept, and else its state.

        The state is that of `late show`: `waiting`, `logged`, `open`, `parked`, `dead`, `settled`,
        `passed` or `unknown` (also if there is no such group). `waiting` is a stage of a workflow
        whose turn has not come. No whole table is read; `docs/control.md` names
        the cost.
        """
        with self._control() as control:
            found = control.tasks.result(self.task_id, group=self.group)
            if found is not None:
                return decode(found).outcome
            return control.tasks.state(self.task_id, self.group)

    async def astate(self) -> str:
        """Read the state in a thread, for code that is async; see `state`."""
        return await in_thread(self.state)

    def failure(self) -> Failure | None:
        """Read why the task is a dead letter; None if it is none, or none any more.

        A task of `on_failure`, which is given the id of the one that failed, learns the error so:
        the dead letter is there when it starts. What expired or was discarded leaves none.
        """
        with self._control() as control:
            return control.tasks.failure(self.task_id, self.group)

    async def afailure(self) -> Failure | None:
        """Read it in a thread, for code that is async; see `failure`."""
        return await in_thread(self.failure)

    @overload
    async def result(self, timeout_s: float | None = ..., *, type: type[T]) -> T: ...
    @overload
    async def result(self, timeout_s: float | None = ..., *, type: Any = ...) -> Any: ...
    async def result(self, timeout_s: float | None = TIMEOUT_S, *, type: Any = Any) -> Any:
        """Wait until the task has ended, and return its handler's return value.

        It is only for tasks with `result_ttl`: no result of others is kept, so this would wait
        until the time-out. Only a stage of a workflow says without one that it did not end well.

        Args:
            timeout_s: the longest wait; None for no limit. The time-out does not end the task. A
                database that is away for a moment is asked again within it.
            type: the type to which msgspec converts the JSON, also one with models of pydantic.

        Raises:
            TaskEnded: the task ended without a result: dead, cancelled, expired or discarded.
            TimeoutError: it has not ended, or its result is not kept (any more).
            StoreUnavailable: the database was away at the end of that time.
        """
        asked = result_poll.ask(self._url, self.task_id, self.group, timeout_s)
        found = await asyncio.wrap_future(asked)
        if found is None:
            raise self._timed_out(timeout_s)
        return self._value(found, type)

    @overload
    def wait(self, timeout_s: float | None = ..., *, type: type[T]) -> T: ...
    @overload
    def wait(self, timeout_s: float | None = ..., *, type: Any = ...) -> Any: ...
    def wait(self, timeout_s: float | None = TIMEOUT_S, *, type: Any = Any) -> Any:
        """Wait for the result in code that is not async; see `result`."""
        asked = result_poll.ask(self._url, self.task_id, self.group, timeout_s)
        try:
            found = asked.result()
        finally:
            asked.cancel()  # After Ctrl-C nobody waits; else it does nothing.
        if found is None:
            raise self._timed_out(timeout_s)
        return self._value(found, type)

    def _timed_out(self, timeout_s: float | None) -> TimeoutError:
        """Return the error of a time-out. The task's state is not read, as that may take long."""
        return TimeoutError(
            f"no result of task {self.task_id} within {timeout_s:g} s: it has not ended, or none "
            "is kept (result_ttl=); state() tells where it stands"
        )

    def _value(self, found: bytes, type: Any) -> Any:
        row = decode(found)
        if row.outcome != "done":
            raise TaskEnded(f"task {self.task_id} ended as {row.outcome}", outcome=row.outcome)
        return msgspec.json.decode(row.value, type=type, dec_hook=models.decode)

    def _control(self) -> Control:
        from late.control import Control

        return Control(self._url)
