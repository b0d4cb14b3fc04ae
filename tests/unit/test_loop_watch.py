"""The place that blocks a worker's event loop: when it is told, and which of the frames it is."""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.events
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import pytest

import late
from late.events import Emitter, Event
from late.model.task import Attempt
from late.model.worker_report import Block
from late.worker.watch.loop_watch import LoopWatch, place_of
from late.worker.watch.stall_monitor import StallMonitor
from tests.unit.dispatcher_kit import attempt, rig, task

LATE = os.path.dirname(late.__file__)
LIBRARY = os.path.dirname(os.__file__)
BIND = (LATE + "/handler/bind.py", "run")
APP, INSTALLED = "/srv/shop/tasks.py", "/srv/venv/lib/python3/site-packages"
RUN = (asyncio.events.__file__, "_run")
TURN = (asyncio.base_events.__file__, "_run_once")
LOOP = (RUN, TURN, (LATE + "/cli/app.py", "main"), ("/srv/venv/bin/late", "start"))


def frame_of(*calls: tuple[str, str]) -> FrameType:
    """The innermost frame of a stack of these files and functions, given from the inside."""
    call: Callable[[], FrameType] = sys._getframe
    for path, name in calls:
        scope: dict[str, Any] = {"call": call}
        exec(compile(f"def {name}(call=call):\n    return call()", path, "exec"), scope)
        call = scope[name]
    found = call()
    while found.f_code.co_filename != calls[0][0]:
        assert found.f_back is not None
        found = found.f_back
    return found


@pytest.mark.parametrize(
    ("calls", "place"),
    [
        ([(APP, "wait"), (APP, "send")], f"{APP}:2 in wait"),
        # What the app calls is not where it is to be mended
        ([(LIBRARY + "/socket.py", "recv"), (INSTALLED + "/requests/api.py", "get"),
          (APP, "send"), BIND], f"{APP}:2 in send"),
        ([(selectors.__file__, "select"), (subprocess.__file__, "wait"), (APP, "send")],
         f"{APP}:2 in send"),
        ([("<frozen importlib._bootstrap>", "_load"), (APP, "send")], f"{APP}:2 in send"),
        # `late` that the app has called
        ([(LATE + "/handler/context.py", "once"), (APP, "send"), BIND],
         f"{APP}:2 in send"),
        # An app that is installed, too: what `late` has called
        ([(INSTALLED + "/requests/api.py", "get"), (INSTALLED + "/shop/tasks.py", "send"),
          BIND, (INSTALLED + "/tracer/wrap.py", "wrapped")],
         f"{INSTALLED}/shop/tasks.py:2 in send"),
        # Nothing of an app
        ([(LIBRARY + "/json/decoder.py", "decode"), (LATE + "/tailer/tailer.py", "read")],
         f"{LIBRARY}/json/decoder.py:2 in decode"),
    ],
)  # fmt: skip
def test_the_place_is_the_innermost_one_of_the_app(
    calls: list[tuple[str, str]], place: str
) -> None:
    assert place_of(frame_of(*calls, *LOOP)) == place


def test_a_loop_that_only_waits_has_no_place() -> None:
    assert place_of(frame_of((selectors.__file__, "select"), *LOOP[1:])) == ""
    assert place_of(frame_of(*LOOP[1:])) == ""
    assert place_of(frame_of(*LOOP)) == f"{RUN[0]}:2 in _run", "a callback in C"


