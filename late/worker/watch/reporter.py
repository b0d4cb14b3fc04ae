"""The reporter: writes what a worker tells of itself, also while its loop is blocked.

It runs in the heartbeat's thread. Every two seconds it asks the worker's loop for the facts
(`report_of`) and does not wait for them: a loop that is blocked leaves the last ones, and beside
them the place that blocks it (`loop_watch.py`) and then the duty `answer`. A worker without trouble
writes every fifteen seconds if it calls targets or runs something for long, and else every five
minutes, so that its queues are known.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from late.clock import Monotonic
from late.concurrency import in_thread
from late.dispatcher.dispatcher import Dispatcher
from late.dispatcher.pull.pool import PullPool
from late.dispatcher.push.pool import RemotePool
from late.errors import LateError
from late.model.task import Attempt
from late.model.worker_report import (
    CONSUMER,
    ERROR_MAX,
    NAMES_MAX,
    QUEUES_MAX,
    RUNS_MAX,
    Failing,
    Held,
    LimitedKey,
    OpenCircuit,
    OutageReport,
    Run,
    SilentConsumer,
    TargetReport,
    WorkerReport,
)
from late.observability import conflicts
from late.observability.traces import headers_of, trace_id
from late.worker.watch.loop_watch import LoopWatch

if TYPE_CHECKING:
    from late.scheduler.limits.limiter import Limiter
    from late.worker.metrics import WorkerView
    from late.worker.watch.stall_monitor import StallMonitor

logger = logging.getLogger("late.worker")

LOOK_EVERY_S = 2.0
WRITE_EVERY_S = 15.0
QUEUES_EVERY_S = 300.0
"""A report with nothing but queues is written so often: half of the time for which it is shown."""
SLIPS_US = 3_600_000_000
"""Ticks that did not go as planned are told of for so long."""
UNANSWERED_S = 2.0
"""A settlement that takes longer is told of."""
CLOCK_OFF_US = 10_000_000
"""A clock that is off by more is told of. By less it may be the database that answers late."""
LONG_US = 2_000_000
"""Runs that take longer are told of: a shorter one has ended before anybody reads of it."""


class Reporter:
    """Reports from `run` on.

    Args:
        call: calls a function in the worker's loop, soon, from any thread.
        take: the facts, except for the stall; called in the worker's loop.
        stalled: the duties that are left undone; called in the reporter's thread.
        watch: is told when the loop is asked and when it answers.
        now_us: the database's time, as far as it is known.
        wait: waits for about so many seconds, in the reporter's loop.
        write: writes a report; it blocks, and runs in a thread.
        tells: whether there is anybody to tell: nobody looks at the failures of a shadow as at
            those of a real group.
    """

    def __init__(
        self,
        *,
        call: Callable[[Callable[[], object]], None],
        take: Callable[[], WorkerReport],
        stalled: Callable[[], frozenset[str]],
        watch: LoopWatch,
        now_us: Callable[[], int],
        write: Callable[[WorkerReport], None],
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        monotonic: Monotonic = time.monotonic,
        tells: Callable[[], bool] = lambda: True,
    ) -> None:
        self.tells = tells
        self._call = call
        self._take = take
        self._stalled = stalled
        self._watch = watch
        self._now_us = now_us
        self._write = write
        self._wait = wait
        self._monotonic = monotonic
        self._facts: WorkerReport | None = None
        self._asked = False
        self._stalled_since_us: int | None = None
        self._said: WorkerReport | None = None
        self._said_s = 0.0
        self._failed = False

    async def run(self) -> None:
        """Look and write until cancelled."""
        while True:
            if not self._asked:
                self._asked = True
                self._watch.ask()
                self._call(self._answer)
            await self._wait(LOOK_EVERY_S)
            self._watch.look()
            told = self.complete()
            if told is not None and self.tells() and self.is_due(told):
                await self._tell(told)

    async def end(self) -> None:
        """Write that the worker has stopped, after `run` has ended: else its troubles would be
        shown as present ones until its report is old."""
        if self._said is not None:
            await self._tell(self._said.ended)

    def _answer(self) -> None:
        """Take the facts; runs in the worker's loop."""
        self._watch.answer()
        self._facts, self._asked = self._take(), False

    def complete(self) -> WorkerReport | None:
        """Return the facts with what this thread knows; None before there are any."""
        if self._facts is None:
            return None
        duties = tuple(sorted(self._stalled()))
        if not duties:
            self._stalled_since_us = None
        elif self._stalled_since_us is None:
            self._stalled_since_us = self._now_us()
        return msgspec.structs.replace(
            self._facts, stalled=duties, stalled_since_us=self._stalled_since_us,
            blocked=self._watch.block,
        )  # fmt: skip

    def is_due(self, told: WorkerReport) -> bool:
        """Return whether it is to be written now: what changes while there is trouble, at once."""
        if self._said is None:
            return told.matters or bool(told.queues or told.deaf)
        waited = self._monotonic() >= self._said_s + WRITE_EVERY_S
        if not told.matters:  # once, to say that it is over: at once, if there was trouble
            over = self._said.troubled or (self._said.matters and waited)
            if told.deaf != self._said.deaf:
                return True
            return over or self._monotonic() >= self._said_s + QUEUES_EVERY_S
        if waited:
            return True
        return told != self._said and (told.troubled or self._said.troubled)

    async def _tell(self, told: WorkerReport) -> None:
        try:
            await in_thread(self._write, told)
        except LateError as error:
            if not self._failed:
                logger.warning("the report could not be written, it is tried again: %s", error)
            self._failed = True
        else:
            self._said, self._said_s, self._failed = told, self._monotonic(), False


