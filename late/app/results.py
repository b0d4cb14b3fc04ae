"""Results that are kept for a time: what a handler returned, for whoever waits for it.

They are written with the settlement that ends the task, so a result is there exactly when the end
is on record, however often the handler ran.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from late.concurrency import in_thread
from late.errors import TaskEnded
from late.handler.outcomes import Kept, Signal
from late.model.task import TaskId
from late.payload import values as payloads

if TYPE_CHECKING:
    from late.control import Control

TIMEOUT_S = 60.0
_POLL_S, _POLL_MAX_S = 0.02, 1.0


class Row(msgspec.Struct, frozen=True):
    """One row of `late_result`."""

    outcome: Literal["done", "dead", "expired", "discarded", "cancelled"]
    value: msgspec.Raw


decode = msgspec.json.Decoder(Row).decode


def kept(fn: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """`fn`, with its return value as an outcome that carries it."""
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
    """Raises `DecodeError`: it is not JSON, or too large."""
    return value if isinstance(value, Signal) else Kept(payloads.result(value))


class Handle:
    """One task, from the outside: `app.handle(task_id)`. Connects when it is asked."""

    def __init__(self, url: str, task_id: TaskId, group: str) -> None:
        self.task_id = task_id
        self.group = group
        self._url = url

    def __repr__(self) -> str:
        return f"<Handle {self.task_id} group={self.group}>"

    def state(self) -> str:
        """The outcome of the task, while its result is kept; else its state, as `late show` says
        it: `logged`, `open`, `parked`, `dead`, `settled`, `passed` or `unknown` (also where there
        is no such group). No table is read whole; see `docs/control.md` for what it costs."""
        with self._control() as control:
            found = control.tasks.result(self.task_id, group=self.group)
            if found is not None:
                return decode(found).outcome
            (group,) = control.tasks.show(self.task_id, group=self.group).groups
        return group.state

    async def result(self, timeout_s: float | None = TIMEOUT_S, *, type: Any = Any) -> Any:
        """Wait until the task has ended and return what its handler returned.

        Only for tasks with `result_ttl`: of others nothing is kept, and this waits in vain.

        Args:
            timeout_s: None for no limit. The task goes on after it.
            type: what the JSON is converted to, as msgspec does it.

        Raises:
            TaskEnded: it ended without a result: dead, cancelled, expired, discarded.
            TimeoutError: it has not ended, or its result is not kept (any more).
        """
        with self._control() as control:
            for pause_s in self._pauses(timeout_s):
                found = await in_thread(control.tasks.result, self.task_id, group=self.group)
                if found is not None:
                    return self._value(found, type)
                await asyncio.sleep(pause_s)
        raise self._in_vain(timeout_s)

    def wait(self, timeout_s: float | None = TIMEOUT_S, *, type: Any = Any) -> Any:
        """`result`, for code that is not async."""
        with self._control() as control:
            for pause_s in self._pauses(timeout_s):
                found = control.tasks.result(self.task_id, group=self.group)
                if found is not None:
                    return self._value(found, type)
                time.sleep(pause_s)
        raise self._in_vain(timeout_s)

    def _in_vain(self, timeout_s: float | None) -> TimeoutError:
        """Does not ask where the task stands: that may cost more than who waits has time for."""
        return TimeoutError(
            f"no result of task {self.task_id} within {timeout_s:g} s: it has not ended, or none "
            "is kept (result_ttl=); state() tells where it stands"
        )

    def _pauses(self, timeout: float | None) -> Iterator[float]:
        """Ends when the time is up; at least one look is taken."""
        ends = None if timeout is None else time.monotonic() + timeout
        pause_s = _POLL_S
        while True:
            left_s = pause_s if ends is None else ends - time.monotonic()
            yield max(0.0, min(pause_s, left_s))
            if ends is not None and time.monotonic() >= ends:
                return
            pause_s = min(_POLL_MAX_S, pause_s * 1.5)

    def _value(self, found: bytes, type: Any) -> Any:
        row = decode(found)
        if row.outcome != "done":
            raise TaskEnded(f"task {self.task_id} ended as {row.outcome}", outcome=row.outcome)
        return msgspec.json.decode(row.value, type=type)

    def _control(self) -> Control:
        from late.control import Control

        return Control(self._url)
