"""Runs N copies of one worker on one machine: starts, watches, restarts, rolls and stops them.

The parent imports no app and opens no database, so nothing of the service can bring it down. Each
child is a worker like any other: it joins the fleet by itself, and no child knows the others.

| what happens | what follows |
|---|---|
| a child ends, whatever its exit code | another takes its place (`restarts.py`) |
| a child that was ready stalls, or does not answer, for `STALLED_S` | it is ended and replaced |
| all children end again and again before any is ready | it gives up, with their exit code |
| SIGHUP | one child after the other is replaced, each when the one before is ready; it reads the
  settings anew |
| a child has more memory than `process_memory_mb` | it is replaced, while the others work on |
| SIGHUP, and the settings are wrong by now | one line says so, and nothing is replaced |
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
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

from late.config import WorkerConfig
from late.observability.logs import fields
from late.observability.metrics.catalogue import METRICS, PROCESS_RESTARTS
from late.supervisor.child import Child
from late.supervisor.memory import memory_mb
from late.supervisor.metrics_page import join
from late.supervisor.restarts import Restarts
from late.worker.reload import Reading, Reloader, at_hangup
from late.worker.watch.health import Health, State

logger = logging.getLogger("late.supervisor")

CHECK_S = 1.0
"""Between two checks of a child."""
STALLED_S = 30.0
"""A child that had been ready is ended when all checks have failed for so long. What holds the
interpreter's lock for that long has lost its shards many times over."""
SILENT_GRACE_S = 5.0
"""The time to stop for a child that does not answer at all."""
ENDING_S = 15.0
"""The time beyond the grace in which a stopping worker records and says farewell."""
RELOAD_S = 3.0
"""The time that handlers have to end when sources have changed. Then they are interrupted, at no
cost of an attempt."""
MEMORY_EVERY_S = 10.0
"""Between two looks at the memory of the children."""
RECYCLE_PAUSE_S = 60.0
"""From one replacement because of memory to the next: a limit below what a worker needs at its
start would replace them without end."""
FIXED = frozenset({"health_host", "health_port", "log_json", "processes"})
"""Settings of the parent itself, which needs a restart to change them."""
READY_S = 120.0
"""The longest time that a new child may take to get ready while the others are replaced."""


