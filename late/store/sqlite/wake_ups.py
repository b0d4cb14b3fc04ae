"""Notices of commits on SQLite: the kernel tells of a write, and a look tells whether it is a task.

A commit writes its pages to the file `-wal` first, then it usually waits for the disk, and only
then it can be seen. The last step is a store to shared memory, of which the kernel tells nobody. So
a write, which inotify reports, is followed by looks over `sum(PAUSES_S)` at the log's counter:
the row of `late_task` in `sqlite_sequence`, which only a commit with new tasks changes. Heartbeats,
settlements and the service's own rows are writes too; all that they cost is these looks.

The watch fires once and is set again by the next look, before that reads: so there is at most one
event for each look, however much is written. It is set by name, so that a file that was made anew
is watched from the next announcement on.

A look runs in the event loop, on a connection of its own: it takes some 5 us, or 20 after a commit,
where a call of the store's thread takes 70. It never waits for a lock.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing

from late.store.sqlite import guard

PAUSES_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024)
"""The looks after a write: after each of these pauses, until a commit is seen. A disk is seldom so
slow; and nobody tells of a commit that comes later."""
OVERLAP = PAUSES_S.index(0.016)
"""The pause with which looks go on where a commit was seen and somebody else had begun to write."""
SPACING_S = 0.002
"""The looks for the sake of writes begin this far apart, so that a file that is written all the
time costs little."""
AGAIN_S = 30.0
"""The time after which what did not work is tried again."""
IN_MODIFY = 0x2
IN_ONESHOT = 0x8000_0000
BUFFER = 4096

LOOK = """
select data_version, (select seq from sqlite_sequence where name = 'late_task')
  from pragma_data_version
"""

logger = logging.getLogger("late.notify")


class SqliteWakeUps:
    """See `late.store.base.WakeUps`. For Linux, and for a file that the store has open.

    Args:
        url: as `open_store` takes it.

    Raises:
        ConfigError: the URL names no file, or carries options.
    """

    def __init__(self, url: str) -> None:
        self._path = guard.path_of(url)
        # SQLite keeps its files beside the real one.
        self._wal = os.fsencode(os.path.realpath(self._path) + "-wal")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._heard: Callable[[], None] = lambda: None
        self._connection: sqlite3.Connection | None = None
        self._inotify = -1
        self._watch: int | None = None
        """The watch that was set last; None: nobody has asked."""
        self._seen: tuple[int, int | None] = (0, None)
        """The version of the file, and the position of the last task."""
        self._looked_s = 0.0
        self._written_since = False
        """True if somebody wrote between the last look and the watch that it set."""
        self._pause = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        """Its time. uvloop makes handles without one for what is due at once."""
        self._broken: asyncio.Future[None] | None = None
        self.unable = ""

    @property
    def ready(self) -> bool:
        return self._connection is not None

    @property
    def tells_of_fleet(self) -> bool:
        return False

    async def run(
        self,
        heard: Callable[[], None],
        lapsed: Callable[[], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Listen until cancelled, and again some time after an error. Nobody calls `lapsed`: each
        worker has a watch of its own. Nobody calls `changed`: all that it sees is a write."""
        self._heard = heard
        while True:
            try:
                await self._listen()
            except (OSError, sqlite3.Error) as error:
                if self.unable != str(error):
                    self.unable = str(error)
                    logger.warning("no notices of commits, tasks are found by polling: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def announce(self) -> bool:
        """Watch from now on; True: this was not so, or the file is another one."""
        before = self._watch
        if not self.ready or not self._set_watch() or self._watch == before:
            return False
        # A commit may have written before the watch was set, and be seen after the caller's look.
        self._pause = 1
        self._look_at(self._loop.time() + PAUSES_S[0])
        return True

    async def withdraw(self) -> None:
        """Stop that. The watch that is set fires once more at most."""
        self._watch = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _listen(self) -> None:
        """Make the connection and the descriptor, and wait until something fails.

        Raises:
            OSError, sqlite3.Error: the reason.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._broken = loop.create_future()
        with ExitStack() as stack:
            self._inotify = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._inotify < 0:
                raise self._error("inotify_init1")
            stack.callback(os.close, self._inotify)
            connection = sqlite3.connect(
                guard.address(self._path, "ro"), uri=True, timeout=0, isolation_level=None
            )
            stack.enter_context(closing(connection))
            (self._seen,) = connection.execute(LOOK).fetchall()
            stack.callback(self._end)
            self._connection, self.unable = connection, ""
            if self._set_watch():
                self._watch = None  # a test only: nobody has asked
            loop.add_reader(self._inotify, self._written)
            stack.callback(loop.remove_reader, self._inotify)
            await self._broken

    def _end(self) -> None:
        self._connection = self._watch = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_watch(self) -> bool:
        """Watch for the next write; False: it cannot be done, and `run` ends that."""
        watch = self._libc.inotify_add_watch(self._inotify, self._wal, IN_MODIFY | IN_ONESHOT)
        if watch >= 0:
            self._watch = watch
        elif self._broken is not None and not self._broken.done():
            self._broken.set_exception(self._error("inotify_add_watch"))
        return bool(watch >= 0)

    def _written(self) -> None:
        """Take in the event: there was a write since the watch was set."""
        os.read(self._inotify, BUFFER)
        if self._watch is None:
            return
        self._written_since = True
        self._pause = 1
        self._look_at(max(self._loop.time() + PAUSES_S[0], self._looked_s + SPACING_S))

    def _look_at(self, when_s: float) -> None:
        if self._timer is not None:
            if self._timer_s <= when_s:
                return
            self._timer.cancel()
        self._timer_s = when_s
        self._timer = self._loop.call_at(when_s, self._look)

    def _look(self) -> None:
        self._timer = None
        connection, written = self._connection, self._written_since
        self._written_since = False
        if connection is None or not self._set_watch():
            return
        self._looked_s = self._loop.time()
        try:
            ((version, last),) = connection.execute(LOOK).fetchall()
        except sqlite3.Error:
            version, last = self._seen  # busy for a moment; otherwise polling finds the tasks
        seen, self._seen = self._seen, (version, last)
        if last != seen[1]:
            self._heard()
        if version != seen[0]:
            if not written:
                return
            self._pause = OVERLAP
        if self._pause < len(PAUSES_S):
            self._look_at(self._looked_s + PAUSES_S[self._pause])
            self._pause += 1

    def _error(self, call: str) -> OSError:
        number = ctypes.get_errno()
        return OSError(number, f"{call}: {os.strerror(number)}")
