"""Connections that a process keeps between the transactions of its handlers.

To open a connection of PostgreSQL costs ten times what a short transaction does. A connection that
is idle for `IDLE_S` is closed and not tried: what lies between (a firewall, a balancer) may have
forgotten it, and a test would cost a round trip. So nobody has to know how long they remember.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

IDLE_S = 30.0


class IdleConnections:
    """A stack of connections. Any thread may call any method.

    It never makes a caller wait: who finds it empty opens a connection. So a handler that opens a
    second transaction in the first, and one that hangs, take nothing from others.
    """

    def __init__(self, most: int, *, idle_s: float = IDLE_S) -> None:
        """
        Args:
            most: the number of connections to keep; more that are put in are closed.
        """
        self._most = most
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._idle: deque[tuple[float, Any, Callable[[], object]]] = deque()
        self._timer: threading.Timer | None = None
        self._closed = False
        # A forked child shares the sockets of its parent. It must neither use nor close them.
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self._idle)

    def take(self) -> Any:
        """Return the connection that was used last, or None. The caller puts it in or closes it."""
        if os.getpid() != self._process:
            return None
        with self._lock:
            while self._idle:
                since, connection, close = self._idle.pop()
                if monotonic() - since < self._idle_s:
                    return connection
                close()
        return None

    def put(self, connection: Any, close: Callable[[], object]) -> None:
        """Keep `connection`, or call `close`. It has no open transaction, and no other user."""
        if os.getpid() == self._process:
            with self._lock:
                if not self._closed and len(self._idle) < self._most:
                    self._idle.append((monotonic(), connection, close))
                    if self._timer is None:
                        self._wait(self._idle_s)
                    return
        close()

    def close(self) -> None:
        """Close those that are idle, now, and those that are in use when they are put in."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        if os.getpid() == self._process:
            for _, _, close in idle:
                close()

    def _wait(self, for_s: float) -> None:
        timer = threading.Timer(for_s, self._expire)
        timer.daemon = True
        timer.name = "late-idle-connections"
        # No thread can be had: the next one that is put in tries again. The handler has committed.
        with suppress(RuntimeError):
            timer.start()
            self._timer = timer  # Not before: a soft time limit may end the handler in `start`.

    def _expire(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._timer = None
            old = monotonic() - self._idle_s
            while self._idle and self._idle[0][0] <= old:
                self._idle.popleft()[2]()
            if self._idle:
                self._wait(self._idle[0][0] - old)