class Kit:
    """A watch whose time and whose stack are set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.frame = frame_of((APP, "send"), *LOOP)
        self.attempt: Attempt | None = None
        self.looked: Callable[[], object] = lambda: None
        emitter = Emitter()
        emitter.subscribe(self._listen)
        self.watch = LoopWatch(
            attempt=lambda: self.attempt,
            now_us=lambda: int(self.now_s * 1e6),
            monotonic=lambda: self.now_s,
            frames=self._frames,
            emitter=emitter,
        )
        self.watch.ask()
        self.watch.answer()

    def _frames(self) -> dict[int, FrameType]:
        self.looked()
        return {threading.get_ident(): self.frame}

    def _listen(self, event: Event, values: Mapping[str, Any]) -> None:
        self.heard.append((event.name, dict(values)))

    def look(self, after_s: float) -> None:
        self.now_s += after_s
        self.watch.look()


def test_a_block_is_told_once_and_so_is_its_end() -> None:
    kit = Kit()
    kit.attempt = attempt("send")
    kit.watch.ask()
    kit.look(2.0)
    task = kit.attempt.record.task_id
    told = {"blocked_s": 2.0, "place": f"{APP}:2 in send", "name": "send", "task": task}
    assert kit.heard == [("event_loop_blocked", told)]
    assert kit.watch.block == Block(f"{APP}:2 in send", 100_000_000, "send", task)
    kit.frame = frame_of((APP, "other"), *LOOP)
    kit.look(2.0)
    assert len(kit.heard) == 1
    kit.now_s += 1.0
    kit.watch.answer()
    kit.look(0.5)
    assert kit.heard[1:] == [("event_loop_free", {"blocked_s": 5.0, "place": f"{APP}:2 in send"})]
    assert kit.watch.block is None
    # The next one is another
    kit.watch.ask()
    kit.look(2.0)
    assert [name for name, _ in kit.heard[2:]] == ["event_loop_blocked"]
    assert kit.heard[2][1]["place"] == f"{APP}:2 in other"


def test_an_answer_after_the_last_look_ends_the_block_too() -> None:
    """The report of a block is written between two looks, and may take longer than the block."""
    kit = Kit()
    kit.watch.ask()
    kit.look(2.0)
    kit.now_s += 1.0
    kit.watch.answer()
    kit.now_s += 4.0
    kit.watch.ask()
    assert kit.heard[1:] == [("event_loop_free", {"blocked_s": 3.0, "place": f"{APP}:2 in send"})]
    kit.watch.answer()
    kit.look(2.0)
    assert len(kit.heard) == 2


def test_a_loop_that_answers_is_not_blocked() -> None:
    kit = Kit()
    for _ in range(3):
        kit.watch.ask()
        kit.watch.answer()
        kit.look(2.0)
    kit.watch.ask()
    kit.look(0.5)
    assert kit.heard == [], "it has had half a second"


def test_a_process_that_was_stopped_is_not_blocked() -> None:
    kit = Kit()
    kit.watch.ask()
    kit.look(60.0)
    kit.look(0.5)
    assert kit.heard == []
    kit.look(2.0)
    assert kit.heard[0][1]["blocked_s"] == 2.5, "the pause counts for nobody"


def test_what_was_over_while_it_was_looked_at_is_not_told() -> None:
    kit = Kit()
    kit.watch.ask()
    kit.looked = kit.watch.answer
    kit.look(2.0)
    kit.look(2.0)
    assert kit.heard == []
    kit.looked = lambda: None
    kit.watch.ask()
    kit.frame = frame_of((selectors.__file__, "select"), *LOOP[1:])
    kit.look(2.0)
    assert kit.heard == [], "it is about to answer"


async def test_the_attempt_is_that_of_the_slot_whose_turn_it_is() -> None:
    found: list[Attempt | None] = []
    monitor = StallMonitor(60.0, lambda: (), reachable=lambda: True, on_change=lambda undone: None)
    assert monitor.current_task is None
    monitor.watch(asyncio.get_running_loop())

    def ask() -> None:
        found.append(it.dispatcher.attempt_in(monitor.current_task))

    @task()
    async def waits() -> None:
        await asyncio.Event().wait()

    @task()
    async def blocks() -> None:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    first, second = attempt("waits"), attempt("blocks")
    async with rig(waits, blocks, concurrency=4) as it:
        it.dispatcher.submit([first, second])
        async with asyncio.timeout(120):
            while not found:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert found == [second]
        ask()
        assert found[1:] == [None], "a task of the loop that is no slot"
