"""Child processes for handlers that must not share the worker's: CPU-bound ones, and those that
crash, leak or hang. A child that dies takes one attempt with it and is replaced.

Not `concurrent.futures`, whose whole pool is broken by one child's death.
"""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import random
import signal
import socket
from collections import deque
from collections.abc import Collection
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from time import monotonic

from late import events
from late.dispatcher.handler import Bound, Handler
from late.dispatcher.local import child_main as child_end
from late.dispatcher.local.child_link import Child, ChildDied
from late.dispatcher.local.child_protocol import Run
from late.dispatcher.local.slot import Slot
from late.errors import ConfigError
from late.handler.classify import Refused, Scrub, Verdict, clean
from late.model.backoff import Backoff
from late.model.task import Attempt
from late.schema import held_files

START_S_MAX = 60.0
"""The time that a child may take to import."""
START_FAILURES_MAX = 3
"""After so many failed starts in a row, attempts are handed back instead of waiting."""
BACKOFF_S = (0.1, 5.0)
"""First and longest wait before a child that could not start is replaced."""
DEATH_BACKOFF_S = (0.05, 1.0)
"""The same for a child that died under its first attempt. Each task may kill three, so that these
deaths are bounded; the tasks that wait for a child are most likely sound."""


class Processes:
    """A fixed number of children, each replaced when it dies. `start` and `close` twice is fine."""

    def __init__(
        self, count: int, *, url: str, app: str | None = None, scrub: Scrub | None = None
    ) -> None:
        """
        Args:
            app: `module:attribute` of the `late.App`; without it a child finds a handler by its
                function's module and qualified name.
        """
        self._count = count
        self._url = url
        self._app = app
        self._scrub = scrub
        self._modules: tuple[str, ...] = ()
        self._children: set[Child] = set()
        self._free: deque[Child] = deque()
        self._changed = asyncio.Condition()
        self._starts = _backoff(*BACKOFF_S)
        """Counts the children in a row that went away before they were given an attempt."""
        self._deaths = _backoff(*DEATH_BACKOFF_S)
        """Counts the children in a row that died under their first attempt."""
        self._failure = ""
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self, handlers: Collection[Handler]) -> None:
        """Start the children for `handlers`, and return without waiting for them.

        Raises:
            ConfigError: a child could not find one of the handlers.
        """
        if self._keepers or not handlers:
            return
        if self._app is None:
            self._modules = tuple(dict.fromkeys(_findable(handler) for handler in handlers))
        # The interpreter would wait for the children at its end, and they for the worker's.
        atexit.register(self._kill)
        self._keepers = [asyncio.ensure_future(self._keep()) for _ in range(self._count)]

    async def close(self) -> None:
        """Kill the children and wait for their end. What runs ends as `ChildDied`."""
        keepers, self._keepers = self._keepers, []
        for keeper in keepers:
            keeper.cancel()
        if keepers:
            await asyncio.wait(keepers)
        atexit.unregister(self._kill)

    async def call(self, slot: Slot, bound: Bound, attempt: Attempt) -> Verdict:
        """Run one attempt in the next free child. The time-out counts from there on.

        Cancellation kills the child; it is replaced.

        Raises:
            Refused: no child can be started.
        """
        child = await self._take()
        slot.begun = monotonic()
        slot.deadline = slot.begun + bound.timeout_s
        fn = bound.fn
        run = Run(attempt, fn.__module__, fn.__qualname__, slot.started_us)
        try:
            verdict = await child.run(run, partial(slot.prolong, attempt))
        except ChildDied as died:
            events.default.emit(
                events.CHILD_DIED,
                name=bound.name,
                task=attempt.record.task_id,
                exit_code=child.process.exitcode,
            )
            return Verdict("died", error=str(died))
        self._deaths.reset()
        await self._put(child)
        if verdict.error is not None and self._scrub is not None:
            verdict = Verdict(
                verdict.kind,
                error=clean(verdict.error, self._scrub),
                reason=verdict.reason,
                after_us=verdict.after_us,
                retryable=verdict.retryable,
            )
        return verdict

    async def _take(self) -> Child:
        async with self._changed:
            await self._changed.wait_for(self._decided)
            if not self._free:
                raise Refused(
                    Verdict("not_capable", error=clean(self._failure), reason="no_process")
                )
            self._starts.reset()
            return self._free.popleft()

    def _decided(self) -> bool:
        while self._free and not self._free[0].alive:
            self._free.popleft()
        return bool(self._free) or self._starts.failures >= START_FAILURES_MAX

    async def _put(self, child: Child) -> None:
        async with self._changed:
            self._free.append(child)
            self._changed.notify()

    async def _keep(self) -> None:
        """Keep one child alive, for ever. A child that served is replaced at once, one that did
        not after a growing, jittered wait: a broken deployment must not become a fork storm.
        What an attempt killed did start: those who wait for a child go on waiting."""
        while True:
            child = await self._spawn()
            self._children.add(child)
            life = asyncio.ensure_future(child.live())
            try:
                async with asyncio.timeout(START_S_MAX):
                    await asyncio.shield(child.ready)
                await self._put(child)
                await asyncio.shield(life)
            except (ChildDied, TimeoutError) as error:
                self._failure = str(error) or f"not ready after {START_S_MAX:g} s"
            finally:
                child.kill()
                await asyncio.shield(life)
                self._children.discard(child)
            if child.begun and not child.served:
                await asyncio.sleep(self._deaths.next_s())
            elif not child.served:
                await self._back_off()

    async def _back_off(self) -> None:
        wait_s = self._starts.next_s()
        async with self._changed:
            self._changed.notify_all()
        await asyncio.sleep(wait_s)

    async def _spawn(self) -> Child:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        process = multiprocessing.get_context("spawn").Process(
            target=child_end.main,
            args=(theirs, self._url, self._app, self._modules, held_files.listed()),
            name="late-child",
        )
        starting = asyncio.ensure_future(asyncio.to_thread(_start, process))
        try:
            await asyncio.shield(starting)
        except BaseException:
            await asyncio.wait([starting])
            ours.close()  # A child that did start ends itself by that.
            raise
        finally:
            theirs.close()
        return Child(process, ours)

    def _kill(self) -> None:
        for child in self._children:
            child.kill()


def _backoff(first_s: float, longest_s: float) -> Backoff:
    return Backoff(random.Random(), base_s=2 * first_s, cap_s=longest_s)


def _start(process: SpawnProcess) -> None:
    """Start with the group's signals blocked in this thread, which the child inherits: none can
    end it before it has set its own handlers."""
    if not hasattr(signal, "pthread_sigmask"):
        process.start()
        return
    resource_tracker.ensure_running()  # It unblocks them when it starts; so it must have started.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, child_end.GROUP_SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _findable(handler: Handler) -> str:
    fn = handler.fn
    if "<locals>" in fn.__qualname__ or "<lambda>" in fn.__qualname__:
        raise ConfigError(
            f"task {handler.name!r} runs in a process, so {fn.__qualname__} must be defined at "
            "the top level of a module"
        )
    return fn.__module__
