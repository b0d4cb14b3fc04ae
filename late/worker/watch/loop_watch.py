"""The watch on the worker's event loop: names the place in the code that keeps it from turning.

After one `time.sleep` in an `async def` no task of the worker gets on, and the loop cannot say so.
The reporter asks it for facts every two seconds, from the heartbeat's thread. A question that is
open at the next look means that the loop has not turned since, and the stack of its thread, read
from here, says where it is. That is told once per block, two to four seconds after it began.

A process that was stopped, and a loop that is about to wake up, are no block.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from late import events
from late.clock import Monotonic
from late.events import Emitter
from late.model.task import Attempt
from late.model.worker_report import Block

LEAST_S = 1.0
"""A question may be open for so long: the loop has much to do."""
PAUSE_S = 5.0
"""Looks that lie further apart say that the whole process stood still, and not the loop."""
PLACE_MAX = 300
_LATE = str(Path(__file__).parents[2]) + os.sep
_LIBRARY = tuple(
    path + os.sep for path in {os.path.dirname(os.__file__), sysconfig.get_path("platstdlib")}
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_TURNS = tuple(
    os.path.join(os.path.dirname(asyncio.__file__), name)
    for name in ("base_events.py", "events.py", "runners.py")
)
"""The frames that turn the loop: what lies outward of them is who has started it."""


class LoopWatch:
    """Watches one loop. `block` may be read from any thread.

    Args:
        attempt: returns the attempt that the loop runs now, if it is known; called in the thread
            of `look`.
        now_us: the database's time, as far as it is known.
        frames: returns the innermost frame of each thread.
    """

    def __init__(
        self,
        *,
        attempt: Callable[[], Attempt | None],
        now_us: Callable[[], int],
        monotonic: Monotonic = time.monotonic,
        frames: Callable[[], Mapping[int, FrameType]] = sys._current_frames,
        emitter: Emitter = events.default,
    ) -> None:
        self.block: Block | None = None
        """The block that lasts; None while the loop turns."""
        self._attempt = attempt
        self._now_us = now_us
        self._monotonic = monotonic
        self._frames = frames
        self._emitter = emitter
        self._thread: int | None = None
        self._open = False
        self._asked_s = self._answered_s = self._looked_s = 0.0

    def ask(self) -> None:
        """Note that a question goes to the loop; the one before it was answered."""
        self._end()
        self._asked_s = self._looked_s = self._monotonic()
        self._open = True

    def answer(self) -> None:
        """Note that the loop has turned; called in the loop."""
        self._thread = threading.get_ident()
        self._answered_s = self._monotonic()
        self._open = False

    def look(self) -> None:
        """Look whether the loop has answered, and say where it is if it has not."""
        now_s = self._monotonic()
        awake_s, self._looked_s = now_s - self._looked_s, now_s
        if not self._open:
            self._end()
        elif self.block is None and awake_s > PAUSE_S:
            self._asked_s = now_s  # as if it had been asked only now
        elif self.block is None and now_s - self._asked_s >= LEAST_S:
            self._begin(now_s - self._asked_s)

    def _begin(self, for_s: float) -> None:
        frame = None if self._thread is None else self._frames().get(self._thread)
        place = "" if frame is None else place_of(frame)
        attempt = self._attempt()
        if not place or not self._open:  # It has answered meanwhile.
            return
        name, task_id = (attempt.record.name, attempt.record.task_id) if attempt else ("", "")
        self.block = Block(place, self._now_us() - int(for_s * 1e6), name, task_id)
        self._emitter.emit(
            events.EVENT_LOOP_BLOCKED,
            blocked_s=round(for_s, 1), place=place, name=name, task=task_id,
        )  # fmt: skip

    def _end(self) -> None:
        block, self.block = self.block, None
        if block is not None:
            for_s = round(self._answered_s - self._asked_s, 1)
            self._emitter.emit(events.EVENT_LOOP_FREE, blocked_s=for_s, place=block.place)


def place_of(frame: FrameType) -> str:
    """Name the place that a loop's thread is at; empty if the loop only waits for something.

    It is the innermost frame of the app: neither of the standard library, nor of `late`, nor
    installed beside it. Where all is installed, the app too, it is what `late` has called; without
    any such frame, as in a mistake of `late` itself, the innermost of all.
    """
    called: FrameType | None = None
    waits = True
    at: FrameType | None = frame
    while at is not None and not at.f_code.co_filename.startswith(_TURNS):
        path = at.f_code.co_filename
        waits = waits and path == selectors.__file__
        if any(part in path for part in _INSTALLED) and not path.startswith(_LATE):
            called = at
        elif path.startswith(_LATE):
            if called is not None:
                break
        elif not path.startswith(("<frozen", *_LIBRARY)):
            return _text(at)
        at = at.f_back
    if waits and at is not None and at.f_code.co_name != "_run":  # No callback runs.
        return ""
    return _text(called or frame)


def _text(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"[-PLACE_MAX:]