class Supervisor:
    """The parent. It can be started once.

    Args:
        command: a child's program and arguments.
        count: how many children.
        read: reads the settings of the workers, at once and at each SIGHUP; the parent uses their
            grace, and the address of the health check, at which it answers for all of them.
        patient: for development: never give up a child that does not get ready.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        read: Callable[[], Reading],
        *,
        patient: bool = False,
    ) -> None:
        first = read()
        settings = first.worker
        self._reload = Reloader(read, first, self._take, live=lambda name: name not in FIXED)
        self._children = [Child(number, command) for number in range(1, count + 1)]
        self._restarts = Restarts(count, random.Random(), patient=patient)
        self._take(settings)
        self._states: dict[int, State] = {}
        """By the number of the child: its last answer, while it runs."""
        self._failing_s: dict[int, float] = {}
        """Since when all checks of a child have failed, by the loop's clock."""
        numbers = [child.number for child in self._children]
        self._was_ready: set[int] = set()
        """The numbers of the children that have been ready since they were started."""
        self._ready_events = {number: asyncio.Event() for number in numbers}
        self._outdated = {number: asyncio.Event() for number in numbers}
        """Set when the sources have changed since the child's last start."""
        self._stopping = asyncio.Event()
        self._exit_code = 0
        self._roll_asked = False
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
            loop.add_signal_handler(number, self.ask_to_stop, number.name)
        loop.add_signal_handler(signal.SIGHUP, at_hangup(self.reload, self.ask_to_stop))
        works: list[Coroutine[Any, Any, None]] = [self._keep(child) for child in self._children]
        works += [self._check(child) for child in self._children]
        works.append(self._watch_memory())
        if self.health is not None:
            works.append(self.health.run())
            logger.info("health check of all processes", extra=fields(port=self.health.port))
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
            about = fields(event="processes_killed", processes=len(pending))
            logger.error("killed what did not stop", extra=about)
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
        logger.info("all processes have stopped", extra=fields(code=self._exit_code))
        return self._exit_code

    def ask_to_stop(self, reason: str = "") -> None:
        """Stop all children cleanly; at once with the second call."""
        again = self._stopping.is_set()
        logger.info("stopping at once" if again else "stopping", extra=fields(reason=reason))
        if again:
            for child in self._children:
                child.tell(signal.SIGTERM)
        self._stopping.set()

    def reload(self) -> None:
        """Read the settings anew, and replace all children, which begin with them. If they are
        wrong, no child could start: then all stays as it is."""
        if self._reload():
            self.roll()

    def _take(self, settings: WorkerConfig) -> None:
        self._grace_s = settings.grace_s + ENDING_S
        self._memory_mb = settings.process_memory_mb

    def roll(self) -> None:
        """Replace one child after the other; once more after the round that is under way."""
        self._roll_asked = True
        if self._rolling is None or self._rolling.done():
            self._rolling = asyncio.create_task(self._roll())
        else:
            logger.info("all processes are replaced once more after this round")

    async def reload_on(self, changes: AsyncIterator[object]) -> None:
        """Restart all children at each change, without waiting for long handlers."""
        async for _ in changes:
            if self._stopping.is_set():
                return
            logger.info("sources have changed: all processes start again")
            for outdated in self._outdated.values():
                outdated.set()
            await asyncio.gather(*[self._reload_child(child) for child in self._children])

    async def _reload_child(self, child: Child) -> None:
        """Stop it, at once after `RELOAD_S`: a kill would count as a death of what it runs."""
        pid = child.pid
        if pid is not None:
            child.tell(signal.SIGTERM)
            if not await _first(child.wait(), RELOAD_S) and child.pid == pid:
                await self._end(child, ENDING_S)

    def state(self) -> State:
        """Return the answer to a health check, for all children together.

        The parent is live while it runs: it replaces what stalls. It is ready if each child is.
        """
        known = list(self._states.items())
        stalled = tuple(
            f"process {number}: {duty}" for number, state in known for duty in state.stalled
        )
        silent = sorted(self._failing_s.keys() - self._states.keys())
        stalled += tuple(f"process {number}: no answer" for number in silent)
        waits = [number for number in self._ready_events if not self._ready(number)]
        reason = f"not ready: process {', '.join(map(str, waits))}" if waits else ""
        return State(f"parent of {len(self._children)}", True, not waits, stalled, reason)

    async def metrics(self) -> bytes:
        """Return the metrics of all children that answer, each series with its process."""
        pages = await asyncio.gather(*[child.metrics() for child in self._children])
        numbers = [child.number for child in self._children]
        restarts = METRICS[PROCESS_RESTARTS]
        own = (
            f"# HELP {restarts.name} {restarts.text}\n# TYPE {restarts.name} {restarts.kind}\n"
            f"{restarts.name} {self._restarts.count}\n"
        )
        return own.encode() + join(dict(zip(numbers, pages, strict=True)))

    # ------------------------------------------------------------------ one child

    async def _keep(self, child: Child) -> None:
        """Have the child run until the stop."""
        number = child.number
        while not self._stopping.is_set():
            self._failing_s.pop(number, None)
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
                others_ready=any(self._ready(other) for other in self._ready_events),
            )
            if wait_s is None:
                self._give_up(child, code)
                return
            logger.log(
                logging.WARNING if code else logging.INFO,
                "process ended, another takes its place",
                extra=fields(
                    event="process_ended", process=number, ended_by=_named(code), wait_s=wait_s
                ),
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
        about = fields(event="process_started", process=child.number, pid=child.pid)
        logger.info("process started", extra=about)
        if self._stopping.is_set():  # asked while it started
            child.tell(signal.SIGTERM)
        return await child.wait()

    def _give_up(self, child: Child, code: int) -> None:
        logger.error(
            "gave up: the processes end before they are ready; see their own lines above",
            extra=fields(
                event="processes_given_up",
                process=child.number,
                ended_by=_named(code),
                restarts=self._restarts.count,
            ),
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
            if state is None:
                self._states.pop(number, None)
            else:
                self._states[number] = state
                if state.ready and number not in self._was_ready:
                    self._was_ready.add(number)
                    self._ready_events[number].set()
                    self._restarts.ready()
            await self._judge(child, state)

    async def _judge(self, child: Child, state: State | None) -> None:
        """End a child whose checks have failed for too long. One that has never been ready imports,
        or waits for its database."""
        number, now_s = child.number, asyncio.get_running_loop().time()
        if (state is not None and state.live) or number not in self._was_ready:
            self._failing_s.pop(number, None)
            return
        about = fields(
            event="process_stalls", process=number, pid=child.pid, answers=state is not None
        )
        if number not in self._failing_s:
            logger.warning("process stalls", extra=about)
        if now_s - self._failing_s.setdefault(number, now_s) >= STALLED_S:
            logger.error("process stalls for too long, and is ended", extra=about)
            await self._end(child, SILENT_GRACE_S if state is None else None)

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
        while self._roll_asked:
            self._roll_asked = False
            await self._replace_all()

    async def _replace_all(self) -> None:
        for child in self._children:
            if not await self._replace(child):
                return
        logger.info("all processes were replaced", extra=fields(processes=len(self._children)))

    async def _replace(self, child: Child) -> bool:
        """End a child cleanly, and return whether the one in its place gets ready."""
        about = fields(event="process_replaced", process=child.number, pid=child.pid)
        logger.info("process is replaced", extra=about)
        ready = self._ready_events[child.number]
        ready.clear()
        await self._end(child)
        if await _first(ready.wait(), READY_S):
            return True
        logger.error(
            "the new process did not get ready: the others go on as they are",
            extra=fields(event="process_not_ready", process=child.number),
        )
        return False

    # ------------------------------------------------------------------ memory

    async def _watch_memory(self) -> None:
        """Replace children that have too much memory, one at a time and no two in a row."""
        while True:
            await asyncio.sleep(MEMORY_EVERY_S)
            if self._rolling is not None and not self._rolling.done():
                continue
            if (child := self._largest()) is not None:
                self._rolling = asyncio.create_task(self._recycle(child))
                await asyncio.wait([self._rolling])
                await asyncio.sleep(RECYCLE_PAUSE_S)

    def _largest(self) -> Child | None:
        """Return the ready child with the most memory above the limit, and log how much it has."""
        if self._memory_mb is None:
            return None
        sizes = [
            (memory_mb(pid), child)
            for child in self._children
            if (pid := child.pid) is not None and self._ready(child.number)
        ]
        size, found = max(sizes, key=lambda each: each[0], default=(0.0, None))
        if found is None or size <= self._memory_mb:
            return None
        about = fields(
            event="process_memory", process=found.number, mb=round(size), limit_mb=self._memory_mb
        )
        logger.warning("process has too much memory", extra=about)
        return found

    async def _recycle(self, child: Child) -> None:
        await self._replace(child)
        await self._roll()  # Where SIGHUP has asked for it meanwhile.


def _named(code: int) -> str:
    """Name what ended a process: its exit code, or the signal."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


async def _first(work: Awaitable[object], timeout_s: float) -> bool:
    """Wait for `work`, at most `timeout_s`, and tell whether it ended."""
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        return False
    return True
