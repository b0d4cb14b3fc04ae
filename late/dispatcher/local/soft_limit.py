"""Raise `SoftTimeLimit` in a handler that runs in a thread, or in a child process.

CPython can raise an exception in another thread (`PyThreadState_SetAsyncExc`): it appears between
two bytecodes, so not while the thread waits in a call of C code. It must not appear after the
handler has ended: the thread would take it into its next job. A lock of the call, which its end
takes and keeps, decides which of the two was first.

In a child process the handler has the main thread, so a timer of the system does it: its signal
also ends a wait in C code.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable
from typing import Any

from late.errors import SoftTimeLimit

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)


class _Drained(BaseException):
    """Raised in a thread by itself, in place of what may not have appeared yet."""


class SoftLimitedCall:
    """A call that another thread may interrupt once."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._interrupted = False
        self._thread: int | None = None
        self._ended = threading.Lock()
        """Held for ever once the call has ended."""

    def __call__(self) -> Any:
        """Return or raise what the call does; `SoftTimeLimit` where it let that out."""
        thread = threading.get_ident()
        value, error, returned = None, None, False
        try:
            self._thread = thread
            try:
                value = self._call()
                returned = True
            except BaseException as raised:
                error = raised
            self._ended.acquire()
            if self._interrupted:
                _drain(thread)
        except SoftTimeLimit as late:
            # It came between the end of the call and here, and there is but one. What the call
            # raised may be lost by that, and must not look like a success.
            if error is None and not returned:
                error = late
        if error is not None:
            raise error
        return value

    def interrupt(self) -> None:
        """Raise `SoftTimeLimit` in the call, if it runs."""
        if self._thread is not None and self._ended.acquire(blocking=False):
            try:
                self._interrupted = True
                _raise_in(self._thread, SoftTimeLimit)
            finally:
                self._ended.release()


def _drain(thread: int) -> None:
    """See to it that what another thread has raised in this one never appears from here on.

    Not by taking it back with NULL: CPython 3.11 then looks for an exception for ever, and the
    process hangs as soon as somebody traces or profiles it (`sys.setprofile`).
    """
    try:
        # It replaces one that has not appeared. Again and again: from CPython 3.12 on it may appear
        # in a finalizer that the garbage collector runs here, and is lost there.
        while True:
            _raise_in(thread, _Drained)
    except _Drained:
        pass


class SoftLimitAlarm:
    """The limit of what runs in its block, in the main thread; None: there is none."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s

    def __enter__(self) -> None:
        if self._limit_s is not None:
            signal.signal(signal.SIGALRM, self._ring)
            self.restart()

    def __exit__(self, *_: object) -> None:
        if self._limit_s is not None:
            self._limit_s = None
            signal.setitimer(signal.ITIMER_REAL, 0)

    def restart(self) -> None:
        """Count from now: the handler has sent a heartbeat. Not after the limit was raised."""
        if self._limit_s is not None:
            signal.setitimer(signal.ITIMER_REAL, self._limit_s)

    def _ring(self, *_: object) -> None:
        if self._limit_s is not None:
            self._limit_s = None
            raise SoftTimeLimit
