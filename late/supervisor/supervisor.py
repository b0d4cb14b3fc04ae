"""Runs N copies of one worker on one machine: starts, watches, restarts, rolls and stops them.

The parent imports no app and opens no database, so nothing of the service can bring it down. Each
child is a worker like any other: it joins the fleet by itself, and no child knows the others.

| what happens | what follows |
|---|---|
| a child ends, whatever its exit code | another takes its place (`restarts.py`) |
| a child stalls, or does not answer, for `STALLED_CHECKS` checks | it is ended and replaced |
| the children end again and again before they are ready | the others are stopped; exit code 1 |
| SIGHUP | one child after the other is replaced, each when the one before is ready |
| a new child of such a round does not get ready | the round ends: the others keep the old code |
| SIGTERM, SIGINT | all children stop cleanly; a second signal stops them at once |
| the parent is killed | the children see it and stop cleanly |
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from late.config import WorkerConfig
from late.errors import ConfigError
from late.observability.logs import fields
from late.supervisor.child import Child
from late.supervisor.metrics_page import join
from late.supervisor.restarts import Restarts
from late.worker.health import Health, State

logger = logging.getLogger("late.supervisor")

CHECK_S = 1.0
"""Between two checks of a child."""
STALLED_CHECKS = 10
"""So many checks in a row must fail before a child that had been ready is ended. Its own health
check waits for longer than a slow turn of the loop already."""
ENDING_S = 15.0
"""The time beyond the grace in which a stopping worker records and says farewell."""
RELOAD_S = 3.0
"""The time that handlers have to end when sources have changed."""
READY_S = 120.0
"""The longest time that a new child may take to get ready while the others are replaced."""


def run(
    command: Sequence[str], count: int, settings: WorkerConfig, reload: Path | None = None
) -> int:
    """Run `count` children until SIGTERM or SIGINT, and return the exit code.

    Args:
        reload: for development: a folder; a change of a Python file in it restarts all children.

    Raises:
        ConfigError: see `Supervisor`; or a setting is for one process.
    """
    for name in ("wake_port", "member"):
        if getattr(settings, name) is not None:
            raise ConfigError(f"{name} is for one process: it cannot be used with --processes")

    async def serve() -> int:
        supervisor = Supervisor(command, count, settings, patient=reload is not None)
        await supervisor.start()
        if changes is None:
            return await supervisor.wait()
        watching = asyncio.create_task(supervisor.reload_on(changes))
        code = await supervisor.wait()
        watching.cancel()
        return code

    changes = None if reload is None else python_changes(reload)
    return asyncio.run(serve())


def python_changes(folder: Path) -> AsyncIterator[object]:
    """Yield whenever Python files in `folder` have changed.

    Raises:
        ConfigError: watchfiles is not installed.
    """
    try:
        from watchfiles import PythonFilter, awatch
    except ImportError:
        raise ConfigError("--reload needs watchfiles: pip install 'late[reload]'") from None
    return awatch(folder, watch_filter=PythonFilter())


class Supervisor:
    """The parent. It can be started once.

    Args:
        command: a child's program and arguments.
        count: how many children.
        settings: of the workers; the parent uses their grace, and the address of the health check,
            at which it answers for all of them.
        patient: for development: a child that does not get ready waits for other sources.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(
        self, command: Sequence[str], count: int, settings: WorkerConfig, *, patient: bool = False
    ) -> None:
        self._children = [Child(number, command) for number in range(1, count + 1)]
        self._restarts = Restarts(count, random.Random(), patient=patient)
        self._grace_s = settings.grace_s + ENDING_S
        self._states: dict[int, State] = {}
        """By the number of the child: its last answer, while it runs."""
        self._misses = dict.fromkeys((child.number for child in self._children), 0)
        self._was_ready: set[int] = set()
        """The numbers of the children that have been ready since they were started."""
        self._ready_events = {number: asyncio.Event() for number in self._misses}
        self._outdated = {number: asyncio.Event() for number in self._misses}
        """Set when the sources have changed since the child's last start."""
        self._stopping = asyncio.Event()
        self._exit_code = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._rolling: asyncio.Task[None] | None = None
        self._life_line, self._held = os.pipe()
        self.health: Health | None = None
        if settings.health_port is not None:
            host, port = settings.health_host, settings.health_port
            self.health = Health(host, port, self.state, metrics=self.metrics)

    async def start(self) -> None:
        """Start all children, and return without waiting for them."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self.roll)
        works: list[Coroutine[Any, Any, None]] = [self._keep(child) for child in self._children]
        works += [self._check(child) for child in self._children]
        if self.health is not None:
            works.append(self.health.run())
        self._tasks = [asyncio.create_task(work) for work in works]

    async def wait(self) -> int:
        """Wait until it was asked to stop, or gave up, and all children have ended.

        Returns:
            0 if each child stopped cleanly, otherwise the exit code of one that did not.
        """
        await self._stopping.wait()
        if self._rolling is not None:
            self._rolling.cancel()
        keepers = self._tasks[: len(self._children)]
        for child in self._children:
            child.tell(signal.SIGTERM)
        _, pending = await asyncio.wait(keepers, timeout=self._grace_s)
        if pending:
            logger.error("killed what did not stop", extra=fields(processes=len(pending)))
            self._exit_code = self._exit_code or 1
            for child in self._children:
                child.tell(signal.SIGKILL)
        for task in self._tasks[len(self._children) :]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for child in self._children:
            child.close()
        os.close(self._life_line)
        os.close(self._held)
        if self.health is not None:
            self.health.close()
        return self._exit_code

    def ask_to_stop(self) -> None:
        """Stop all children cleanly; at once with the second call."""
        if self._stopping.is_set():
            for child in self._children:
                child.tell(signal.SIGTERM)
        self._stopping.set()

    def roll(self) -> None:
        """Replace one child after the other. Nothing while such a round is under way."""
        if self._rolling is None or self._rolling.done():
            self._rolling = asyncio.create_task(self._roll())

    async def reload_on(self, changes: AsyncIterator[object]) -> None:
        """Restart all children at each change, without waiting for long handlers."""
        async for _ in changes:
            if self._stopping.is_set():
                return
            logger.info("sources have changed: all processes start again")
            for outdated in self._outdated.values():
                outdated.set()
            await asyncio.gather(*[self._end(child, RELOAD_S) for child in self._children])

    def state(self) -> State:
        """Return the answer to a health check, for all children together.

        The parent is live while it runs: it replaces what stalls. It is ready if each child is.
        """
        known = list(self._states.items())
        stalled = tuple(
            f"process {number}: {duty}" for number, state in known for duty in state.stalled
        )
        waits = [number for number in self._misses if not self._ready(number)]
        reason = f"not ready: process {', '.join(map(str, waits))}" if waits else ""
        return State(f"parent of {len(self._children)}", True, not waits, stalled, reason)

    async def metrics(self) -> bytes:
        """Return the metrics of all children that answer, each series with its process."""
        pages = await asyncio.gather(*[child.metrics() for child in self._children])
        numbers = [child.number for child in self._children]
        own = (
            "# HELP late_process_restarts_total Worker processes started in place of one that ended"
            " or stalled.\n# TYPE late_process_restarts_total counter\n"
            f"late_process_restarts_total {self._restarts.count}\n"
        )
        return own.encode() + join(dict(zip(numbers, pages, strict=True)))

    # ------------------------------------------------------------------ one child

    async def _keep(self, child: Child) -> None:
        """Have the child run until the stop."""
        number = child.number
        while not self._stopping.is_set():
            self._misses[number] = 0
            self._was_ready.discard(number)
            self._outdated[number].clear()
            code = await self._run(child)
            self._states.pop(number, None)
            if self._stopping.is_set():
                self._exit_code = self._exit_code or code
                return
            wait_s = self._restarts.after(
                code,
                was_ready=number in self._was_ready,
                others_ready=any(self._ready(other) for other in self._misses),
            )
            if wait_s is None:
                self._give_up(child, code)
                return
            logger.log(
                logging.WARNING if code else logging.INFO,
                "process ended, another takes its place",
                extra=fields(process=number, code=code, wait_s=wait_s),
            )
            await self._pause(child, wait_s)

    async def _pause(self, child: Child, wait_s: float) -> None:
        """Wait before the next start, until a stop or a change of the sources at most."""
        ends = (self._stopping, self._outdated[child.number])
        waits = [asyncio.ensure_future(each.wait()) for each in ends]
        await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()

    async def _run(self, child: Child) -> int:
        """Start a child, wait for its end, and return its exit code."""
        try:
            await child.start(self._life_line)
        except OSError as error:  # no memory, too many processes
            logger.error("process cannot be started: %s", error)
            return 1
        logger.info("process started", extra=fields(process=child.number, pid=child.pid))
        if self._stopping.is_set():  # asked while it started
            child.tell(signal.SIGTERM)
        return await child.wait()

    def _give_up(self, child: Child, code: int) -> None:
        logger.error(
            "gave up: the processes end before they are ready; see their own lines above",
            extra=fields(process=child.number, code=code, restarts=self._restarts.count),
        )
        self._exit_code = code if code > 0 else 1
        self._stopping.set()

    async def _check(self, child: Child) -> None:
        """Ask the child how it is, and end it if it stalls."""
        number = child.number
        while True:
            await asyncio.sleep(CHECK_S)
            pid = child.pid
            if pid is None:
                continue
            state = await child.state()
            if child.pid != pid:
                continue  # another one by now
            if state is not None:
                self._states[number] = state
                if state.ready and number not in self._was_ready:
                    self._was_ready.add(number)
                    self._ready_events[number].set()
                    self._restarts.ready()
            fails = state is None or not state.live
            # One that has never been ready imports, or waits for the database.
            started = number in self._was_ready
            self._misses[number] = self._misses[number] + 1 if fails and started else 0
            if self._misses[number] >= STALLED_CHECKS:
                logger.error("process stalls, and is ended", extra=fields(process=number, pid=pid))
                await self._end(child)

    async def _end(self, child: Child, grace_s: float | None = None) -> None:
        """Stop a child cleanly, or kill it after its grace."""
        pid = child.pid
        if pid is None:
            return
        child.tell(signal.SIGTERM)
        grace_s = self._grace_s if grace_s is None else grace_s
        if not await _first(child.wait(), grace_s) and child.pid == pid:
            child.tell(signal.SIGKILL)
            await child.wait()
        self._states.pop(child.number, None)

    def _ready(self, number: int) -> bool:
        state = self._states.get(number)
        return state is not None and state.ready

    async def _roll(self) -> None:
        for child in self._children:
            logger.info("process is replaced", extra=fields(process=child.number, pid=child.pid))
            ready = self._ready_events[child.number]
            ready.clear()
            await self._end(child)
            if not await _first(ready.wait(), READY_S):
                logger.error(
                    "the new process did not get ready: the others go on as they are",
                    extra=fields(process=child.number),
                )
                return
        logger.info("all processes were replaced", extra=fields(processes=len(self._children)))


async def _first(work: Awaitable[object], timeout_s: float) -> bool:
    """Wait for `work`, at most `timeout_s`, and tell whether it ended."""
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        return False
    return True
