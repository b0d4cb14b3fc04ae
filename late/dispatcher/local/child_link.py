"""The worker's end of one child process."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import SpawnProcess

from late.dispatcher.local.child_protocol import (
    LENGTH_BYTES,
    Beat,
    Broken,
    Ready,
    Reply,
    Run,
    decode_from_child,
    frame,
)
from late.handler.classify import Verdict

logger = logging.getLogger("late.dispatcher")


class ChildDied(Exception):
    """The process went away under its attempt."""


class Child:
    """The worker's end of one child process."""

    def __init__(self, process: SpawnProcess, sock: socket.socket) -> None:
        self.process = process
        self._sock = sock
        self._beat: Callable[[], object] | None = None
        self._reply: asyncio.Future[Verdict] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun = self.served = 0

    @property
    def alive(self) -> bool:
        return not self.gone.done()

    async def run(self, message: Run, beat: Callable[[], object]) -> Verdict:
        """Let the child run one attempt. `beat` is called for each of its heartbeats.

        Raises:
            ChildDied: it went away. When cancelled, it is killed.
        """
        assert self._writer is not None
        assert self._reply is None
        self._reply = asyncio.get_running_loop().create_future()
        self._beat = beat
        self.begun += 1
        try:
            self._writer.write(frame(message))
            verdict = await self._reply
            self.served += 1
            return verdict
        except asyncio.CancelledError:
            self.kill()
            raise
        finally:
            self._reply = self._beat = None

    def kill(self) -> None:
        """SIGKILL, at once. A child that is gone is fine."""
        self.process.kill()

    async def live(self) -> None:
        """Pass on what the child says until it is gone, then reap it. Its end is that of the
        process and not of the socket, which a grandchild may have inherited."""
        threading.Thread(target=self._reap, args=(asyncio.get_running_loop(),), daemon=True).start()
        reader, self._writer = await asyncio.open_connection(sock=self._sock)
        listening = asyncio.ensure_future(self._listen(reader))
        try:
            await asyncio.wait([listening, self.gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A child that closed its socket or sent nonsense is of no use any more.
            self.kill()
            await asyncio.shield(self.gone)
            # What it sent before it died is still in the socket.
            await asyncio.wait([listening], timeout=0.1)
            listening.cancel()
            self._writer.close()
            died = ChildDied(_end(self.process.exitcode))
            for future in (self.ready, self._reply):
                if future is not None and not future.done():
                    future.set_exception(died)
            if self.ready.done() and not self.ready.cancelled():
                self.ready.exception()  # Retrieved: nobody needs to wait for it.

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
                self._heard(decode_from_child(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, OSError):
            return
        except Exception:
            logger.exception("a child process sent what cannot be read")

    def _heard(self, message: Ready | Broken | Beat | Reply) -> None:
        match message:
            case Ready() if not self.ready.done():
                self.ready.set_result(None)
            case Broken(error) if not self.ready.done():
                self.ready.set_exception(ChildDied(error))
            case Beat() if self._beat is not None:
                self._beat()
            case Reply(verdict) if self._reply is not None and not self._reply.done():
                self._reply.set_result(verdict)

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        self.process.join()
        with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(self.gone.set_result, None)


def _end(exit_code: int | None) -> str:
    """Describe for people how a process ended."""
    if exit_code is None:
        return "the process went away"
    if exit_code >= 0:
        return f"the process ended with exit code {exit_code}"
    try:
        return f"the process was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"the process was killed by signal {-exit_code}"
