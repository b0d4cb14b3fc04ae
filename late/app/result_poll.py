"""One poll for all of a process that wait for results of one database.

All waiters share one thread and one connection, and one statement asks for many ids. The thread
ends and the connection is closed when nobody waits any more, before the last waiter has its answer.
So a program that waits now and then keeps nothing open in between.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from late.errors import StoreError
from late.model.ids import shard_of

if TYPE_CHECKING:
    from late.control import Control

FIRST_S, LONGEST_S, GROWTH = 0.02, 1.0, 1.5
"""The pause after the first read of a task, and its growth."""

_log = logging.getLogger("late.results")


class _Waiter:
    """One who waits. All times are of the monotonic clock, in seconds."""

    __slots__ = ("answer", "due", "early", "ends", "group", "pause_s", "task_id")

    def __init__(self, task_id: str, group: str, timeout_s: float | None) -> None:
        self.task_id = task_id
        self.group = group
        self.due = self.early = now = time.monotonic()
        """The time of the next read, and from when it may ride on that of another waiter."""
        self.ends = None if timeout_s is None else now + timeout_s
        self.pause_s = FIRST_S
        self.answer: Future[bytes | None] = Future()

    def is_over(self, now: float) -> bool:
        """Return whether its time is over."""
        return self.ends is not None and now >= self.ends

    def put_off(self, now: float) -> None:
        """Set the time of the next read."""
        self.due = now + self.pause_s
        if self.ends is not None:  # There is one more at the very end.
            self.due = min(self.due, self.ends)
        self.early = min(self.due, now + self.pause_s / 2)
        self.pause_s = min(LONGEST_S, self.pause_s * GROWTH)


class _Poll(threading.Thread):
    """The thread that reads for all waiters of one database."""

    def __init__(self, url: str) -> None:
        super().__init__(name="late-results", daemon=True)
        self.waiters: set[_Waiter] = set()
        self.changed = threading.Condition(_lock)
        self._url = url
        self._control: Control | None = None
        self._is_away = False

    def run(self) -> None:
        """Read until nobody waits."""
        while asked := self._next():
            found, error = self._read(asked)
            over = self._over(asked, found, error)
            if not self.waiters:  # Nobody can come any more: see `_over`.
                self._close()
            for waiter in over:
                _tell(waiter, found.get((waiter.group, waiter.task_id)), error)
        self._close()

    def _next(self) -> list[_Waiter]:
        """Wait until a read is due, and return whom it is for; nobody if nobody waits."""
        with self.changed:
            while True:
                self.waiters = {each for each in self.waiters if not each.answer.cancelled()}
                if not self.waiters:
                    self._leave()
                    return []
                now, due = time.monotonic(), min(each.due for each in self.waiters)
                if due <= now:
                    return [each for each in self.waiters if each.early <= now]
                self.changed.wait(due - now)

    def _over(
        self,
        asked: list[_Waiter],
        found: dict[tuple[str, str], bytes],
        error: Exception | None,
    ) -> list[_Waiter]:
        """Take out and return those whose wait is over; set the next read of the others."""
        over, now = [], time.monotonic()
        lasting = error is not None and not _is_transient(error)
        with self.changed:
            for waiter in asked:
                is_there = (waiter.group, waiter.task_id) in found
                if is_there or lasting or waiter.is_over(now):
                    over.append(waiter)
                else:
                    waiter.put_off(now)
            self.waiters.difference_update(over)
            if not self.waiters:
                self._leave()
        return over

    def _leave(self) -> None:
        """Let the next waiter begin a poll of its own."""
        if _polls.get(self._url) is self:
            del _polls[self._url]

    def _read(self, asked: list[_Waiter]) -> tuple[dict[tuple[str, str], bytes], Exception | None]:
        """Read results by group and task, and the error that has ended the read."""
        found: dict[tuple[str, str], bytes] = {}
        ids: dict[str, set[str]] = {}
        for waiter in asked:
            ids.setdefault(waiter.group, set()).add(waiter.task_id)
        try:
            if self._control is None:
                from late.control import Control

                self._control = Control(self._url)
            for group, some in ids.items():
                values = self._control.tasks.results(some, group=group)
                found |= {(group, task_id): value for task_id, value in values.items()}
        except Exception as error:
            if _is_transient(error) and not self._is_away:
                _log.warning("results cannot be read at present: %s", error)
                self._is_away = True
            return found, error
        self._is_away = False
        return found, None

    def _close(self) -> None:
        if self._control is not None:
            with suppress(Exception):  # Its waiters are told all the same.
                self._control.close()
            self._control = None


def _is_transient(error: Exception) -> bool:
    return isinstance(error, StoreError) and error.transient


def _tell(waiter: _Waiter, value: bytes | None, error: Exception | None) -> None:
    if not waiter.answer.set_running_or_notify_cancel():
        return
    if value is None and error is not None:
        waiter.answer.set_exception(error)
    else:
        waiter.answer.set_result(value)


def ask(url: str, task_id: str, group: str, timeout_s: float | None) -> Future[bytes | None]:
    """Wait for a result; the answer is None if the time is over.

    A database that is away for a moment is asked again within the time. There is at least one read.

    Raises:
        InvalidName: the text is no id.
        RuntimeError: no thread can be started.

    The future has the errors of `Control`. To cancel it ends the wait; the connection of the last
    one who waited is closed within a second then.
    """
    shard_of(task_id)  # It would end the read of others.
    waiter = _Waiter(task_id, group, timeout_s)
    with _lock:
        poll = _polls.get(url)
        if poll is None:
            poll = _Poll(url)
            poll.waiters.add(waiter)
            poll.start()
            _polls[url] = poll
        else:
            poll.waiters.add(waiter)
            poll.changed.notify()
    return waiter.answer


_lock = threading.Lock()
_polls: dict[str, _Poll] = {}


def _forget() -> None:
    """Begin anew in a child process, which has none of the threads."""
    global _lock, _polls
    _lock, _polls = threading.Lock(), {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
