"""A sizer that runs commands, for databases that have no sizer of their own."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from late.autoscaler.targets.sizer import CompletedResize, PendingResize, ResizeError
from late.errors import ConfigError

OUTPUT_MAX = 400
PRINTED_MAX = 65_536
POLL_S = 0.05


class CommandSizer:
    """Sizes with commands: CockroachDB, replicas of PostgreSQL, anything that has a tool.

    No shell reads them. `{size}` and `{before}` in an argument become the numbers, which are also
    in the environment as LATE_SIZE and LATE_SIZE_BEFORE. The size command prints the present size
    and nothing else. A resize must be idempotent: it may be asked for twice.
    """

    def __init__(
        self, name: str, *, size: Sequence[str], resize: Sequence[str], timeout_s: float = 300.0
    ) -> None:
        if not size or not resize:
            raise ConfigError("a command sizer needs a command for the size and one for a resize")
        if timeout_s <= 0:
            raise ConfigError(f"the time-out of a command must be above 0, not {timeout_s}")
        self._name, self._timeout_s = name, timeout_s
        self._size, self._resize = tuple(size), tuple(resize)

    @property
    def name(self) -> str:
        return self._name

    def size(self) -> int:
        text = self._run(self._size, {}).strip()
        try:
            size = int(text)
        except ValueError:
            raise ResizeError("no size", f"the command printed {text[:80]!r}") from None
        if size < 1:
            raise ResizeError("no size", f"the command printed {size}")
        return size

    def resize(self, before: int, size: int) -> PendingResize:
        values = {"{size}": str(size), "{before}": str(before)}
        command = []
        for word in self._resize:
            for name, value in values.items():
                word = word.replace(name, value)
            command.append(word)
        self._run(command, {"LATE_SIZE": str(size), "LATE_SIZE_BEFORE": str(before)})
        return CompletedResize()

    def _run(self, command: Sequence[str], extra: dict[str, str]) -> str:
        """Run a command and return its output.

        It gets a process group of its own. At the time-out the whole group is killed, so that the
        next try does not run beside it, and a Ctrl-C for the controller does not interrupt a
        resize.
        """
        try:
            child = subprocess.Popen(
                command,
                env={**os.environ, **extra},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise ResizeError("not run", f"{command[0]}: {error.strerror}") from error
        with child:
            try:
                out, err = _printed(child, time.monotonic() + self._timeout_s)
            except TimeoutError:
                raise ResizeError("timed out", f"after {self._timeout_s:g} s") from None
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
        if child.returncode != 0:
            last = (err.strip().splitlines() or [""])[-1]
            raise ResizeError(f"exit {child.returncode}", last[:OUTPUT_MAX])
        return out


def _printed(child: subprocess.Popen[bytes], until: float) -> tuple[str, str]:
    """Wait for a process until the monotonic time `until` and return both its streams: only the
    last `PRINTED_MAX` bytes of each, so that endless output does not fill the memory.

    Raises:
        TimeoutError: it still runs.
    """
    streams = child.stdout, child.stderr
    kept: dict[Any, bytes] = dict.fromkeys(streams, b"")
    with selectors.DefaultSelector() as reading:
        for stream in streams:
            assert stream is not None
            reading.register(stream, selectors.EVENT_READ)
        while True:
            ended = child.poll() is not None
            ready = reading.select(0 if ended else POLL_S)
            if ended and not ready:
                break  # even if a process that it left behind still holds a stream
            for key, _ in ready:
                part = os.read(key.fd, 65_536)
                kept[key.fileobj] = (kept[key.fileobj] + part)[-PRINTED_MAX:]
                if not part:
                    reading.unregister(key.fileobj)
            if time.monotonic() >= until:
                raise TimeoutError
    out, err = (kept[stream].decode("utf-8", errors="replace") for stream in streams)
    return out, err
