"""An event loop in which many processes live, time is virtual, and chance is a seed.

asyncio's own machinery runs on it unchanged: the tasks, events and time-outs of the real loops of
`late`. What differs:

- **Time** stands still while anything can run, and then jumps to the next timer.
- **Processes.** Every callback belongs to the process in whose context it was made (a context
  variable, which asyncio hands down to whatever a task starts). A process has a clock of its own,
  with an offset and a drift; it can be paused, and then its callbacks wait while the world goes
  on, or killed, and then they never come.
- **No threads, sockets or signals**, so that the same seed gives the same run.

Source: FoundationDB's simulation, where the whole cluster is one process on virtual time.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import math
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, ContextVar, copy_context
from typing import Any

import msgspec

TASKS_KEPT = 64


class Handle(asyncio.TimerHandle):
    """A callback that waits: what asyncio needs of one, without its looks at debug modes, for a
    world makes tens of thousands. Also of timers; those that are cancelled are passed over."""

    __slots__ = ("process",)

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: SimLoop,
        context: Context | None,
    ) -> None:
        if context is None:
            context = copy_context()
        self._context = context
        self._callback = callback
        self._args: Any = args
        self._loop = loop
        self._cancelled = False
        self._repr: str | None = None
        self._source_traceback = None
        self._scheduled = False
        self.process: Process | None = context.get(_process)

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._callback}>"


class Process(msgspec.Struct, eq=False):
    """One process of the simulation."""

    name: str
    offset_s: float = 0.0
    """Its monotonic clock at the beginning of the world."""
    rate: float = 1.0
    """How fast it runs: 1.0002 gains 200 ppm."""
    dead: bool = False
    paused: bool = False
    stalled: deque[Handle] = msgspec.field(default_factory=deque)
    tasks: list[asyncio.Task[Any]] = msgspec.field(default_factory=list)
    """Its tasks, and some that are done."""
    tidy_at: int = TASKS_KEPT
    """So many tasks are looked through for those that are done."""

    def keep(self, task: asyncio.Task[Any]) -> None:
        """A coroutine that is collected runs its `finally`, which a killed one must not."""
        self.tasks.append(task)
        if len(self.tasks) > self.tidy_at:
            self.tasks = [each for each in self.tasks if not each.done()]
            self.tidy_at = 2 * len(self.tasks) + TASKS_KEPT


_process: ContextVar[Process | None] = ContextVar("late_simulated_process", default=None)


class Stalled(AssertionError):
    """Everything waits for something that will never come."""


class Spinning(AssertionError):
    """Something runs again and again while no time passes: on a machine it would burn a core."""


SPINS_MAX = 50_000
"""More callbacks than that at one moment are one that calls for itself."""


class SimLoop(asyncio.BaseEventLoop):
    """See the module. One loop per simulated world."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        """The world's time, seconds since its beginning."""
        self.steps = 0
        """Callbacks that have run."""
        self.errors: list[BaseException] = []
        """What no task has caught: each is a defect of `late` or of the world."""
        self._queue: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._made = 0
        self._here: Process | None = None
        """The process whose callback runs."""
        self._nowhere = Context()
        self._over = False
        self._moved_at = 0  # `steps`, when time last passed
        self.set_exception_handler(self._failed)
        self.set_task_factory(self._make_task)

    # ------------------------------------------------------------------ processes

    def start(self, process: Process, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run `main()` in `process`."""
        context = Context()
        context.run(_process.set, process)
        self.call_soon(lambda: self.create_task(main()), context=context)

    def kill(self, process: Process) -> None:
        """SIGKILL: nothing of it runs again, and its memory is gone."""
        process.dead = True
        process.stalled.clear()

    def pause(self, process: Process) -> None:
        """SIGSTOP."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """SIGCONT: everything that it has missed comes at once, in order."""
        process.paused = False
        self._queue.extend(process.stalled)
        process.stalled.clear()

    def outside(self, callback: Callable[..., Any], *args: Any, delay_s: float = 0.0) -> None:
        """Call `callback` in no process: it happens even if the caller dies meanwhile."""
        self._push(self.now_s + delay_s, Handle(callback, args, self, self._nowhere))

    def forget(self) -> None:
        """The world is over: nothing that waits will happen."""
        self._over = True
        self._queue.clear()
        self._timers.clear()
        self.close()

    # ------------------------------------------------------------------ what asyncio asks of it

    def time(self) -> float:
        """Seconds, by the clock of the process that asks."""
        process = self._here
        return self.now_s if process is None else process.offset_s + process.rate * self.now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, self, context)
        if not self._over:  # else a coroutine that is being collected wants to go on
            self._queue.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Handle:
        process = self._here
        if process is None:
            at_s = when
        else:
            at_s = (when - process.offset_s) / process.rate
            # Rounded down, it would come before its time, and be set again without end.
            while process.offset_s + process.rate * at_s < when:
                at_s = math.nextafter(at_s, math.inf)
        return self._push(at_s, Handle(callback, args, self, context))

    def _push(self, at_s: float, handle: Handle) -> Handle:
        self._made += 1
        if not self._over:
            heapq.heappush(self._timers, (at_s, self._made, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are passed over when their time comes."""

    def _run_once(self) -> None:
        """All that can run at this moment, or a jump to the next timer."""
        queue = self._queue
        if not queue:
            self._jump()
        while queue and not self._stopping:  # type: ignore[attr-defined]
            handle = queue.popleft()
            if handle._cancelled:
                continue
            process = handle.process
            if process is not None and (process.dead or process.paused):
                if not process.dead:
                    process.stalled.append(handle)
                continue
            self.steps += 1
            if self.steps - self._moved_at > SPINS_MAX:
                raise Spinning(f"{handle} runs without end")
            self._here = process
            try:
                handle._context.run(handle._callback, *handle._args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                self.errors.append(error)
            finally:
                self._here = None

    def _jump(self) -> None:
        """To the next timer."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Stalled("nothing can run and no timer is set")
        at_s, _, timer = heapq.heappop(timers)
        if at_s > self.now_s:
            self.now_s, self._moved_at = at_s, self.steps
        self._queue.append(timer)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        if self._here is not None:
            self._here.keep(task)
        return task

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(error if error is not None else RuntimeError(context["message"]))

    def _process_events(self, events: Any) -> None:
        """No I/O, no events."""

    def _write_to_self(self) -> None:
        """No other threads to be woken by."""


def bury(processes: Iterable[Process]) -> None:
    """Forget all processes of a world that is over, without a word from their coroutines.

    A coroutine that is collected is closed, and one that waits in a `finally` then complains.
    """
    for process in processes:
        while process.tasks:
            process.tasks.pop()._log_destroy_pending = False  # type: ignore[attr-defined]
        process.stalled.clear()
    hook, sys.unraisablehook = sys.unraisablehook, lambda args: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # what was killed before it began
            gc.collect()
    finally:
        sys.unraisablehook = hook