def reporter_of(
    worker: WorkerView, stalls: StallMonitor, wait: Callable[[float], Awaitable[None]]
) -> Reporter:
    """Make the reporter of a worker, which is not running yet; `wait`: see `Reporter`."""
    return Reporter(
        call=stalls.call,
        take=lambda: report_of(worker),
        stalled=lambda: stalls.stalled,
        watch=LoopWatch(
            attempt=lambda: worker.dispatcher.attempt_in(stalls.current_task),
            now_us=worker.clock.now_us,
        ),
        now_us=worker.clock.now_us,
        wait=wait,
        write=lambda told: worker.control().reports.write(told),
        tells=lambda: not worker.shadow.on,
    )


def report_of(worker: WorkerView) -> WorkerReport:
    """Return what a worker tells of itself, except for a stall."""
    slots, settling_s, now_us = worker.dispatcher, worker.settler.writing_s, worker.clock.now_us()
    targets = {name: part for scope, name, part in worker.scheduler.limits.limiters()
               if scope == "target"}  # fmt: skip
    return WorkerReport(
        worker.id,
        worker.address,
        groups=worker.groups,
        every_s=WRITE_EVERY_S,
        queues=worker.queues[:QUEUES_MAX],
        slots=worker.settings.concurrency,
        running=slots.running,
        unrecorded=worker.scheduler.unrecorded,
        stuck=tuple(_run(each, since_us) for each, since_us in slots.stuck.runs[:NAMES_MAX]),
        runs=_runs(worker, now_us),
        targets=tuple(
            _of_target(worker, name, pool, targets[name], now_us)
            for name, pool in sorted(worker.pools.items())
            if isinstance(pool, RemotePool) and name in targets
        ),
        outages=tuple(
            OutageReport(*each.name, each.since_us, _line(each.error), each.error_at_us)
            for each in worker.scheduler.limits.outages.present(now_us)[:NAMES_MAX]
        ),
        failing=tuple(
            Failing(*each.name, _line(each.error), each.error_at_us)
            for each in worker.scheduler.limits.outages.failed_lately(now_us)[:NAMES_MAX]
        ),
        circuits=_circuits(worker, now_us),
        limited_keys=_limited_keys(worker, now_us),
        slips=tuple(
            each
            for core in worker.scheduler.cores.values()
            for each in core.state.schedules.slips.values()
            if each.at_us > now_us - SLIPS_US
        )[:NAMES_MAX],
        conflicts=conflicts.default.tally.told(),
        clock_off_s=_clock_off_s(worker),
        silent=_silent(worker),
        unlisted=worker.members.unlisted,
        deaf=_line(worker.tailer.deaf),
        settling_since_us=(
            now_us - round(settling_s * 1_000_000) if settling_s > UNANSWERED_S else None
        ),
        settling_error=_line(worker.settler.refusal),
        refusal=_line(worker.settler.kept_error or worker.keeper.quarantine.error),
    )


