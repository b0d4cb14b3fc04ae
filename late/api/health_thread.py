"""The health check of `late serve` without a worker, on the port that a worker would have.

It runs in a thread and an event loop of its own. So it is answered under a flood, and it tells
when the loop of the interfaces is blocked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from late import events
from late.config import WorkerConfig
from late.worker.watch.health import Health, State
from late.worker.watch.stall_monitor import StallMonitor


class HealthThread:
    """Listens as soon as it is made, and answers from `start` to `stop`.

    Args:
        state: returns whether the interfaces are ready, and the reason if not.
        metrics: makes the page of metrics.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(
        self,
        settings: WorkerConfig,
        state: Callable[[], tuple[bool, str]],
        metrics: Callable[[], Awaitable[bytes]],
    ) -> None:
        self._host, self._ready = settings.health_host, state
        self._health = Health(self._host, settings.health_port or 0, self._state, metrics=metrics)
        self._monitor = StallMonitor(
            settings.stall_s,
            lambda: (),
            reachable=lambda: True,
            on_change=lambda undone: None,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._health.port

    def start(self) -> None:
        """Answer, and watch the loop that this is called in."""
        self._monitor.watch(asyncio.get_running_loop())
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(loop,), name="late-health", daemon=True
        )
        self._thread.start()
        events.default.emit(events.HEALTH_SERVED, host=self._host, port=self.port)

    def stop(self) -> None:
        """Stop answering and listening. Twice is fine."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)
            thread.join()
        self._health.close()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._answer())

    async def _answer(self) -> None:
        tasks = [asyncio.create_task(each()) for each in (self._health.run, self._monitor.run)]
        await self._end.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def _state(self) -> State:
        stalled = tuple(sorted(self._monitor.stalled))
        ready, reason = self._ready()
        reason = "it stalls" if stalled else reason
        return State("", live=not stalled, ready=not reason and ready, stalled=stalled,
                     reason=reason)  # fmt: skip
