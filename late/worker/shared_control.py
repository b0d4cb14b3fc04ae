"""The one `Control` of a worker process: one engine with a small, bounded pool for all duties."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from late.control import Control


class SharedControl:
    """Makes the `Control` at the first call, in the thread of that caller, and keeps it.

    Importing SQLAlchemy takes as long as importing everything else, so it must not happen on the
    event loop. An engine and its first connection cost as much as a look at the database.

    Args:
        alarm_s: as for `Control`.
    """

    def __init__(self, url: str, *, alarm_s: float) -> None:
        self._url = url
        self._alarm_s = alarm_s
        self._lock = threading.Lock()
        self._control: Control | None = None

    def __call__(self) -> Control:
        """Return it, from any thread but the event loop's."""
        with self._lock:
            if self._control is None:
                from late.control import Control

                self._control = Control(self._url, alarm_s=self._alarm_s)
            return self._control

    def set_alarm(self, alarm_s: float) -> None:
        """Change `alarm_s` for the calls to come."""
        with self._lock:
            self._alarm_s = alarm_s
            if self._control is not None:
                self._control.groups.set_alarm(alarm_s)

    def close(self) -> None:
        """Close its connections. No call may be under way. Twice is fine."""
        with self._lock:
            if self._control is not None:
                self._control.close()
                self._control = None
