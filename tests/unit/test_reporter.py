"""When a worker's report is written, and what it says while the worker's loop is blocked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import msgspec
import pytest

from late.events import Emitter
from late.handler.classify import describe
from late.model.worker_report import Run, ScheduleSlips, TargetReport, WorkerReport
from late.worker.watch.loop_watch import LoopWatch
from late.worker.watch.reporter import QUEUES_EVERY_S, WRITE_EVERY_S, Reporter, _line

CALM = WorkerReport("w1", "host:1", ("default",))
CALLING = msgspec.structs.replace(CALM, targets=(TargetReport("bank", calls=3),))


class Over(Exception):
    """The end of a test's looks."""


class Kit:
    """A reporter whose time and whose worker are set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waits = 0
        self.facts = CALM
        self.duties: frozenset[str] = frozenset()
        self.asked: list[Callable[[], object]] = []
        self.written: list[WorkerReport] = []
        self.watch = LoopWatch(
            attempt=lambda: None,
            now_us=lambda: int(self.now_s * 1e6),
            monotonic=lambda: self.now_s,
            frames=lambda: {threading.get_ident(): sys._getframe()},
            emitter=Emitter(),
        )
        self.reporter = Reporter(
            call=self.asked.append,
            take=lambda: self.facts,
            stalled=lambda: self.duties,
            watch=self.watch,
            now_us=lambda: int(self.now_s * 1e6),
            write=self.written.append,
            monotonic=lambda: self.now_s,
        )

    async def wait(self, wait_s: float) -> None:
        """Let the worker's loop answer at once, but for the second to the fourth look."""
        self.now_s += wait_s
        self.waits += 1
        if self.waits not in (2, 3, 4):
            for answer in self.asked:
                answer()
            self.asked.clear()
        if self.waits == 8:
            raise Over

    def look(self, facts: WorkerReport | None = None) -> WorkerReport | None:
        """Give the facts as the worker's loop would, unless it is blocked; return what is due."""
        if facts is not None:
            self.facts = facts
            self.reporter._answer()
        told = self.reporter.complete()
        if told is None or not self.reporter.is_due(told):
            return None
        self.reporter._said, self.reporter._said_s = told, self.now_s
        return told


def test_a_worker_with_nothing_to_tell_writes_nothing() -> None:
    kit = Kit()
    assert kit.look() is None
    assert kit.look(CALM) is None


def test_targets_are_told_of_now_and_then_and_trouble_at_once() -> None:
    kit = Kit()
    assert kit.look(CALLING) == CALLING
    more = msgspec.structs.replace(CALLING, running=2)
    assert kit.look(more) is None
    kit.now_s += WRITE_EVERY_S
    assert kit.look(more) == more
    bad = msgspec.structs.replace(CALLING, targets=(TargetReport("bank", calls=3, failed=1),))
    assert kit.look(bad) == bad
    assert kit.look(CALLING) == CALLING, "that it is over is told at once, too"


def test_a_stall_is_told_of_while_the_loop_is_blocked_and_when_it_is_over() -> None:
    kit = Kit()
    kit.look(CALM)
    kit.duties = frozenset({"answer"})
    told = kit.look()
    assert told is not None
    assert (told.stalled, told.stalled_since_us) == (("answer",), 100_000_000)
    kit.now_s += 5
    assert kit.look() is None, "nothing has changed"
    kit.duties = frozenset()
    assert kit.look() == CALM
    assert kit.look(CALM) is None


async def test_the_place_of_a_block_is_told_while_it_lasts_and_when_it_is_over() -> None:
    kit = Kit()
    kit.reporter._wait = kit.wait
    kit.facts = msgspec.structs.replace(CALM, queues=("mail",))
    with pytest.raises(Over):
        await kit.reporter.run()
    calm, blocked, over = kit.written
    assert (calm.blocked, over.blocked) == (None, None)
    assert blocked.blocked is not None
    assert blocked.blocked.place.startswith(__file__)
    assert blocked.blocked.since_us == 102_000_000
    assert blocked.ended.blocked is None


async def test_a_worker_that_stops_says_that_its_troubles_are_over() -> None:
    kit = Kit()
    await kit.reporter.end()
    assert kit.written == [], "it has told nothing"
    run = Run("default", "mail", "send", "t1", 1, 1)
    slips = (ScheduleSlips("tick", 1, 1),)
    kit.look(
        msgspec.structs.replace(CALLING, stuck=(run,), runs=(run,), slips=slips, clock_off_s=9)
    )
    await kit.reporter.end()
    assert kit.written == [msgspec.structs.replace(CALM, slips=slips)]
    assert not any((kit.written[0].stuck, kit.written[0].targets, kit.written[0].stalled))


def test_long_runs_are_told_of_now_and_then() -> None:
    kit = Kit()
    run = Run("default", "mail", "send", "t1", 1, 1)
    busy = msgspec.structs.replace(CALM, runs=(run,))
    assert kit.look(busy) == busy
    other = msgspec.structs.replace(CALM, runs=(run, run))
    assert kit.look(other) is None
    assert kit.look(CALM) is None, "that nothing runs any more is no news"
    assert kit.look(other) is None
    kit.now_s += WRITE_EVERY_S
    assert kit.look(CALM) == CALM
    assert kit.look(CALM) is None


def test_the_queues_of_a_calm_worker_are_told_of_at_the_start_and_rarely_then() -> None:
    kit = Kit()
    calm = msgspec.structs.replace(CALM, queues=("mail",))
    assert kit.look(calm) == calm
    kit.now_s += QUEUES_EVERY_S - 1
    assert kit.look(calm) is None
    kit.now_s += 1
    assert kit.look(calm) == calm


def test_an_error_of_several_lines_is_told_of_in_one() -> None:
    error = ValueError('relation "shop" does not exist\nLINE 1:  select\n  ^')
    assert _line(describe(error)) == ('ValueError: relation "shop" does not exist LINE 1: select ^')
