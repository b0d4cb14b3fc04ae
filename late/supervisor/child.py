"""One child process: how it is started, asked, stopped, and how it learns of its parent's death.

The parent holds two things for each child over all of its restarts. The *health socket* listens on
loopback from the first moment, and the child inherits it, so its port never changes and nobody
else can get it. The *life line* is a pipe whose other end only the parent has: the child reads its
end when the parent is gone, however it died.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence

import msgspec

from late.worker.watch.health import State

NUMBER = "LATE_PROCESS"
"""The variable with the number of a child, from 1 on."""
LIFE_LINE = "LATE_PARENT_FD"
"""The variable with the file descriptor on which a child sees the end of its parent."""
HEALTH_FD = "LATE_HEALTH_FD"
"""The variable of the setting `health_fd`."""
ANSWER_S = 2.0
"""The longest wait for an answer of a child's health check."""


class Child:
    """One of several processes that run the same command. All methods are for one event loop.

    Args:
        number: from 1 on.
        command: the program and its arguments.
    """

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self._command = tuple(command)
        self._health = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._health.getsockname()[1]
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    async def start(self, life_line: int) -> None:
        """Start the process. `life_line` is the end of the pipe that the child reads.

        It gets a session of its own: a Ctrl-C in the terminal is for the parent alone, which passes
        on one signal; two of them would end a worker at once.
        """
        health = self._health.fileno()
        own = {NUMBER: str(self.number), LIFE_LINE: str(life_line), HEALTH_FD: str(health)}
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env={**os.environ, **own},
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(life_line, health),
            start_new_session=True,
        )

    async def wait(self) -> int:
        """Wait for the end of the process, and return its exit code; negative: of a signal."""
        assert self._process is not None, "it was started"
        return await self._process.wait()

    def tell(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        if self.pid is not None and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def state(self) -> State | None:
        """Return what the health check says; None without an answer within `ANSWER_S`."""
        _, body = await self._get("/readyz")
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(body, type=State)
        return None

    async def metrics(self) -> bytes:
        """Return the page of metrics; empty without an answer within `ANSWER_S`."""
        status, body = await self._get("/metrics")
        return body if status == b"200" else b""

    def close(self) -> None:
        """Free the socket. The process must have ended."""
        self._health.close()

    async def _get(self, path: str) -> tuple[bytes, bytes]:
        """Return status and body; both empty without an answer."""
        if self.pid is None:
            return b"", b""
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
                finally:
                    writer.close()
        except (TimeoutError, OSError):
            return b"", b""
        return head.split(b" ", 2)[1] if b" " in head else b"", body


def number_of(environ: Mapping[str, str]) -> int | None:
    """Return the number of this process among its parent's children; None if it has no parent."""
    text = environ.get(NUMBER, "")
    return int(text) if text.isdecimal() else None


def settings() -> dict[str, int]:
    """Take the settings that a parent gave to this process; none without a parent. Processes that
    this one starts do not inherit them."""
    text = os.environ.pop(HEALTH_FD, "")
    return {"health_fd": int(text)} if text.isdecimal() else {}


def follow_parent() -> None:
    """Stop this process, as by SIGTERM, when its parent has ended. Without a parent: nothing."""
    text = os.environ.pop(LIFE_LINE, "")
    if not text.isdecimal():
        return
    end = int(text)

    def follow() -> None:
        with contextlib.suppress(OSError):
            while os.read(end, 1):
                pass
        logging.getLogger("late.supervisor").warning("the parent is gone: this process stops")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, name="late-parent", daemon=True).start()
