"""A consumer as a process: its environment, the lines that it writes, its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from tests.consumers.proxy import Proxy

LINE_BYTES_MAX = 1024 * 1024


class Program:
    """A running consumer. It writes `{"began": TASK_ID, "attempt": N}` as an attempt begins, and
    `{"ended": TASK_ID, "attempt": N}` as its work is done; all other lines are its own business."""

    def __init__(self, process: asyncio.subprocess.Process, proxy: Proxy) -> None:
        self.proxy = proxy
        self.began: list[tuple[str, int]] = []
        self.ended: list[tuple[str, int]] = []
        self._last: deque[str] = deque(maxlen=15)
        self._process = process
        self._reading = asyncio.gather(*map(self._read, (process.stdout, process.stderr)))

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.returncode

    @property
    def last_lines(self) -> str:
        return "\n".join(self._last)

    def attempts(self, task_id: str) -> list[int]:
        """The numbers of the attempts that it began, in their order."""
        return [attempt for task, attempt in self.began if task == task_id]

    def terminate(self) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()

    async def kill(self) -> None:
        """End it and its children in the middle of what they do."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self.wait()

    async def wait(self) -> None:
        """Wait for its end and for its last line."""
        await self._process.wait()
        await self._reading

    async def _read(self, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        while True:
            try:
                line = (await stream.readline()).decode(errors="replace").strip()
            except ValueError:
                continue  # a line without an end
            if not line:
                if stream.at_eof():
                    return
                continue
            self._last.append(line[:500])
            with suppress(ValueError, TypeError, KeyError):
                said = json.loads(line)
                if "began" in said:
                    self.began.append((said["began"], int(said["attempt"])))
                elif "ended" in said:
                    self.ended.append((said["ended"], int(said["attempt"])))


@asynccontextmanager
async def started(
    command: Sequence[str], proxy: Proxy, settings: dict[str, str]
) -> AsyncIterator[Program]:
    """Run the consumer for the time of the block, in a process group of its own."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "LATE_URL": proxy.address, **settings},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
        start_new_session=True,
    )
    program = Program(process, proxy)
    try:
        yield program
    finally:
        await program.kill()
