"""Deadlines for Google's client of Spanner, whose own deadlines are too long for an operator.

The client restarts a broken stream without a pause and without an end, and repeats calls to a dead
server for an hour. Here `start` gives a thread's work some time, and every request of the thread
gets the rest of that time. In a caller's own thread it is not known when the work begins, so every
request gets a fixed time.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from google.api_core import exceptions as api
from google.api_core.retry import Retry, if_exception_type

CALL_TIMEOUT_S = 10.0
"""The time after which a call fails. The lease of its caller may be only seconds long."""
_UNAVAILABLE_PAUSE_S = 0.05

_deadline: contextvars.ContextVar[float] = contextvars.ContextVar("late_spanner_deadline")

_STREAMS = ("streaming_read", "execute_streaming_sql")
_UNARY = (
    "begin_transaction", "commit", "rollback", "create_session", "batch_create_sessions",
    "delete_session", "execute_sql", "execute_batch_dml",
)  # fmt: skip


def start(timeout_s: float | None = None) -> None:
    """Set the time that the requests of this thread have together from now on.

    Args:
        timeout_s: seconds; by default `CALL_TIMEOUT_S`.
    """
    _deadline.set(time.monotonic() + (CALL_TIMEOUT_S if timeout_s is None else timeout_s))


def left() -> float:
    """Return the seconds that this thread's call has left; without a deadline, the whole time."""
    return max(0.001, _deadline.get(time.monotonic() + CALL_TIMEOUT_S) - time.monotonic())


def bind(spanner_api: Any, *, each_s: float | None = None) -> None:
    """Give every request of this client the rest of its call's time.

    Args:
        each_s: a fixed time for each request instead, for transactions of a caller.
    """
    for name in _UNARY:
        setattr(spanner_api, name, partial(_unary, getattr(spanner_api, name), each_s))
    for name in _STREAMS:
        setattr(spanner_api, name, _Stream(getattr(spanner_api, name), each_s))


def bind_admin(admin_api: Any) -> None:
    """Give the start of a schema change the rest of its call's time; see `bind`."""
    admin_api.update_database_ddl = partial(_unary, admin_api.update_database_ddl, None)


def _unary(method: Callable[..., Any], each_s: float | None, *args: Any, **kwargs: Any) -> Any:
    """Call `method` with the rest of the time, and again while the server is unavailable."""
    seconds = left() if each_s is None else each_s
    # A repeated commit is safe, as the same transaction id commits once.
    kwargs["retry"] = Retry(
        if_exception_type(api.ServiceUnavailable),
        initial=_UNAVAILABLE_PAUSE_S,
        maximum=1.0,
        timeout=seconds,
    )
    kwargs["timeout"] = seconds
    return method(*args, **kwargs)


class _Stream:
    """A method whose stream ends with the call. The client restarts streams without an end."""

    def __init__(self, method: Callable[..., Any], each_s: float | None) -> None:
        self._method = method
        self._each_s = each_s
        self._last = threading.local()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request, last = kwargs.get("request"), self._last
        if request is not None and getattr(last, "request", None) is request:
            time.sleep(_UNAVAILABLE_PAUSE_S)
        else:
            last.until = time.monotonic() + (self._each_s or 0.0)
        last.request = request
        seconds = left() if self._each_s is None else last.until - time.monotonic()
        if seconds <= 0.001:
            raise api.DeadlineExceeded("Spanner is unavailable")
        kwargs["timeout"] = seconds
        kwargs["retry"] = None
        return self._method(*args, **kwargs)