def _circuits(worker: WorkerView, now_us: int) -> tuple[OpenCircuit, ...]:
    """Name the queues whose breaker is open."""
    return tuple(
        OpenCircuit(
            name,
            part.breaker.open_since_us,
            *part.breaker.recent(now_us),
            _line(part.last_error[0]),
            part.last_error[1],
        )
        for scope, name, part in worker.scheduler.limits.limiters()
        if scope == "queue" and part.breaker is not None
        if part.breaker.open_since_us is not None
    )[:NAMES_MAX]


def _clock_off_s(worker: WorkerView) -> int:
    """Return the whole seconds by which this machine's clock is behind, if they are many."""
    off_us = worker.clock.offset_us(time.time_ns() // 1_000) or 0
    return round(off_us / 1_000_000) if abs(off_us) > CLOCK_OFF_US else 0


def _silent(worker: WorkerView) -> tuple[SilentConsumer, ...]:
    """Name the consumers that let the time of several tasks pass in a row."""
    return tuple(
        SilentConsumer(pool.queue, consumer, times)
        for pool in worker.pools.values()
        if isinstance(pool, PullPool)
        for consumer, times in pool.silent.items()
    )[:NAMES_MAX]


def _runs(worker: WorkerView, now_us: int) -> tuple[Run, ...]:
    """Name what has run for longest, the oldest first.

    A worker may have thousands of runs: only those that are told of are described.
    """
    found: list[tuple[Attempt, int, str, int | None]] = [
        (*each, "", None) for each in worker.dispatcher.runs
    ]
    for name, pool in worker.pools.items():
        if isinstance(pool, PullPool):
            found += [
                (each.attempt, each.started_us, CONSUMER + each.consumer, each.until_us)
                for each in pool.leases
            ]
        elif isinstance(pool, Dispatcher):
            where = f"target {name}" if isinstance(pool, RemotePool) else ""
            found += [(*each, where, None) for each in pool.runs]
    long = [run for run in found if run[1] < now_us - LONG_US]
    return tuple(_run(*run) for run in heapq.nsmallest(RUNS_MAX, long, key=lambda run: run[1]))


def _run(attempt: Attempt, since_us: int, where: str = "", until_us: int | None = None) -> Run:
    record = attempt.record
    return Run(
        attempt.group, record.queue, record.name, record.task_id, since_us, attempt.number, where,
        until_us, trace_id(headers_of(record.headers)) or "",
    )  # fmt: skip


def _of_target(
    worker: WorkerView, name: str, pool: RemotePool, limiter: Limiter, now_us: int
) -> TargetReport:
    breaker = limiter.breaker
    calls, failed = (0, 0) if breaker is None else breaker.recent(now_us)
    error, at_us = limiter.last_error
    return TargetReport(
        name,
        kind=pool.target.kind,
        where=pool.target.where,
        calls=calls,
        failed=failed,
        error=_line(error),
        error_at_us=at_us,
        open_since_us=None if breaker is None else breaker.open_since_us,
        waiting=sum(
            core.state.ready_queues.unlimited_for(name) for core in worker.scheduler.cores.values()
        ),
        tasks=tuple(pool.names[:NAMES_MAX]),
        held=() if breaker is None or breaker.open_since_us is None else _held(worker, name),
    )


def _limited_keys(worker: WorkerView, now_us: int) -> tuple[LimitedKey, ...]:
    """Name the limit keys that hold most tasks back, those first."""
    found = []
    for (group, _), core in worker.scheduler.cores.items():
        queues = core.state.ready_queues
        for name, waiting in queues.held_by_keys(now_us).items():
            settings = worker.scheduler.limits.settings(name.queue)
            if settings is not None:
                found.append(LimitedKey(
                    group, name.queue, name.key, queues.keys.running(name), waiting,
                    settings.key_concurrency, settings.key_rate,
                ))  # fmt: skip
    return tuple(heapq.nlargest(NAMES_MAX, found, key=lambda each: each.waiting))


def _line(error: str) -> str:
    """Return the error for a text of other words: its line breaks are kept as `\\n` in errors."""
    return " ".join(error.replace("\\n", " ").split())[:ERROR_MAX]


def _held(worker: WorkerView, target: str) -> tuple[Held, ...]:
    """Count what waits for a target, by group and queue, the most first."""
    found: Counter[tuple[str, str]] = Counter()
    for (group, _), core in worker.scheduler.cores.items():
        for queue, tasks in core.state.ready_queues.waiting_for(target).items():
            found[group, queue] += tasks
    return tuple(Held(*key, tasks) for key, tasks in found.most_common(NAMES_MAX) if tasks)
