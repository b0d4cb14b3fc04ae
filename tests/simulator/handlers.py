"""Where the attempts of a simulated worker run: handlers do what their payload says (`job`)."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

import msgspec

from late.errors import StoreError
from late.model.task import Attempt, NewTask, Outcome, TaskId
from tests.simulator.job import Job, job_of
from tests.simulator.network import NetworkStore
from tests.simulator.transactions import SharedSlots
from tests.simulator.truth import Witness

CONCURRENCY = 8
TIMEOUT_S = 1.5
"""A handler that hangs is ended then, and its attempt has failed."""


class Slots:
    """Runs attempts, a fixed number at a time, and has each start judged by the truth."""

    def __init__(
        self,
        store: NetworkStore,
        worker_id: str,
        rng: random.Random,
        die: Callable[[], None],
        clock: Callable[[], int],
        trusted: Callable[[], bool],
    ) -> None:
        self.on_finished: Callable[[list[Outcome]], None] = lambda outcomes: None
        self.shared: SharedSlots | None = None
        """Those of handlers that share transactions, in worlds that have any."""
        self.store = store
        self.die = die
        self.clock = clock
        self.trusted = trusted
        self._database = store.database
        self._worker_id = worker_id
        self._rng = rng
        self._waiting: deque[Attempt] = deque()
        self._running: dict[asyncio.Task[None], Attempt] = {}
        self.stopping = False

    @property
    def attempts(self) -> list[Attempt]:
        """All that it has, in a slot or not."""
        return [*self._waiting, *self._running.values()]

    @property
    def load(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def queued(self) -> Collection[Attempt]:
        return [*self._waiting, *self.shared.queued] if self.shared else self._waiting

    def submit(self, attempts: Sequence[Attempt]) -> None:
        fresh = sum(attempt.number == 1 for attempt in attempts)
        self._database.truth.budgets.handed(self._worker_id, fresh)
        self._waiting.extend(attempts)
        self._fill()

    def abandon(self, group: str, shard_id: int, epoch: int) -> None:
        """What waits will not run. What runs goes on: its outcome is for nobody."""
        self._waiting = deque(
            a
            for a in self._waiting
            if (a.group, a.record.shard_id, a.epoch) != (group, shard_id, epoch)
        )
        if self.shared:
            self.shared.abandon(group, shard_id, epoch)

    async def stop(self, grace_s: float) -> None:
        """What waits goes back at once, what runs may finish within the grace."""
        self.stopping = True
        back = [self.outcome(attempt, "interrupted") for attempt in self._waiting]
        self._waiting.clear()
        if back:
            self.on_finished(back)
        if self._running:
            await asyncio.wait(list(self._running), timeout=grace_s)
        for task in list(self._running):
            task.cancel()
        if self.shared and self._running:
            await asyncio.wait(list(self._running))

    def _fill(self) -> None:
        while self._waiting and len(self._running) < CONCURRENCY and not self.stopping:
            attempt = self._waiting.popleft()
            if not self.trusted():
                self.on_finished([self.outcome(attempt, "interrupted")])
                continue
            job = job_of(attempt.record.payload)
            if self.shared and job.shares:
                self._start(attempt, self.shared.run(attempt, job))
                continue
            witness = self.judge_start(attempt)
            if witness is None:
                continue
            if witness.starts <= job.kills:
                self.killed(attempt, witness)
                return
            self._start(attempt, self._run(attempt, job, witness))

    def _start(self, attempt: Attempt, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = attempt
        task.add_done_callback(self._ended)

    def judge_start(self, attempt: Attempt, *, again: bool = False) -> Witness | None:
        """A handler is about to be called; see `Truth.started`."""
        until_us, _ = self._database.workers.get(self._worker_id, (0, None))
        return self._database.truth.started(attempt, self._worker_id, until_us, again=again)

    def killed(self, attempt: Attempt, witness: Witness) -> None:
        """A handler takes this process down."""
        self._database.truth.killed(attempt, witness)
        self.die()

    async def _run(self, attempt: Attempt, job: Job, witness: Witness) -> None:
        started_us = self.clock()
        try:
            kind = await self._handle(attempt, job, witness)
        except asyncio.CancelledError:
            witness.deferrals += 1
            kind = "interrupted"
        witness.running.discard(attempt.epoch)
        self.on_finished([self.outcome(attempt, kind, started_us)])

    async def _handle(self, attempt: Attempt, job: Job, witness: Witness) -> str:
        """The handler: how it ended, once that is so."""
        network = self.store.network
        if witness.hangs < job.hangs:
            await asyncio.sleep(TIMEOUT_S)
            witness.hangs += 1
            witness.failures += 1
            return "failed"
        await asyncio.sleep(min(TIMEOUT_S, job.takes_s * self._rng.expovariate(1.0)))
        if witness.deferrals < job.snoozes:
            witness.deferrals += 1
            return "snooze"
        if network.storm or witness.failures - witness.hangs < job.fails:
            witness.failures += 1
            return "failed"
        if job.follows:
            witness.followed += 1
            try:
                await self.store.enqueue([self.follow_up(attempt, witness.followed)])
            except StoreError:  # perhaps it is in the log: the next attempt adds another one
                witness.failures += 1
                return "failed"
        witness.done = True
        return "done"

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._fill()

    def outcome(
        self, attempt: Attempt, kind: str, started_us: int = 0, *, begun: bool = True
    ) -> Outcome:
        return Outcome(
            attempt=attempt,
            kind=kind,  # type: ignore[arg-type]
            started_at_us=started_us or self.clock(),
            busy_us=max(0, self.clock() - started_us) if started_us else 0,
            error="told to" if kind == "failed" else None,
            after_us=300_000 if kind == "snooze" else None,
            jitter=self._rng.random(),
            begun=begun and started_us > 0,
        )

    @staticmethod
    def follow_up(attempt: Attempt, number: int) -> NewTask:
        """Another task every time: the transaction of an attempt that failed may have committed."""
        record = attempt.record
        task_id = record.task_id
        tail = f"{number:04x}{len(attempt.group):01x}{task_id[-7:]}"
        return NewTask(
            task_id=TaskId(f"{task_id[:19]}9000-{tail}"),
            shard_id=record.shard_id,
            queue="default",
            name="job",
            payload=msgspec.json.encode(Job()),
        )
